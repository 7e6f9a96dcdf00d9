// These tests move copies of a service from one store to another, as a rolling deploy does.
package rolling

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	_ "github.com/mortiselock/lock/etcd"
	_ "github.com/mortiselock/lock/file"
	"github.com/mortiselock/lock/internal/servertest"
	_ "github.com/mortiselock/lock/mysql"
	_ "github.com/mortiselock/lock/redis"
	_ "github.com/mortiselock/lock/redis/redlock"
	_ "github.com/mortiselock/lock/zookeeper"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(silentVar); url != "" {
		runSilent(url)
		return
	}
	goredis.SetLogger(quiet{})
	conformance.Child(pairOf)
	if os.Getenv(copyVar) != "" {
		runCopy()
		return
	}
	goleak.VerifyTestMain(patient{servertest.StopAfter(m)})
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// patient lets clients that were closed find it out.
type patient struct{ servertest.Runner }

func (p patient) Run() int {
	code := p.Runner.Run()
	for end := time.Now().Add(20 * time.Second); goleak.Find() != nil && time.Now().Before(end); {
	}
	return code
}

// step is what a copy uses.
type step string

const (
	stepOld  step = "old"
	stepBoth step = "both"
	stepNew  step = "new"
)

// change is what a copy has to know.
type change struct{ Old, New, Key string }

const ttl = time.Second

// open opens what a copy of that step uses.
func (c change) open(ctx context.Context, s step) (lock.Locker, error) {
	opts := &lock.Options{}
	switch s {
	case stepOld:
		return lock.Open(ctx, c.Old, opts)
	case stepNew:
		return lock.Open(ctx, c.New, opts)
	}
	return openBoth(ctx, c.Old, c.New, opts)
}

func openBoth(ctx context.Context, old, next string, opts *lock.Options) (lock.Locker, error) {
	first, err := lock.Open(ctx, old, opts)
	if err != nil {
		return nil, err
	}
	second, err := lock.Open(ctx, next, opts)
	if err != nil {
		_ = first.Close()
		return nil, err
	}
	return lock.Both(first, second)
}

// work holds the key again and again until ctx ends, and reports every hold: when it
// began, and later, before anybody else may come in, when it ended.
func (c change) work(ctx context.Context, l lock.Locker, begin func(token uint64, at time.Time) (end func(at time.Time))) error {
	var opts []lock.Option
	if g, ok := l.(interface{ Guarantees() backend.Guarantees }); ok {
		opts = append(opts, lock.WithTTL(g.Guarantees().NearestTTL(ttl)))
	}
	for {
		lease, err := l.Acquire(ctx, c.Key, opts...)
		if ctx.Err() != nil {
			if err == nil {
				_ = lease.Release(ctx)
			}
			return nil
		}
		if err != nil {
			return err
		}
		end := begin(lease.Token(), time.Now())
		var last time.Time
		for until := time.Now().Add(time.Duration(2+rand.IntN(10)) * time.Millisecond); ; {
			if now := time.Now(); lease.Context().Err() == nil && now.Before(until) {
				last = now
				time.Sleep(time.Millisecond)
				continue
			}
			break
		}
		if last.IsZero() {
			last = time.Now()
		}
		end(last)
		_ = lease.Release(ctx)
	}
}

// hold is a time in which a copy was inside.
type hold struct {
	copy     string
	step     step
	token    uint64
	from, to time.Time
}

// journal is the oracle.
type journal struct {
	mu    sync.Mutex
	holds []*hold
}

func (j *journal) begin(copy string, s step, token uint64, at time.Time) *hold {
	h := &hold{copy: copy, step: s, token: token, from: at, to: at}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.holds = append(j.holds, h)
	return h
}

func (j *journal) end(h *hold, at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	h.to = at
}

func (j *journal) len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.holds)
}

