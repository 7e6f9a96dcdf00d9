-- Writes down which run of the server this is, before the other scripts become
-- known to it. A server forgets its scripts when it starts, so that none of them
-- runs after a restart that was not noticed here. A node without a mark gets one by
-- which its data counts from now on: it may have forgotten votes.
--
-- KEYS[1]  the node's mark: N1|run id|since when its data is complete, 0 for ever|
--          the longest restart delay of a Locker, in milliseconds
-- ARGV[1]  the restart delay of this one. A mark that is written for lost data tells it
--          if it is the longest; others do if there is ARGV[2]
-- ARGV[2]  since when the node's data was complete, if that is known to be long enough
--          ago for all delays so far: from then on it is complete for ever. Or "-"
--
-- Returns  {run id, mark, now, start, before}: the mark as it is now, and the node's
--          clock; start: since when its data can be complete if the node was new when
--          it started. That is now if its data was ever flushed, or if nothing is known;
--          before: the longest restart delay so far. Run id and mark are "" where
--          unknown
local mark = redis.call('GET', KEYS[1])
local server = redis.pcall('INFO', 'server')
local run, up = '', 0
if type(server) == 'string' then
  run = string.match(server, 'run_id:(%x+)') or ''
  up = tonumber(string.match(server, 'uptime_in_seconds:(%d+)')) or 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The uptime is a difference of whole seconds, and may be one too many.
local started = now - math.max(up - 1, 0) * 1000
local start = now
local commands = redis.pcall('INFO', 'commandstats')
if type(commands) == 'string' and not string.find(commands, 'cmdstat_flush%a+:calls=[1-9]')
  and not string.find(commands, 'cmdstat_swapdb:calls=[1-9]') then
  start = started
end
local longest = '0'
local born, writer, lost = now, run, true
if mark then
  local known, since, stored = string.match(mark, '^N1|(%x*)|(%d+)|(%d+)$')
  if not known then return {run, mark, string.format('%.0f', now), string.format('%.0f', start), longest} end
  longest = stored
  born = tonumber(since)
  lost = false
  if known == run or run == '' then
    writer = known
  else
    local kept = redis.pcall('INFO', 'persistence')
    if type(kept) == 'string' and not string.find(kept, 'aof_enabled:1') then
      -- What it has read from a snapshot is older than what it granted last.
      lost = true
      born = math.max(born, started)
    end
  end
  if not lost and since == ARGV[2] then born = 0 end
end
local delay = tonumber(longest)
if lost or ARGV[2] then delay = math.max(delay, tonumber(ARGV[1])) end
local new = string.format('N1|%s|%.0f|%.0f', writer, born, delay)
if new ~= mark then redis.call('SET', KEYS[1], new) end
return {run, new, string.format('%.0f', now), string.format('%.0f', start), longest}
