-- Makes the record of a key that of nobody on one node, until it runs out there, if
-- its token is the one given, so that a newer holder is never hit.
--
-- KEYS[1]  record of the key
-- KEYS[2]  the token that was accepted last, and for which acquisition
-- KEYS[3]  the node's mark
-- ARGV[1]  token
-- ARGV[2]  begins the record of nobody: R1|32 zeros|token|
--
-- Returns   1  revoked, now or before
--           0  the key is free or has another token; nothing was changed
--          -1  the record is not ours
local record = redis.call('GET', KEYS[1])
if record then
  if string.sub(record, 1, #ARGV[2]) == ARGV[2] then return 1 end
  local holder, rest = string.match(record, '^R1|(%x+)|%d+|(.*)$')
  if not holder then return -1 end
  local token, id = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+)|(%x+)$')
  local left = redis.call('PTTL', KEYS[1])
  if token == ARGV[1] and id == holder and left > 0 then
    -- PEXPIRE works when memory is full, and the SET after it then does too.
    redis.call('PEXPIRE', KEYS[1], left)
    redis.call('SET', KEYS[1], ARGV[2] .. rest, 'PX', left)
    return 1
  end
end
-- A write that changes nothing: a replica, whose "no" proves nothing, answers
-- READONLY here.
redis.call('PERSIST', KEYS[3])
return 0
