-- Stands before a script of the caller's, which runs only while the hold exists.
-- The caller's script sees its own keys and arguments.
--
-- KEYS[1]  record of the key
-- KEYS[2]  token counter of the bucket
-- ARGV[1]  acquisition id
do
  local record = redis.call('GET', KEYS[1])
  local holds = record and string.match(record, '^M1|([%x:+,]+)|')
  if record and not holds then return redis.error_reply('MORTISE foreign') end
  local held = false
  if holds then
    local time = redis.call('TIME')
    local now = time[1] .. string.sub('00000' .. time[2], -6, -4)
    for id, start, ttl in string.gmatch(holds, '(%x+):(%d+)%+(%d+)') do
      if id == ARGV[1] and start + ttl - now > 0 then held = true end
    end
  end
  if not held then
    -- A write that changes nothing: a replica, whose "no" proves nothing, answers
    -- READONLY here.
    redis.call('PERSIST', KEYS[2])
    return redis.error_reply('MORTISE not held')
  end
end
local KEYS, ARGV = { unpack(KEYS, 3) }, { unpack(ARGV, 2) }
