-- Raises the floor of the tokens on one node, never lowers it, and tells what it is then.
--
-- KEYS[1]  floor: every token that the node accepts with a request for a key is larger
-- KEYS[2]  the node's mark
-- ARGV[1]  what it is to be at least; 0 changes nothing
--
-- Returns  the floor, in decimal
--          -4  the floor is not ours
local floor = redis.pcall('GET', KEYS[1])
if type(floor) == 'table' then return -4 end
floor = floor or '0'
if not string.find(floor, '^%d+$') then return -4 end
if tonumber(floor) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
  return ARGV[1]
end
-- A write that changes nothing: a replica answers READONLY here.
redis.call('PERSIST', KEYS[2])
return floor
