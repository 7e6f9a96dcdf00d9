//go:build unix

package filelock

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/mortiselock/lock/backend"
)

// model is the record semantics in a few lines, for comparison with the files.
type model struct {
	now   time.Duration
	owner string
	token uint64
	ends  map[backend.ID]time.Duration
}

func (m *model) live() int {
	for id, end := range m.ends {
		if end <= m.now {
			delete(m.ends, id)
		}
	}
	return len(m.ends)
}

func (m *model) holds(id backend.ID) bool {
	m.live()
	_, ok := m.ends[id]
	return ok
}

// Any sequence of operations of two Lockers in one directory does what the model
// does.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "filelock-model-*")
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		var boot fakeBoot
		var backends []*files
		for range 2 {
			b, err := newFiles(context.Background(), dir, nil)
			require.NoError(t, err)
			defer b.Close()
			boot.set(b)
			backends = append(backends, b)
		}
		ctx := context.Background()
		m := &model{ends: map[backend.ID]time.Duration{}}
		var requests []backend.Request
		var lastToken uint64
		pick := func(t *rapid.T) (*files, backend.Request) {
			if len(requests) == 0 {
				t.Skip("no request yet")
			}
			return backends[rapid.IntRange(0, 1).Draw(t, "backend")], requests[rapid.IntRange(0, len(requests)-1).Draw(t, "request")]
		}
		try := func(t *rapid.T, b *files, r backend.Request) {
			g, err := b.Try(ctx, r)
			switch {
			case m.live() > 0 && !m.holds(r.ID) && (r.Owner == "" || r.Owner != m.owner):
				require.ErrorIs(t, err, backend.ErrHeld)
				return
			case m.live() == 0:
				m.owner = r.Owner
				require.NoError(t, err)
				require.Greater(t, g.Token, lastToken)
				m.token, lastToken = g.Token, g.Token
			}
			require.NoError(t, err)
			m.ends[r.ID] = max(m.ends[r.ID], m.now+r.TTL)
			require.Equal(t, m.token, g.Token)
			require.Equal(t, m.live(), g.Holds)
		}
		ttl := rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.IntRange(100, 1000).Draw(t, "ms")) * time.Millisecond
		})
		t.Repeat(map[string]func(*rapid.T){
			"new": func(t *rapid.T) {
				r := request(rapid.SampledFrom([]string{"", "", "me", "you"}).Draw(t, "owner"), ttl.Draw(t, "ttl"))
				requests = append(requests, r)
				try(t, backends[rapid.IntRange(0, 1).Draw(t, "backend")], r)
			},
			"repeat": func(t *rapid.T) { b, r := pick(t); try(t, b, r) },
			"renew": func(t *rapid.T) {
				b, r := pick(t)
				r.TTL = ttl.Draw(t, "ttl")
				_, err := b.Renew(ctx, backend.HoldOf(r))
				if !m.holds(r.ID) {
					require.ErrorIs(t, err, backend.ErrNotHeld)
					return
				}
				require.NoError(t, err)
				m.ends[r.ID] = max(m.ends[r.ID], m.now+r.TTL)
			},
			"release": func(t *rapid.T) {
				b, r := pick(t)
				err := b.Release(ctx, backend.HoldOf(r))
				if !m.holds(r.ID) {
					require.ErrorIs(t, err, backend.ErrNotHeld)
					return
				}
				require.NoError(t, err)
				delete(m.ends, r.ID)
			},
			"force": func(t *rapid.T) {
				b, _ := pick(t)
				token := m.token - uint64(rapid.IntRange(0, 1).Draw(t, "older"))
				err := b.ForceRelease(ctx, "key", token)
				if m.live() == 0 || token != m.token {
					require.ErrorIs(t, err, backend.ErrNotHeld)
					return
				}
				require.NoError(t, err)
				clear(m.ends)
			},
			"time": func(t *rapid.T) {
				d := time.Duration(rapid.IntRange(1, 600).Draw(t, "ms")) * time.Millisecond
				boot.pass(d)
				m.now += d
			},
			"": func(t *rapid.T) {
				rec, err := backends[rapid.IntRange(0, 1).Draw(t, "backend")].Inspect(ctx, "key")
				if m.live() == 0 {
					require.ErrorIs(t, err, backend.ErrNotHeld)
					return
				}
				require.NoError(t, err)
				require.Equal(t, m.token, rec.Token)
				require.Equal(t, len(m.ends), rec.Holds)
				var ends []time.Duration
				for _, e := range m.ends {
					ends = append(ends, e)
				}
				require.Equal(t, slices.Max(ends)-m.now, rec.Remaining)
			},
		})
	})
}
