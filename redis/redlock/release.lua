-- Ends the hold on one node, and nothing but it, and tells those who listen. Before it
-- stands redis/internal/wire/tell.lua.
--
-- KEYS[1]  record of the key, and the channel on which is told that a hold has ended:
--          half of the acquisition id, which releases nothing, and how many listen
-- KEYS[2]  the node's mark
-- ARGV[1]  how the record begins: R1|acquisition id| or R1|acquisition id|attempt|
-- ARGV[2]  left out when it is not worth telling
--
-- Returns   1  released
--           n  more than one: released, and n-2 connections listen
--           0  the node does not have the hold; nothing was changed
local record = redis.call('GET', KEYS[1])
local mine = record and string.sub(record, 1, #ARGV[1]) == ARGV[1]
if mine then redis.call('DEL', KEYS[1]) end
local listen
if ARGV[2] and (mine or not record) then
  -- Where the key is free it is told too: the hold was not known here, and has ended. The
  -- id has all nodes tell the same part of a crowd.
  listen = redis.pcall('PUBSUB', 'NUMSUB', KEYS[1])[2]
  if listen ~= 0 then
    tell(listen, #KEYS[2] - #'node' + 1, tonumber(string.sub(ARGV[1], 4, 11), 16), string.sub(ARGV[1], 4, 19) .. '|')
  end
end
if mine then return listen and 2 + listen or 1 end
-- A write that changes nothing: a replica, whose "no" proves nothing, answers
-- READONLY here.
redis.call('PERSIST', KEYS[2])
return 0
