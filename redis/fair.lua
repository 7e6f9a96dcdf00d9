-- The end of the script of the fair mode that asks for the key. Before it stand
-- fair_first.lua, and try.lua as the local function try(later). Its cost grows
-- with the logarithm of the number of places.
--
-- KEYS[1..2] and ARGV[1..3]  as in try.lua
-- KEYS[3..4]  as in fair_first.lua
-- ARGV[4]  the caller's place
-- ARGV[5]  "try": takes no place; "join": takes the last one, or keeps the one it
--          has; or the arrival of a place, which is taken back where it was lost
-- ARGV[6]  for how many ms the place lasts from now, at most 1100
--
-- Returns  what try.lua does; a refusal goes on with
--          arrival, how many are before it, ms for which the first lasts
--          {-5}  the queue is no sorted set
local head, arrival, left = first()
if head == -5 then return {-5} end
local back = tonumber(ARGV[5])
local answer = try(head and head ~= ARGV[4] and not (back and back < arrival))
if type(answer) ~= 'table' or answer[1] ~= 0 then
  if head then
    redis.call('ZREM', KEYS[3], ARGV[4])
    redis.call('ZREM', KEYS[4], ARGV[4])
  end
  return answer
end
local before = 0
if ARGV[5] ~= 'try' then
  local time = redis.call('TIME')
  local micros = string.sub('00000' .. time[2], -6)
  -- First what says that the place lasts: without it the other is dropped.
  redis.call('ZADD', KEYS[4], string.format('%.0f', (time[1] .. string.sub(micros, 1, 3)) + ARGV[6]), ARGV[4])
  back = back or tonumber(redis.call('ZSCORE', KEYS[3], ARGV[4]) or nil)
  if not back then
    local last = redis.call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')
    back = math.max(tonumber(time[1] .. micros), (last[2] or 0) + 1)
  end
  back = string.format('%.0f', back)
  redis.call('ZADD', KEYS[3], back, ARGV[4])
  before = redis.call('ZRANK', KEYS[3], ARGV[4])
  -- The queue outlives every place in it.
  redis.call('PEXPIRE', KEYS[3], 1100)
  redis.call('PEXPIRE', KEYS[4], 1100)
end
answer[5], answer[6] = back or '0', before
answer[7] = string.format('%.0f', left or 0)
return answer
