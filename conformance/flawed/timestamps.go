package flawed

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

// timestamps is what the locks of the SETNX page have in common: the record does
// not expire on the server, and its value is the time at which it is to count as
// old. Each client remembers what it wrote, which serves as the id of its hold:
// renewal and release compare it on the server.
type timestamps struct {
	single
	ahead   time.Duration // by how much the clock of this client's machine is ahead
	written *sync.Map     // acquisition id -> the value that it has written
}

func newTimestamps(s single) timestamps { return timestamps{single: s, written: &sync.Map{}} }

var replaceIfMine = goredis.NewScript(`
	if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
	redis.call('SET', KEYS[1], ARGV[2])
	return 1`)

func (t timestamps) clock() time.Time { return time.Now().Add(t.ahead) }

// stamp is the value of a record that lasts for the TTL from now.
func (t timestamps) stamp(ttl time.Duration) string {
	return strconv.FormatInt(t.clock().Add(ttl).UnixNano(), 10)
}

// old reports whether a value says that its record has ended.
func (t timestamps) old(value string) bool {
	until, _ := strconv.ParseInt(value, 10, 64)
	return t.clock().UnixNano() > until
}

// won notes the value that an acquisition has written.
func (t timestamps) won(req backend.Request, value string, sent backend.Instant) backend.Grant {
	t.written.Store(req.ID, value)
	return granted(sent, req.TTL)
}

// mine is the value that the acquisition has written, unless it is old.
func (t timestamps) mine(id backend.ID) (string, error) {
	value, ok := t.written.Load(id)
	if !ok || t.old(value.(string)) {
		return "", backend.ErrNotHeld
	}
	return value.(string), nil
}

func (t timestamps) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	value, err := t.mine(hold.ID)
	if err != nil {
		return backend.Validity{}, err
	}
	sent, next := now(), t.stamp(hold.TTL)
	n, err := replaceIfMine.Run(ctx, t.rdb, []string{name(hold.Key)}, value, next).Int()
	if n == 1 {
		t.written.Store(hold.ID, next)
	}
	return renewed(sent, hold.TTL, n == 1, err)
}

func (t timestamps) Release(ctx context.Context, hold backend.Hold) error {
	value, err := t.mine(hold.ID)
	if err != nil {
		t.written.Delete(hold.ID)
		return err
	}
	n, err := deleteIfMine.Run(ctx, t.rdb, []string{name(hold.Key)}, value).Int()
	if err == nil {
		t.written.Delete(hold.ID)
	}
	return released(n == 1, err)
}

// read returns the value of the record, or "" when there is none.
func (t timestamps) read(ctx context.Context, key string) (string, error) {
	value, err := t.rdb.Get(ctx, name(key)).Result()
	if errors.Is(err, goredis.Nil) {
		err = nil
	}
	return value, err
}
