package engine

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

// usedKeys are the keys that a run has named in its calls. A nil *usedKeys
// remembers nothing.
type usedKeys struct {
	mu   sync.Mutex
	keys map[string]struct{}
}

func (u *usedKeys) add(key string) {
	if u == nil || key == "" {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.keys == nil {
		u.keys = map[string]struct{}{}
	}
	u.keys[key] = struct{}{}
}

// tidyLimit bounds the tidying of all keys.
const tidyLimit = 30 * time.Second

// tidy ends the holds that are left on the keys of the run, by force where it is
// possible.
func (s *Settings) tidy() {
	if s.used == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), tidyLimit)
	defer cancel()
	b, err := s.openBackend(ctx)
	if err != nil {
		s.Logf("the keys of the run are left to expire: %v", err)
		return
	}
	defer b.Close()
	s.used.mu.Lock()
	defer s.used.mu.Unlock()
	keys := make(chan string)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for key := range keys {
				if ctx.Err() == nil {
					s.tidyKey(ctx, b, key)
				}
			}
		})
	}
	for key := range s.used.keys {
		if strings.HasPrefix(key, s.KeySpace) && backend.ValidateKey(key) == nil {
			keys <- key
		}
	}
	close(keys)
	wg.Wait()
	if f, ok := backend.As[backend.Forgetter](b); ok {
		if err := f.Forget(ctx, s.KeySpace); err != nil {
			s.Logf("what is kept of the keys of the run beyond their holds stays: %v", err)
		}
	}
}

// tidyKey takes the key and gives it back, which removes what an expired record
// may have left.
func (s *Settings) tidyKey(ctx context.Context, b backend.Backend, key string) {
	for range 2 {
		req := backend.Request{Key: key, ID: backend.NewID(), TTL: s.TTL}
		_, err := b.Try(ctx, req)
		if !errors.Is(err, backend.ErrHeld) {
			_ = b.Release(ctx, backend.HoldOf(req))
			return
		}
		inspector, inspects := backend.As[backend.Inspector](b)
		forcer, forces := backend.As[backend.ForceReleaser](b)
		if !inspects || !forces {
			return
		}
		if rec, err := inspector.Inspect(ctx, key); err == nil {
			_ = forcer.ForceRelease(ctx, key, rec.Token)
		}
	}
}
