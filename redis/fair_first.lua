-- Stands before the scripts of the fair mode.
--
-- KEYS[3]  queue of the key: a sorted set of places by their arrival, in us. A
--          place is the name of the waiter's backend, 16 hexadecimal digits, and
--          a tag of its acquisition, 32 of them
-- KEYS[4]  until when each place lasts without its waiter, in ms, in a sorted set
--
-- Returns the first place that still lasts, its arrival, and for how many ms it
-- lasts, after dropping those before it, and what is no place at all: nothing says
-- that it lasts. Or nil where nobody waits, and -5 where the queue is no sorted set.
local function first()
  local now
  while true do
    local top = redis.pcall('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
    local place = top[1]
    if top.err then return -5 end
    if not place then return nil end
    if not now then
      local time = redis.call('TIME')
      now = tonumber(time[1] .. string.sub('00000' .. time[2], -6, -4))
    end
    local till = redis.pcall('ZSCORE', KEYS[4], place)
    if type(till) == 'table' then return -5 end
    local left = till and till - now or 0
    -- A place of more than the longest life was kept before the clock was set
    -- back. Whoever waits there comes again.
    if left > 0 and left <= 1100 then return place, tonumber(top[2]), left end
    redis.call('ZREM', KEYS[3], place)
    redis.call('ZREM', KEYS[4], place)
  end
end
