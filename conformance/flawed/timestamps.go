package flawed

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

// timestamps is what the locks of the SETNX page have in common: the record does
// not expire on the server. Its value says when it is to count as old, by the
// clock of the client that wrote it, and here also whose it is, so that renewal
// and release are sound and the takeover alone is not.
type timestamps struct {
	single
	ahead time.Duration // by how much the clock of this client is ahead
	won   *sync.Map     // the acquisitions that this client was granted
}

func newTimestamps(s single) timestamps { return timestamps{single: s, won: &sync.Map{}} }

func (t timestamps) clock() int64 { return time.Now().Add(t.ahead).UnixMilli() }

// stamp is the value of a record that lasts for the TTL from now.
func (t timestamps) stamp(id backend.ID, ttl time.Duration) string {
	return id.Hex() + " " + strconv.FormatInt(t.clock()+ttl.Milliseconds(), 10)
}

// old reports whether the time of a record is over. No record is not an old one.
func (t timestamps) old(value string) bool {
	_, digits, ok := strings.Cut(value, " ")
	until, err := strconv.ParseInt(digits, 10, 64)
	return ok && err == nil && until <= t.clock()
}

// grant notes that the request was granted.
func (t timestamps) grant(req backend.Request, sent backend.Instant) (backend.Grant, error) {
	t.won.Store(req.ID, nil)
	return granted(sent, req.TTL), nil
}

// refuse answers a request that found a record in its way. It may be its own.
func (t timestamps) refuse(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if _, mine := t.won.Load(req.ID); !mine {
		return backend.Grant{}, held(req.Key)
	}
	v, err := t.Renew(ctx, backend.HoldOf(req))
	if errors.Is(err, backend.ErrNotHeld) {
		err = held(req.Key)
	}
	return backend.Grant{Holds: 1, Validity: v}, err
}

// The id and the time of a record are compared, and the record replaced or
// deleted, in one step.
var (
	replaceIfFresh = goredis.NewScript(`
		local id, till = string.match(redis.call('GET', KEYS[1]) or '', '^(%x+) (%d+)$')
		if id ~= ARGV[1] or tonumber(till) <= tonumber(ARGV[2]) then return 0 end
		redis.call('SET', KEYS[1], ARGV[3])
		return 1`)

	deleteIfFresh = goredis.NewScript(`
		local id, till = string.match(redis.call('GET', KEYS[1]) or '', '^(%x+) (%d+)$')
		if id ~= ARGV[1] or tonumber(till) <= tonumber(ARGV[2]) then return 0 end
		return redis.call('DEL', KEYS[1])`)
)

func (t timestamps) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	sent := now()
	n, err := replaceIfFresh.Run(ctx, t.rdb, []string{t.name(hold.Key)}, hold.ID.Hex(), t.clock(), t.stamp(hold.ID, hold.TTL)).Int()
	return renewed(sent, hold.TTL, n == 1, err)
}

func (t timestamps) Release(ctx context.Context, hold backend.Hold) error {
	n, err := deleteIfFresh.Run(ctx, t.rdb, []string{t.name(hold.Key)}, hold.ID.Hex(), t.clock()).Int()
	if err == nil {
		t.won.Delete(hold.ID)
	}
	return released(n == 1, err)
}

// read returns the value of the record, or "" when there is none.
func (t timestamps) read(ctx context.Context, key string) (string, error) {
	value, err := t.rdb.Get(ctx, t.name(key)).Result()
	if errors.Is(err, goredis.Nil) {
		err = nil
	}
	return value, err
}
