-- Ends the only hold of a key and grants the key to another acquisition, with a
-- token of its own. Nobody else is told: the key was never free.
--
-- KEYS[1]  record of the key
-- KEYS[2]  token counter of the bucket, without expiry
-- ARGV[1]  acquisition id of the hold that ends
-- ARGV[2]  acquisition id of the next holder
-- ARGV[3]  its TTL in milliseconds
-- ARGV[4]  "-|" and the public details of the next holder, JSON
--
-- Returns  token  handed over, or held already by the next holder
--          0      there is no such hold; nothing was changed
--         -1      the record is not ours
--         -2      the counter is not ours
--         -3      the tokens are used up
--         -4      the owner has other holds; nothing was changed
local record = redis.call('GET', KEYS[1])
if not record then
  -- A write that changes nothing: a replica, whose "no" proves nothing, answers
  -- READONLY here.
  redis.call('PERSIST', KEYS[2])
  return 0
end
local holds, held = string.match(record, '^M1|([%x:+,]+)|(%d+)|')
if not holds then return -1 end
local only = string.match(holds, '^(%x+):%d+%+%d+$')
local time = redis.call('TIME')
local micros = time[2] .. ''
if #micros < 6 then micros = string.sub('00000' .. micros, -6) end
local clock = time[1] .. micros
local now = string.sub(clock, 1, -4)
local token
if only == ARGV[2] then
  token = held
elseif only ~= ARGV[1] then
  if not only and string.find(holds, ARGV[1], 1, true) then return -4 end
  redis.call('PERSIST', KEYS[2])
  return 0
else
  -- As in try.lua.
  token = clock
  local last = redis.call('GETSET', KEYS[2], token)
  if last and (tonumber(last) or math.huge) >= tonumber(token) then
    local n = tonumber(last)
    if not n or n >= 9007199254740991 then
      redis.call('SET', KEYS[2], last)
      return n and -3 or -2
    end
    token = string.format('%.0f', n + 1)
    redis.call('SET', KEYS[2], token)
  end
end
redis.call('SET', KEYS[1],
  'M1|' .. ARGV[2] .. ':' .. now .. '+' .. ARGV[3] .. '|' .. token .. '|' .. now .. '|' .. ARGV[4],
  'PX', ARGV[3])
return token
