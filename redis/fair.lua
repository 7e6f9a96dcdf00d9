-- The end of the script of the fair mode. Before it stands try.lua, as the local
-- function try(later).
--
-- KEYS[1..2] and ARGV[1..3]  as in try.lua
-- KEYS[3]  queue of the key: "Q1|" and places in the order of their arrival,
--          each "arrival in us:tag:alive until ms", with commas between them
-- ARGV[4]  tag: the hash of the acquisition id
-- ARGV[5]  "try": takes no place; "join": takes one; or the arrival of the place
-- ARGV[6]  for how many ms the place lasts from now, at most 1500
--
-- Returns  what try.lua does; a refusal goes on with
--          arrival, how many are before it, ms for which the first is alive
--          {-5}  the queue is not ours
local time = redis.call('TIME')
local micros = string.sub('00000' .. time[2], -6)
local now = tonumber(time[1] .. string.sub(micros, 1, 3))
local text = redis.call('GET', KEYS[3])
if text and string.sub(text, 1, 3) ~= 'Q1|' then return {-5} end
local places, mine, last = {}, nil, 0
for arrival, tag, till in string.gmatch(text or '', '(%d+):(%x+):(%d+)') do
  local left = till - now
  if tag == ARGV[4] then
    mine = tonumber(arrival)
  -- A place of more than the longest life was written before the clock was set
  -- back. Its waiter comes again.
  elseif left > 0 and left <= 1500 then
    places[#places + 1] = { tonumber(arrival), tag, left }
    last = tonumber(arrival)
  end
end
if ARGV[5] == 'join' then
  mine = mine or math.max(tonumber(time[1] .. micros), last + 1)
elseif ARGV[5] ~= 'try' then
  mine = tonumber(ARGV[5])
end
local before = #places
if mine then
  before = 0
  while places[before + 1] and places[before + 1][1] < mine do before = before + 1 end
end
local answer = try(before > 0)
local waits = type(answer) == 'table' and answer[1] == 0
if waits then
  answer[5], answer[6] = string.format('%.0f', mine or 0), before
  answer[7] = string.format('%.0f', before > 0 and places[1][3] or 0)
  if ARGV[5] == 'try' then return answer end
  table.insert(places, before + 1, { mine, ARGV[4], tonumber(ARGV[6]) })
elseif not (text and string.find(text, ARGV[4], 1, true)) then
  return answer
end
if #places == 0 then
  redis.call('DEL', KEYS[3])
  return answer
end
local longest, all = 0, {}
for i, place in ipairs(places) do
  longest = math.max(longest, place[3])
  all[i] = string.format('%.0f:%s:%.0f', place[1], place[2], now + place[3])
end
redis.call('SET', KEYS[3], 'Q1|' .. table.concat(all, ','), 'PX', string.format('%.0f', longest))
return answer
