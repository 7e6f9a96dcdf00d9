-- The end of the scripts of the fair mode that remove a record. Before it stands
-- release.lua or force.lua, as the local function remove().
--
-- KEYS[1..2] and ARGV[1]  as there
-- KEYS[3]  queue of the key, as in fair.lua
-- ARGV[4]  tag of the place that is given up too, or "-"
--
-- Returns  what the script before returns. When the key is free, the first in
-- the queue is told, with its tag.
local answer = remove()
local text = redis.call('GET', KEYS[3])
if answer == -1 or not text or string.sub(text, 1, 3) ~= 'Q1|' then return answer end
local time = redis.call('TIME')
local now = tonumber(time[1] .. string.sub('00000' .. time[2], -6, -4))
local left, longest, first, gone = {}, 0, nil, false
for place, tag, till in string.gmatch(text, '(%d+:(%x+):(%d+))') do
  local life = till - now
  if tag == ARGV[4] then
    gone = true
  elseif life > 0 and life <= 1500 then
    left[#left + 1] = place
    longest = math.max(longest, life)
    first = first or tag
  end
end
if gone then
  if first then
    -- A full server refuses; the place then ends by itself.
    redis.pcall('SET', KEYS[3], 'Q1|' .. table.concat(left, ','), 'PX', string.format('%.0f', longest))
  else
    redis.call('DEL', KEYS[3])
  end
end
if first and (gone or answer == 1) and redis.call('EXISTS', KEYS[1]) == 0 then
  -- Without permission for the channel the waiters poll.
  redis.pcall('PUBLISH', KEYS[1], '@' .. first)
end
return answer
