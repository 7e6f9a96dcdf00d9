-- Stands around a script of the caller's, which replaces the line CALLER and runs only
-- while the hold exists. The caller's script sees its own keys and arguments.
--
-- KEYS[1]  record of the key
-- KEYS[2]  token counter of the bucket
-- ARGV[1]  acquisition id
--
-- Errors begin with MORTISE: "not held" and "foreign" before the caller's script was run,
-- "script: " and its own words when it has failed, since what it wrote before stays.
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
  -- A write that changes nothing: a server that takes no writes refuses it here, before
  -- the caller's script, and a replica's "no" would prove nothing.
  redis.call('PERSIST', KEYS[2])
  if not held then return redis.error_reply('MORTISE not held') end
end
local KEYS, ARGV = { unpack(KEYS, 3) }, { unpack(ARGV, 2) }
local done, result = pcall(function(...)
CALLER
end)
if not done then result = type(result) == 'table' and result.err and result or { err = tostring(result) } end
if type(result) == 'table' and type(result.err) == 'string' then
  return { err = 'MORTISE script: ' .. result.err }
end
return result
