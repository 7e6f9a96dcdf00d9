-- Grants the key on one node, or says who has it there. A token that is proposed
-- with the request is accepted in the same step, if it may be.
--
-- KEYS[1]  record of the key
-- KEYS[2]  the token that was accepted last, and for which acquisition
-- KEYS[3]  the node's mark
-- KEYS[4]  the floor: a token that is accepted is larger
-- ARGV[1]  record to write: R1|acquisition id|attempt|since ms|details
-- ARGV[2]  TTL in milliseconds
-- ARGV[3]  for how many milliseconds a node that has lost its data grants nothing,
--          unless its mark says longer
-- ARGV[4]  the token that is proposed, 0: none yet; left out when no token is wanted
-- ARGV[5]  for how many milliseconds the node remembers the token
--
-- Returns  number          granted, and the token accepted if one was proposed: the
--                          node's clock in microseconds
--          {token, us, 0}  granted; the smallest token that this node would accept,
--                          and its clock
--          token           granted before, with a token accepted for it
--          {record, ms}    held by somebody else for so long
--          {ms}            the node has lost its data, and grants nothing for so long
--          -1  the record is not ours
--          -2  the accepted token is not ours
--          -3  the tokens are used up
--          -4  the floor is not ours
-- Mostly the key is free and there is no floor, and one call tells both. MGET would not tell
-- what is missing from what is not ours.
local some = redis.call('EXISTS', KEYS[1], KEYS[4]) > 0
local record = some and redis.call('GET', KEYS[1])
local mine = record and string.sub(record, 1, 36) == string.sub(ARGV[1], 1, 36)
if record and not mine then
  if string.sub(record, 1, 3) ~= 'R1|' then return -1 end
  -- A write that changes nothing: a replica answers READONLY here.
  redis.call('PERSIST', KEYS[3])
  return {record, redis.call('PTTL', KEYS[1])}
end

local mark = redis.call('GET', KEYS[3])
local time
if not mine and (not mark or not string.find(mark, '|0|', 1, true)) then
  -- The node has lost its data since it was first used: it may have voted for a
  -- lease that still runs.
  time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local born, longest = string.match(mark or '', '^N1|%x*|(%d+)|(%d+)$')
  if not born then
    born, longest = now, 0
    redis.call('SET', KEYS[3], string.format('N1||%.0f|%s', now, ARGV[3]))
  end
  local delay = math.max(tonumber(ARGV[3]), tonumber(longest))
  if now - born < delay then
    return {string.format('%.0f', born + delay - now)}
  end
end

local answer = 1
local accepts = false
if ARGV[4] then
  local id = string.sub(ARGV[1], 4, 35)
  local accepted = redis.call('GET', KEYS[2])
  local last = 0
  if accepted then
    local number = string.match(accepted, '^(%d+)|%x+$')
    if not number then return -2 end
    if mine and accepted == number .. '|' .. id then answer = number end
    last = tonumber(number)
  end
  if answer == 1 then
    -- From 2^53 on, Lua's numbers no longer tell neighbours apart.
    if last >= 9007199254740991 then return -3 end
    local floor = some and redis.pcall('GET', KEYS[4])
    if floor then
      if type(floor) == 'table' or not tonumber(floor) then return -4 end
      last = math.max(last, tonumber(floor))
    end
    time = time or redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local least = math.max(last + 1, now)
    local token = tonumber(ARGV[4])
    -- A token is never behind the node's clock, so that tokens go on rising after a
    -- loss of data, nor far ahead of it, so that nobody can use them up.
    if token >= least and token <= now + 50000 then
      accepts = ARGV[4] .. '|' .. id
      answer = now
    else
      answer = {least, now, 0}
    end
  end
end
if not mine then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
else
  local function attempt(r) return tonumber(string.match(r, '^R1|%x+|(%d+)|')) or 0 end
  if attempt(record) <= attempt(ARGV[1]) then
    -- The record takes the number of this attempt, so that what still clears away an
    -- earlier one leaves it alone. It never goes back to that of an earlier one, which
    -- comes late. Since when it is held, and by whom, stays.
    local taken = string.match(ARGV[1], '^R1|%x+|%d+') .. string.match(record, '^R1|%x+|%d+(|.*)$')
    local left = math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2]))
    redis.call('SET', KEYS[1], taken, 'PX', string.format('%.0f', left))
  end
end
if accepts then redis.call('SET', KEYS[2], accepts, 'PX', ARGV[5]) end
return answer
