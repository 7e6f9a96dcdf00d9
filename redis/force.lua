-- Removes the record of a key if its token is the one given, so that a newer
-- holder is never hit.
--
-- KEYS[1]  record of the key, and the channel on which the
--          number of its watchers is told
-- KEYS[2]  token counter of the bucket
-- ARGV[1]  token, in decimal
-- ARGV[2]  given in a Cluster, where watchers may be on other members
-- ARGV[3]  given when the rest of the script tells those who wait
--
-- Returns   1  removed
--           0  the key is free or has another token; nothing was changed
--          -1  the record is not ours
local record = redis.call('GET', KEYS[1])
if record then
  local token = string.match(record, '^M1|[%x:+,]+|(%d+)|%d+|[%x-]+|')
  if not token then return -1 end
  if token == ARGV[1] then
    redis.call('DEL', KEYS[1])
    if ARGV[3] then return 1 end
    -- Without permission for the channel the waiters poll.
    local watchers = redis.pcall('PUBSUB', 'NUMSUB', KEYS[1])[2]
    if watchers ~= 0 or ARGV[2] then
      redis.pcall('PUBLISH', KEYS[1], string.format('%d', watchers or 0))
    end
    return 1
  end
end
-- A write that changes nothing: a replica, whose "no" proves nothing, answers
-- READONLY here.
redis.call('PERSIST', KEYS[2])
return 0
