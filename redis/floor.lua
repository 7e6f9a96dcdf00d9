-- Raises the token counter of a bucket, never lowers it, and tells what it is then.
--
-- KEYS[1]  token counter of the bucket
-- ARGV[1]  what it is to be at least; 0 changes nothing
--
-- Returns  the counter, in decimal
--          -1  the counter is not ours
local last = redis.pcall('GET', KEYS[1])
if type(last) == 'table' then return -1 end
last = last or '0'
if not string.find(last, '^%d+$') then return -1 end
if tonumber(last) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
  return ARGV[1]
end
-- A write that changes nothing: a replica, which may not have the last token, answers
-- READONLY here.
redis.call('PERSIST', KEYS[1])
return last
