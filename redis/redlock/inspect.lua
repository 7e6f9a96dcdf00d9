-- Shows the record of a key on one node. It writes nothing.
--
-- KEYS[1]  record of the key
-- KEYS[2]  the token that was accepted last, and for which acquisition
--
-- Returns  {record, remaining ms, accepted token or ""}
--           0  the key is free here
--          -1  the record is not ours
local record = redis.call('GET', KEYS[1])
if not record then return 0 end
if string.sub(record, 1, 3) ~= 'R1|' then return -1 end
return {record, redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[2]) or ''}
