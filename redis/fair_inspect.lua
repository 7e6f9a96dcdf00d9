-- The end of the script of the fair mode that shows a record. Before it stands
-- inspect.lua, as the local function show().
--
-- KEYS[1..2]  as there
-- KEYS[3..4]  as in fair_first.lua
--
-- Returns  what inspect.lua does, and how many wait: -1 where the queue is not
-- ours
local answer = show()
if answer[1] ~= 1 then return answer end
local time = redis.call('TIME')
local now = tonumber(time[1] .. string.sub('00000' .. time[2], -6, -4))
local waiters = redis.pcall('ZCOUNT', KEYS[4], now + 1, now + 1100)
answer[8] = type(waiters) == 'number' and waiters or -1
return answer
