-- Accepts a fencing token for the acquisition that has the key on this node, if
-- the token is larger than every one that was accepted before.
--
-- KEYS[1]  record of the key
-- KEYS[2]  the token that was accepted last, and for which acquisition
-- ARGV[1]  acquisition id
-- ARGV[2]  token
-- ARGV[3]  for how many milliseconds the node remembers it
--
-- Returns   1  accepted
--           0  the acquisition does not have the key here
--           2  a token as large was accepted before, for another acquisition
--          -2  the accepted token is not ours
local record = redis.call('GET', KEYS[1])
if not record or string.sub(record, 1, 36) ~= 'R1|' .. ARGV[1] .. '|' then return 0 end
local accepted = redis.call('GET', KEYS[2])
if accepted then
  local last, id = string.match(accepted, '^(%d+)|(%x+)$')
  if not last then return -2 end
  if last == ARGV[2] and id == ARGV[1] then return 1 end
  if tonumber(last) >= tonumber(ARGV[2]) then return 2 end
end
redis.call('SET', KEYS[2], ARGV[2] .. '|' .. ARGV[1], 'PX', ARGV[3])
return 1
