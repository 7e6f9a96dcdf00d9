-- Ends the hold on one node, and nothing but it.
--
-- KEYS[1]  record of the key
-- KEYS[2]  the node's mark
-- ARGV[1]  how the record begins: R1|acquisition id| or R1|acquisition id|attempt|
--
-- Returns   1  released
--           0  the node does not have the hold; nothing was changed
local record = redis.call('GET', KEYS[1])
if record and string.sub(record, 1, #ARGV[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return 1
end
-- A write that changes nothing: a replica, whose "no" proves nothing, answers
-- READONLY here.
redis.call('PERSIST', KEYS[2])
return 0