// judge returns how many holds began while another one lasted, how many had a token that
// was not larger than that of the hold before, and the first few of each.
func (j *journal) judge() (overlaps, falls int, evidence string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	slices.SortFunc(j.holds, func(a, b *hold) int { return a.from.Compare(b.from) })
	var text strings.Builder
	for i := 1; i < len(j.holds); i++ {
		before, h := j.holds[i-1], j.holds[i]
		overlap, fall := h.from.Before(before.to), h.token <= before.token
		if overlap {
			overlaps++
			if before.to.After(h.to) {
				h.to = before.to // it still lasts
			}
		}
		if fall {
			falls++
		}
		if (overlap || fall) && overlaps+falls < 6 {
			fmt.Fprintf(&text, "%s had %d until %s, %s had %d from %s\n", before.copy, before.token, before.to.Format(".000000"), h.copy, h.token, h.from.Format(".000000"))
		}
	}
	return overlaps, falls, text.String()
}

// fleet is all copies of the service.
type fleet struct {
	t       *testing.T
	journal *journal
	start   func(name string, s step) (stop func(roughly bool))
	stops   []func(roughly bool)
	n       int
}

// deploy replaces copy i by one of the step.
func (f *fleet) deploy(i int, s step, roughly bool) {
	if f.stops[i] != nil {
		f.stops[i](roughly)
	}
	f.n++
	f.stops[i] = f.start(fmt.Sprintf("copy %d (%s)", f.n, s), s)
}

// progress waits until some more holds were seen.
func (f *fleet) progress(holds int) {
	for begun, end := f.journal.len(), time.Now().Add(time.Minute); f.journal.len() < begun+holds; time.Sleep(time.Millisecond) {
		require.True(f.t, time.Now().Before(end), "the copies have stopped")
	}
}

// roll moves all copies through the steps, each from one to the next, some of them back
// again in between, and ends them.
func (f *fleet) roll(copies int, roughly bool, steps ...step) {
	f.stops = make([]func(bool), copies)
	for i := range f.stops {
		f.deploy(i, steps[0], false)
	}
	f.progress(5)
	for s := 1; s < len(steps); s++ {
		for _, i := range rand.Perm(copies) {
			f.deploy(i, steps[s], roughly && rand.IntN(3) == 0)
			f.progress(6)
			if rand.IntN(4) == 0 { // it is taken back for a while
				f.deploy(i, steps[s-1], roughly && rand.IntN(3) == 0)
				f.progress(6)
				f.deploy(i, steps[s], false)
			}
		}
		f.progress(10)
	}
	for _, stop := range f.stops {
		stop(false)
	}
}

// rollUntilWrong repeats a plain change of the URL, there and back, until the journal shows
// two holders and a token that falls: the control of what roll is to show.
func (f *fleet) rollUntilWrong(copies int, roughly bool) {
	for end := time.Now().Add(5 * time.Minute); ; {
		f.roll(copies, roughly, stepOld, stepNew)
		overlaps, falls, _ := f.journal.judge()
		if overlaps > 0 && falls > 0 {
			return
		}
		require.True(f.t, time.Now().Before(end), "a plain change of the URL has %d overlaps and %d tokens that fall: the oracle sees too little", overlaps, falls)
	}
}

// threads is a start for copies that are goroutines of this process.
func (f *fleet) threads(c change) {
	f.start = func(name string, s step) func(bool) {
		l, err := c.open(f.t.Context(), s)
		require.NoError(f.t, err)
		ctx, cancel := context.WithCancel(f.t.Context())
		var done sync.WaitGroup
		done.Go(func() {
			assert.NoError(f.t, c.work(ctx, l, func(token uint64, at time.Time) func(time.Time) {
				h := f.journal.begin(name, s, token, at)
				return func(at time.Time) { f.journal.end(h, at) }
			}))
		})
		return func(bool) {
			cancel()
			done.Wait()
			assert.NoError(f.t, l.Close())
		}
	}
}
