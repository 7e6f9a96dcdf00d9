-- Replaces a node's mark, if it is still the one that was seen: not if the node has
-- lost its data since.
--
-- KEYS[1]  the node's mark
-- ARGV[1]  the mark that was seen
-- ARGV[2]  the new one
--
-- Returns   1  replaced
--           0  the node has another mark, or none; nothing was changed
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
