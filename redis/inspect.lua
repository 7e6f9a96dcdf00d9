-- Shows the record of a key. It writes nothing.
--
-- KEYS[1]  record of the key
-- KEYS[2]  token counter of the bucket
--
-- Returns  {1, token, holds, remaining ms, since ms, details, 1 if it was revoked}
--          {0}   nobody holds the key
--          {-1}  the record is not ours
local record = redis.call('GET', KEYS[1])
if not record then return {0} end
local holds, token, since, details =
  string.match(record, '^M1|([%x:+,]+)|(%d+)|(%d+)|[%x-]+|(.*)$')
if not holds then return {-1} end
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6, -4)
local count, latest = 0, 0
for start, ttl in string.gmatch(holds, ':(%d+)%+(%d+)') do
  local left = start + ttl - now
  if left > 0 then
    count = count + 1
    if left > latest then latest = left end
  end
end
if count == 0 then return {0} end
local revoked = string.sub(holds, 1, 33) == string.rep('0', 32) .. ':'
return {1, token, count, string.format('%.0f', latest), since, details, revoked and 1 or 0}
