-- Gives the hold its full TTL from now on this node, never less than it had, if
-- the node still has it. The node remembers the token of the hold from now on, and
-- learns it if it was asked too late to accept it.
--
-- KEYS[1]  record of the key
-- KEYS[2]  the node's mark
-- KEYS[3]  the token that was accepted last, and for which acquisition
-- ARGV[1]  acquisition id
-- ARGV[2]  TTL in milliseconds
-- ARGV[3]  token, or 0
-- ARGV[4]  for how many milliseconds the node remembers the token
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
if ARGV[3] ~= '0' then
  local accepted = redis.call('GET', KEYS[3])
  if accepted == ARGV[3] .. '|' .. ARGV[1] then
    redis.call('PEXPIRE', KEYS[3], ARGV[4])
  elseif not accepted or (tonumber(string.match(accepted, '^(%d+)|%x+$')) or math.huge) < tonumber(ARGV[3]) then
    -- The hold goes on without it, when memory is full.
    redis.pcall('SET', KEYS[3], ARGV[3] .. '|' .. ARGV[1], 'PX', ARGV[4])
  end
end
return record
