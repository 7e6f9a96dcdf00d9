-- Removes the record of a key from one node if its token is the one given, so
-- that a newer holder is never hit, and tells those who listen.
--
-- KEYS[1]  record of the key, and the channel on which is told that a hold has ended
-- KEYS[2]  the token that was accepted last, and for which acquisition
-- KEYS[3]  the node's mark
-- ARGV[1]  token
-- ARGV[2]  begins the record of a hold with the token that was revoked
--
-- Returns   1  removed
--           0  the key is free or has another token; nothing was changed
--           3  the key is held, and the node has accepted no token for that hold:
--              it may be the one given. Nothing was changed
local record = redis.call('GET', KEYS[1])
local accepted = redis.call('GET', KEYS[2])
if record then
  local token, id = string.match(accepted or '', '^(%d+)|(%x+)$')
  if token == ARGV[1] and string.sub(record, 1, 36) == 'R1|' .. id .. '|'
    or string.sub(record, 1, #ARGV[2]) == ARGV[2] then
    redis.call('DEL', KEYS[1])
    -- As in release.lua. The token stands for the id, which a revoked record lacks.
    local listen = redis.pcall('PUBSUB', 'NUMSUB', KEYS[1])[2]
    if listen ~= 0 then
      redis.pcall('PUBLISH', KEYS[1], string.format('%s|%d', ARGV[1], listen or 0))
    end
    return 1
  end
  -- A node that was asked late does not accept the token, and has the record.
  local holder = string.match(record, '^R1|(%x+)|')
  if holder and holder ~= id and holder ~= string.rep('0', 32) then return 3 end
end
redis.call('PERSIST', KEYS[3])
return 0
