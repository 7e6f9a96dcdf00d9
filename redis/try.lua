-- Grants one hold of a key, or says who has it.
--
-- KEYS[1]  record of the key
-- KEYS[2]  token counter of the bucket, without expiry
-- ARGV[1]  acquisition id, 32 hexadecimal digits
-- ARGV[2]  TTL in milliseconds
-- ARGV[3]  owner|details: "-" or the hash of the explicit owner, 32 hexadecimal
--          digits, and the public details of the holder, JSON
--
-- later    true in the fair mode when somebody else is due first
--
-- Returns  token                                  granted, the owner's only hold
--          {1, token, holds}                      granted, one of several holds
--          {0, details, since ms, remaining ms}   held by somebody else
--          {-1}  the record is not ours
--          {-2}  the counter is not ours
--          {-3}  the tokens are used up
--          {-4}  the owner has the largest number of holds
local record = redis.call('GET', KEYS[1])
local time = redis.call('TIME')
local micros = time[2] .. ''
if #micros < 6 then micros = string.sub('00000' .. micros, -6) end
local clock = time[1] .. micros
local now = string.sub(clock, 1, -4)

if record then
  local holds, token, since, owner, details =
    string.match(record, '^M1|([%x:+,]+)|(%d+)|(%d+)|([%x-]+)|(.*)$')
  if not holds then return {-1} end
  local live, latest, mine = {}, 0, false
  for hold, id, start, ttl in string.gmatch(holds, '((%x+):(%d+)%+(%d+))') do
    local left = start + ttl - now
    if left > 0 then
      if id == ARGV[1] then
        mine = true
        if left < tonumber(ARGV[2]) then
          left = tonumber(ARGV[2])
          hold = id .. ':' .. now .. '+' .. ARGV[2]
        end
      end
      if left > latest then latest = left end
      live[#live + 1] = hold
    end
  end
  if #live > 0 then
    if not mine then
      if owner == '-' or owner ~= string.match(ARGV[3], '^[%x-]+') then
        -- A write that changes nothing: a replica answers READONLY here.
        redis.call('PERSIST', KEYS[2])
        return {0, details, since, string.format('%.0f', latest)}
      end
      if #live >= 64 then return {-4} end
      live[#live + 1] = ARGV[1] .. ':' .. now .. '+' .. ARGV[2]
      latest = math.max(latest, tonumber(ARGV[2]))
    end
    redis.call('SET', KEYS[1],
      'M1|' .. table.concat(live, ',') .. '|' .. token .. '|' .. since .. '|' .. owner .. '|' .. details,
      'PX', string.format('%.0f', latest))
    return {1, token, #live}
  end
end

if later then
  redis.call('PERSIST', KEYS[2])
  return {0, '', '', '0'}
end

-- The clock is the floor, so that losing the counter repeats no token. Writing it
-- before looking saves a call: the counter is hardly ever ahead of the clock.
local token = clock
local last = redis.call('GETSET', KEYS[2], token)
if last and (tonumber(last) or math.huge) >= tonumber(token) then
  local n = tonumber(last)
  -- From 2^53 on, Lua's numbers no longer tell neighbours apart.
  if not n or n >= 9007199254740991 then
    redis.call('SET', KEYS[2], last)
    return n and {-3} or {-2}
  end
  token = string.format('%.0f', n + 1)
  redis.call('SET', KEYS[2], token)
end
redis.call('SET', KEYS[1],
  'M1|' .. ARGV[1] .. ':' .. now .. '+' .. ARGV[2] .. '|' .. token .. '|' .. now .. '|' .. ARGV[3],
  'PX', ARGV[2])
return token
