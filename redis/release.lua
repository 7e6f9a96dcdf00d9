-- Ends one hold and nothing but it. With the last hold the record goes, and
-- those who wait for the key are told. Before it stands redis/internal/wire/tell.lua.
--
-- KEYS[1]  record of the key, and the channel on which the
--          number of its watchers is told
-- KEYS[2]  token counter of the bucket
-- ARGV[1]  acquisition id
-- ARGV[2]  given in a Cluster, where watchers may be on other members
-- ARGV[3]  given when the rest of the script tells those who wait
--
-- Returns   1  released
--           n  more than one: released, and n-2 connections watch the key
--           0  there is no such hold; nothing was changed
--          -1  the record is not ours
local record = redis.call('GET', KEYS[1])
if record then
  local mine = false
  local head = 'M1|' .. ARGV[1] .. ':'
  if string.sub(record, 1, #head) == head and string.find(record, '^%d+%+%d+|', #head + 1) then
    mine = true -- and the only hold, as nearly always
  else
    local holds, rest = string.match(record, '^M1|([%x:+,]+)(|%d+|%d+|[%x-]+|.*)$')
    if not holds then return -1 end
    local live, latest = {}, 0
    local time = redis.call('TIME')
    local now = time[1] .. string.sub('00000' .. time[2], -6, -4)
    for hold, id, start, ttl in string.gmatch(holds, '((%x+):(%d+)%+(%d+))') do
      local left = start + ttl - now
      if left > 0 then
        if id == ARGV[1] then
          mine = true
        else
          if left > latest then latest = left end
          live[#live + 1] = hold
        end
      end
    end
    if mine and #live > 0 then
      latest = string.format('%.0f', latest)
      -- PEXPIRE works when memory is full, and the SET after it then does too.
      redis.call('PEXPIRE', KEYS[1], latest)
      redis.call('SET', KEYS[1], 'M1|' .. table.concat(live, ',') .. rest, 'PX', latest)
      return 1
    end
  end
  if mine then
    redis.call('DEL', KEYS[1])
    if ARGV[3] then return 1 end
    if ARGV[2] then
      redis.pcall('PUBLISH', KEYS[1], '0')
      return 1
    end
    local watchers = redis.pcall('PUBSUB', 'NUMSUB', KEYS[1])[2]
    if watchers ~= 0 then tell(watchers, #KEYS[2], redis.call('TIME')[2], '') end
    return watchers and 2 + watchers or 1
  end
end
-- A write that changes nothing: a replica, whose "no" proves nothing, answers
-- READONLY here.
redis.call('PERSIST', KEYS[2])
return 0
