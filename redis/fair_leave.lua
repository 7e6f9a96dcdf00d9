-- The end of the scripts of the fair mode that remove a record. Before it stand
-- fair_first.lua, and release.lua or force.lua as the local function remove().
--
-- KEYS[1..2] and ARGV[1]  as there
-- KEYS[3..4]  as in fair_first.lua
-- ARGV[4]  a place that is given up too, or "-"
-- ARGV[5]  what the name of a backend is put behind to make the channel on which
--          it listens
--
-- Returns  what the script before returns. When the key is free, the backend of
-- the first in the queue is told the place. All this works when memory is full.
local answer = remove()
if answer == -1 then return answer end
local head = first()
if not head or head == -5 then return answer end
local gone = redis.call('ZREM', KEYS[3], ARGV[4]) == 1
redis.call('ZREM', KEYS[4], ARGV[4])
if gone then head = first() end
if head and (gone or answer == 1) and redis.call('EXISTS', KEYS[1]) == 0 then
  -- Without permission for the channel the waiters poll.
  redis.pcall('PUBLISH', ARGV[5] .. string.sub(head, 1, 16), '@' .. head)
end
return answer
