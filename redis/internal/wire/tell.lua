-- Stands before release.lua, of Redis and of Redlock, which asks first whether anybody
-- watches: mostly nobody does, and then no call is made to tell it.
--
-- Tells those who watch the key that it is free, on the channel with the name of its
-- record. Of a crowd of 64 or more some are told, others each time: it takes the server
-- longer to tell all of them than to grant the key. Each watcher is of one of 64 parts,
-- which have channels, too. They make groups of 8 to 16 watchers or so, each of which has
-- its turn as often as it has watchers.
--
-- KEYS[1]  record of the key
-- watchers how many watch, or nil when the server does not say; then all are told.
--          Without permission for the channels the waiters poll.
-- at       where the "k:" before the key begins in its name; the channels of the parts have
--          "w0:" to "w63:" there
-- roll     decides whose turn it is
-- text     is before the number of those who are told
local function tell(watchers, at, roll, text)
  if watchers and watchers >= 64 then
    local groups = 4
    while groups < 64 and groups * 16 <= watchers do groups = groups * 2 end
    local head, key, parts = string.sub(KEYS[1], 1, at - 1) .. 'w', string.sub(KEYS[1], at + 1), {}
    for i = 0, 63 do parts[i + 1] = head .. i .. key end
    local listen, told, all = redis.pcall('PUBSUB', 'NUMSUB', unpack(parts)), {}, 0
    for i = 0, 63 do
      local n = listen[2 * i + 2] or 0
      told[i % groups] = (told[i % groups] or 0) + n
      all = all + n
    end
    if all > 0 then
      local rest, group = roll % all, 0
      while rest >= told[group] do
        rest, group = rest - told[group], group + 1
      end
      for i = group, 63, groups do
        if listen[2 * i + 2] > 0 then
          redis.pcall('PUBLISH', parts[i + 1], string.format('%s%d', text, told[group]))
        end
      end
      return
    end
  end
  redis.pcall('PUBLISH', KEYS[1], string.format('%s%d', text, watchers or 0))
end

