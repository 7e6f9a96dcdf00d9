-- Gives the hold its full TTL from now on this node, never less than it had, if
-- the node still has it.
--
-- KEYS[1]  record of the key
-- KEYS[2]  the node's mark
-- ARGV[1]  acquisition id
-- ARGV[2]  TTL in milliseconds
--
-- Returns  record  renewed
--           0  the key is free here
--           2  somebody else has the key here
--          -1  the record is not ours
local record = redis.call('GET', KEYS[1])
if not record then
  -- A write that changes nothing: a replica, whose "no" proves nothing, answers
  -- READONLY here.
  redis.call('PERSIST', KEYS[2])
  return 0
end
if string.sub(record, 1, 36) ~= 'R1|' .. ARGV[1] .. '|' then
  if string.sub(record, 1, 3) ~= 'R1|' then return -1 end
  redis.call('PERSIST', KEYS[2])
  return 2
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return record
