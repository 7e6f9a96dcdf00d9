-- Writes down which run of the server this is, before the other scripts become
-- known to it. A server forgets its scripts when it starts, so that none of them
-- runs after a restart that was not noticed here.
--
-- KEYS[1]  the node's mark: N1|run id|since when its data is complete, 0 for ever
-- ARGV[1]  given to trust a node without a mark: it is new, with its fellows
--
-- Returns  {run id, mark}, both "" where unknown
local mark = redis.call('GET', KEYS[1])
local server = redis.pcall('INFO', 'server')
local run, up = '', 0
if type(server) == 'string' then
  run = string.match(server, 'run_id:(%x+)') or ''
  up = tonumber(string.match(server, 'uptime_in_seconds:(%d+)')) or 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known, born = '', now
if mark then
  known, born = string.match(mark, '^N1|(%x*)|(%d+)$')
  if not known then return {run, mark} end
  born = tonumber(born)
  if known == run or run == '' then return {run, mark} end
  local kept = redis.pcall('INFO', 'persistence')
  if type(kept) == 'string' and not string.find(kept, 'aof_enabled:1') then
    -- What it has read from a snapshot is older than what it granted last.
    born = math.max(born, now - up * 1000)
  end
elseif ARGV[1] then
  born = 0
end
mark = string.format('N1|%s|%.0f', run, born)
redis.call('SET', KEYS[1], mark)
return {run, mark}
