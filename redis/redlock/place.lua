-- Puts the record of a hold on a node that lacks it. The caller has just had the
-- hold confirmed by a majority of other nodes, and does not count this one.
--
-- KEYS[1]  record of the key
-- KEYS[2]  the token that was accepted last, and for which acquisition
-- ARGV[1]  record to write
-- ARGV[2]  TTL in milliseconds
-- ARGV[3]  token, or 0
-- ARGV[4]  acquisition id
-- ARGV[5]  for how many milliseconds the node remembers the token
--
-- Returns   1  placed
--           0  the key is not free
if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then return 0 end
local accepted = redis.call('GET', KEYS[2])
local last = accepted and tonumber(string.match(accepted, '^(%d+)|%x+$'))
if ARGV[3] ~= '0' and accepted == ARGV[3] .. '|' .. ARGV[4] then
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
elseif ARGV[3] ~= '0' and (not accepted or last and last < tonumber(ARGV[3])) then
  redis.call('SET', KEYS[2], ARGV[3] .. '|' .. ARGV[4], 'PX', ARGV[5])
end
return 1
