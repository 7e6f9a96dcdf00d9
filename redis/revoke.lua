-- Makes the record that of nobody, until it runs out.
--
-- KEYS[1]  record of the key
-- KEYS[2]  token counter of the bucket
-- ARGV[1]  token, in decimal
-- ARGV[2]  the acquisition id that nobody has, 32 zeros, by which inspect.lua tells
--
-- Returns   1  revoked
--           0  the key is free or has another token; nothing was changed
--          -1  the record is not ours
local record = redis.call('GET', KEYS[1])
if record then
  local holds, token, since, details =
    string.match(record, '^M1|([%x:+,]+)|(%d+)|(%d+)|[%x-]+|(.*)$')
  if not holds then return -1 end
  local time = redis.call('TIME')
  local now = time[1] .. string.sub('00000' .. time[2], -6, -4)
  local latest = 0
  for start, ttl in string.gmatch(holds, ':(%d+)%+(%d+)') do
    latest = math.max(latest, start + ttl - now)
  end
  if token == ARGV[1] and latest > 0 then
    latest = string.format('%.0f', latest)
    -- PEXPIRE works when memory is full, and the SET after it then does too.
    redis.call('PEXPIRE', KEYS[1], latest)
    redis.call('SET', KEYS[1],
      'M1|' .. ARGV[2] .. ':' .. now .. '+' .. latest .. '|' .. token .. '|' .. since .. '|-|' .. details,
      'PX', latest)
    return 1
  end
end
-- A write that changes nothing: a replica, whose "no" proves nothing, answers
-- READONLY here.
redis.call('PERSIST', KEYS[2])
return 0
