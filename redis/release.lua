-- Ends one hold and nothing but it. With the last hold the record goes, and
-- those who wait for the key are told. Of a crowd of 64 or more some are told, each
-- time others: it takes the server longer to tell all of them than to grant the key.
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
local function tellSome(watchers)
  local bucket = string.sub(KEYS[2], 1, -2)
  local key = string.sub(KEYS[1], #bucket + 3)
  -- Each watcher is of one of 64 parts. They make groups of 8 to 16 watchers or so, each of
  -- which has its turn as often as it has watchers.
  local groups = 4
  while groups < 64 and groups * 16 <= watchers do groups = groups * 2 end
  local parts = {}
  for i = 0, 63 do parts[i + 1] = bucket .. 'w' .. i .. ':' .. key end
  local counts = redis.pcall('PUBSUB', 'NUMSUB', unpack(parts))
  if counts.err then return false end
  local told, all = {}, 0
  for i = 0, 63 do
    told[i % groups] = (told[i % groups] or 0) + counts[2 * i + 2]
    all = all + counts[2 * i + 2]
  end
  if all == 0 then return false end
  local chosen, group = redis.call('TIME')[2] % all, 0
  while chosen >= told[group] do
    chosen, group = chosen - told[group], group + 1
  end
  for i = group, 63, groups do
    if counts[2 * i + 2] > 0 then
      redis.pcall('PUBLISH', parts[i + 1], string.format('%d', told[group]))
    end
  end
  return true
end

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
    -- Without permission for the channel the waiters poll.
    local watchers = redis.pcall('PUBSUB', 'NUMSUB', KEYS[1])[2]
    local told = watchers and watchers >= 64 and not ARGV[2] and tellSome(watchers)
    if not told and (watchers ~= 0 or ARGV[2]) then
      redis.pcall('PUBLISH', KEYS[1], string.format('%d', watchers or 0))
    end
    if watchers and not ARGV[2] then return 2 + watchers end
    return 1
  end
end
-- A write that changes nothing: a replica, whose "no" proves nothing, answers
-- READONLY here.
redis.call('PERSIST', KEYS[2])
return 0
