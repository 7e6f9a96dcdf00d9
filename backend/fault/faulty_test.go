package faultlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	memlock "github.com/mortiselock/lock/memory"
)

const ttl = 6 * time.Second

// bench is a backend with faults, and the store behind it.
type bench struct {
	t      *testing.T
	store  *memlock.Store
	faults *faultlock.Faults
	b      backend.Backend
	direct backend.Backend // another client of the store, without faults
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, queue bool, opts *faultlock.Options, test func(t *testing.T, x *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore(nil)
		inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: store, Queue: queue})
		require.NoError(t, err)
		direct, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: store, Queue: queue})
		require.NoError(t, err)
		f := faultlock.New(inner, opts)
		x := &bench{t: t, store: store, faults: f, b: f.Backend(), direct: direct}
		test(t, x)
		require.NoError(t, x.b.Close())
		if t.Failed() {
			t.Log(f)
		}
	})
}

func request(key string) backend.Request {
	return backend.Request{Key: key, ID: backend.NewID(), TTL: ttl}
}

// mustTry takes a key without any fault.
func (x *bench) mustTry(key string) backend.Hold {
	x.t.Helper()
	req := request(key)
	g, err := x.direct.Try(x.t.Context(), req)
	require.NoError(x.t, err)
	h := backend.HoldOf(req)
	h.Token = g.Token
	return h
}

// held reports whether anybody holds the key.
func (x *bench) held(key string) bool {
	_, err := x.direct.(backend.Inspector).Inspect(context.Background(), key)
	return err == nil
}

// outcome is what a Try under a fault came to.
type outcome struct {
	err           error
	took          time.Duration
	during, after bool // held a moment after the call began, and when it had returned
	muchLater     bool // held three seconds after it began
}

func (x *bench) try(ctx context.Context, fault faultlock.Fault) outcome {
	x.t.Helper()
	x.faults.Next(1, fault, faultlock.OpTry)
	var o outcome
	start := time.Now()
	key := fault.String()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, o.err = x.b.Try(ctx, request(key))
		o.took = time.Since(start)
		o.after = x.held(key)
	}()
	time.Sleep(time.Millisecond)
	o.during = x.held(key)
	time.Sleep(3 * time.Second)
	o.muchLater = x.held(key)
	<-done
	return o
}

// TestEachFault looks at what is applied, what the caller is told, and when.
func TestEachFault(t *testing.T) {
	inBubble(t, false, nil, func(t *testing.T, x *bench) {
		known := func(err error) bool { return errors.Is(err, backend.ErrUnavailable) }
		unknown := func(err error) bool {
			return errors.Is(err, faultlock.ErrInjected) && !known(err) && !errors.Is(err, backend.ErrOutcomeUnknown)
		}
		timeout := func(err error) bool { return unknown(err) && errors.Is(err, context.DeadlineExceeded) }
		ok := func(err error) bool { return err == nil }
		own := errors.New("own error")
		for _, c := range []struct {
			fault                    faultlock.Fault
			limit                    time.Duration // of the context; zero: none
			is                       func(error) bool
			took                     time.Duration
			during, after, muchLater bool
		}{
			{faultlock.Pass(), 0, ok, 0, true, true, true},
			{faultlock.FailBefore(), 0, known, 0, false, false, false},
			{faultlock.FailBefore().WithError(backend.ErrPermanent), 0, func(err error) bool { return errors.Is(err, backend.ErrPermanent) }, 0, false, false, false},
			{faultlock.Drop(), 0, unknown, 0, false, false, false},
			{faultlock.FailAfter(), 0, unknown, 0, true, true, true},
			{faultlock.FailAfter().WithError(own), 0, func(err error) bool { return unknown(err) && errors.Is(err, own) }, 0, true, true, true},
			{faultlock.DelayBefore(time.Second), 0, ok, time.Second, false, true, true},
			{faultlock.DelayBefore(2 * time.Second), time.Second, timeout, time.Second, false, false, false},
			{faultlock.DelayAfter(time.Second), 0, ok, time.Second, true, true, true},
			{faultlock.DelayAfter(2 * time.Second), time.Second, timeout, time.Second, true, true, true},
			{faultlock.Duplicate(), 0, ok, 0, true, true, true},
			{faultlock.ApplyLate(2 * time.Second), 0, unknown, 0, false, false, true},
			{faultlock.ApplyLate(time.Second), 10 * time.Millisecond, unknown, 0, false, false, true},
			{faultlock.DelayBefore(2 * time.Second).IgnoringContext(), time.Second, ok, 2 * time.Second, false, true, true},
			{faultlock.DelayAfter(2 * time.Second).IgnoringContext(), time.Second, ok, 2 * time.Second, true, true, true},
			{faultlock.HangBefore(), time.Second, timeout, time.Second, false, false, false},
			{faultlock.HangAfter(), time.Second, timeout, time.Second, true, true, true},
		} {
			ctx, cancel := context.Background(), context.CancelFunc(func() {})
			if c.limit > 0 {
				ctx, cancel = context.WithTimeout(ctx, c.limit)
			}
			o := x.try(ctx, c.fault)
			cancel()
			name := c.fault.String() + " within " + c.limit.String()
			assert.True(t, c.is(o.err), "%s: %v", name, o.err)
			assert.Equal(t, c.took, o.took, name)
			assert.Equal(t, []bool{c.during, c.after, c.muchLater}, []bool{o.during, o.after, o.muchLater}, name)
			time.Sleep(2 * ttl) // what is left ends
		}
		assert.NotContains(t, x.faults.String(), "pass")
	})
}

// counting counts what reaches the server.
type counting struct {
	backend.Backend
	tries, renewals, releases int
}

func (c *counting) Try(ctx context.Context, r backend.Request) (backend.Grant, error) {
	c.tries++
	return c.Backend.Try(ctx, r)
}
func (c *counting) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	c.renewals++
	return c.Backend.Renew(ctx, h)
}
func (c *counting) Release(ctx context.Context, h backend.Hold) error {
	c.releases++
	return c.Backend.Release(ctx, h)
}

func TestDuplicateGivesTheFirstAnswer(t *testing.T) {
	inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
	require.NoError(t, err)
	c := &counting{Backend: inner}
	f := faultlock.New(c, nil)
	b := f.Backend()
	f.All(faultlock.Duplicate())
	req := request("k")
	g, err := b.Try(t.Context(), req)
	require.NoError(t, err)
	assert.Equal(t, 1, g.Holds)
	_, err = b.Renew(t.Context(), backend.HoldOf(req))
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), backend.HoldOf(req)), "the second answer is that nothing is held")
	assert.Equal(t, []int{2, 2, 2}, []int{c.tries, c.renewals, c.releases})
}

// freesAfterRefusal frees the key right after a try was refused.
type freesAfterRefusal struct {
	backend.Backend
	free func()
}

func (b *freesAfterRefusal) Try(ctx context.Context, r backend.Request) (backend.Grant, error) {
	g, err := b.Backend.Try(ctx, r)
	if err != nil {
		b.free()
	}
	return g, err
}

// The copy of a refused try may find the key free; its caller must then know of the
// grant, since nobody else could give it back.
func TestDuplicateTellsOfTheGrantAfterARefusal(t *testing.T) {
	inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
	require.NoError(t, err)
	first, second := request("k"), request("k")
	_, err = inner.Try(t.Context(), first)
	require.NoError(t, err)
	f := faultlock.New(&freesAfterRefusal{inner, func() {
		assert.NoError(t, inner.Release(t.Context(), backend.HoldOf(first)))
	}}, nil)
	f.All(faultlock.Duplicate(), faultlock.OpTry)
	g, err := f.Backend().Try(t.Context(), second)
	require.NoError(t, err)
	assert.Equal(t, 1, g.Holds)
	require.NoError(t, inner.Release(t.Context(), backend.HoldOf(second)))
}

func TestHealLetsGo(t *testing.T) {
	inBubble(t, false, nil, func(t *testing.T, x *bench) {
		x.faults.All(faultlock.HangBefore())
		errs := make(chan error, 2)
		go func() {
			_, err := x.b.Try(context.Background(), request("before"))
			errs <- err
		}()
		time.Sleep(time.Hour)
		assert.False(t, x.held("before"))
		x.faults.Heal()
		require.NoError(t, <-errs)
		assert.True(t, x.held("before"))

		x.faults.All(faultlock.HangAfter(), faultlock.OpTry)
		go func() {
			_, err := x.b.Try(context.Background(), request("after"))
			errs <- err
		}()
		synctest.Wait()
		assert.True(t, x.held("after"))
		require.Empty(t, errs)
		x.faults.Heal()
		require.NoError(t, <-errs)

		_, err := x.b.Try(t.Context(), request("healed"))
		require.NoError(t, err)
	})
}

// A request that was on its way stays there when the connection heals.
func TestHealLeavesLateRequestsOnTheirWay(t *testing.T) {
	inBubble(t, false, nil, func(t *testing.T, x *bench) {
		h := x.mustTry("k")
		x.faults.Next(1, faultlock.ApplyLate(time.Second), faultlock.OpRelease)
		require.ErrorIs(t, x.b.Release(t.Context(), h), faultlock.ErrInjected)
		x.faults.Heal()
		require.True(t, x.held("k"))
		time.Sleep(time.Second)
		synctest.Wait()
		require.False(t, x.held("k"))
		log := x.faults.Injected()
		require.Len(t, log, 2)
		assert.False(t, log[0].Landed)
		assert.True(t, log[1].Landed)
		assert.NoError(t, log[1].Err)
		assert.Equal(t, time.Second, log[1].At-log[0].At)
		assert.Contains(t, x.faults.String(), `release "k", call 1: apply late (1s), applied now: ok`)
	})
}

func TestCloseEndsWhatIsPending(t *testing.T) {
	inBubble(t, false, nil, func(t *testing.T, x *bench) {
		x.faults.Next(1, faultlock.ApplyLate(time.Minute), faultlock.OpTry)
		_, err := x.b.Try(t.Context(), request("late"))
		require.ErrorIs(t, err, faultlock.ErrInjected)
		errs := make(chan error, 3)
		for _, fault := range []faultlock.Fault{faultlock.HangBefore(), faultlock.HangAfter(), faultlock.DelayBefore(time.Hour)} {
			x.faults.Next(1, fault, faultlock.OpTry)
			go func() {
				_, err := x.b.Try(context.Background(), request("hanging"))
				errs <- err
			}()
			synctest.Wait()
		}
		hints, err := x.b.(backend.Watcher).Watch(context.Background(), "k")
		require.NoError(t, err)
		require.NoError(t, x.b.Close())
		for range 3 {
			require.ErrorIs(t, <-errs, backend.ErrClosed)
		}
		_, open := <-hints
		assert.False(t, open)
		time.Sleep(2 * time.Minute)
		assert.False(t, x.held("late"), "a late request was sent after Close")
		_, err = x.b.Try(context.Background(), request("k"))
		require.ErrorIs(t, err, backend.ErrClosed)
		_, err = x.b.(backend.Watcher).Watch(context.Background(), "k")
		require.ErrorIs(t, err, backend.ErrClosed)
	})
}

// slowClose is a server that a late request reaches just before Close.
type slowClose struct {
	backend.Backend
	entered  chan struct{}
	inside   bool
	closedIn bool
}

func (s *slowClose) Try(ctx context.Context, r backend.Request) (backend.Grant, error) {
	s.inside = true
	close(s.entered)
	<-ctx.Done()
	s.inside = false
	return backend.Grant{}, ctx.Err()
}

func (s *slowClose) Close() error {
	s.closedIn = s.inside
	return s.Backend.Close()
}

func TestCloseWaitsForLateRequestsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
		require.NoError(t, err)
		s := &slowClose{Backend: inner, entered: make(chan struct{})}
		f := faultlock.New(s, nil)
		b := f.Backend()
		f.All(faultlock.ApplyLate(time.Second), faultlock.OpTry)
		ctx, cancel := context.WithCancel(t.Context())
		_, err = b.Try(ctx, request("k"))
		cancel() // which does not reach the late request
		require.ErrorIs(t, err, faultlock.ErrInjected)
		<-s.entered
		require.NoError(t, b.Close())
		assert.False(t, s.closedIn, "the inner backend was closed under a request")
		require.NoError(t, b.Close(), "a second Close does nothing")
	})
}

func TestBatchFaultsAreForSingleHolds(t *testing.T) {
	inBubble(t, false, nil, func(t *testing.T, x *bench) {
		batch := x.b.(backend.BatchRenewer)
		holds := map[string]backend.Hold{}
		keys := []string{"passes", "refused", "dropped", "lost", "doubled", "late", "hangs before", "hangs after"}
		list := make([]backend.Hold, 0, len(keys))
		for _, k := range keys {
			holds[k] = x.mustTry(k)
			list = append(list, holds[k])
		}
		for k, fault := range map[string]faultlock.Fault{
			"refused": faultlock.FailBefore(), "dropped": faultlock.Drop(), "lost": faultlock.FailAfter(),
			"doubled": faultlock.Duplicate(), "late": faultlock.ApplyLate(time.Second),
			"hangs before": faultlock.HangBefore(), "hangs after": faultlock.HangAfter(),
		} {
			x.faults.Add(faultlock.Rule{Key: k, Fault: fault})
		}
		time.Sleep(ttl - 2*time.Second)
		start := time.Now()
		answers := batch.RenewBatch(t.Context(), list)
		assert.Equal(t, time.Duration(0), time.Since(start))
		require.Len(t, answers, len(keys))
		for i, k := range keys {
			switch k {
			case "passes", "doubled":
				assert.NoError(t, answers[i].Err, k)
				assert.Positive(t, answers[i].Validity.For, k)
			case "refused":
				assert.ErrorIs(t, answers[i].Err, backend.ErrUnavailable, k)
			default:
				assert.ErrorIs(t, answers[i].Err, faultlock.ErrInjected, k)
				assert.NotErrorIs(t, answers[i].Err, backend.ErrUnavailable, k)
			}
		}
		time.Sleep(3 * time.Second)
		for _, k := range keys {
			want := k != "refused" && k != "dropped" && k != "hangs before"
			assert.Equal(t, want, x.held(k), k)
		}
	})
}

func TestBatchTakesTheLongestDelays(t *testing.T) {
	inBubble(t, false, nil, func(t *testing.T, x *bench) {
		var list []backend.Hold
		for _, k := range []string{"a", "b", "c", "d"} {
			list = append(list, x.mustTry(k))
		}
		x.faults.Add(
			faultlock.Rule{Key: "a", Fault: faultlock.DelayBefore(time.Second)},
			faultlock.Rule{Key: "b", Fault: faultlock.DelayBefore(500 * time.Millisecond)},
			faultlock.Rule{Key: "c", Fault: faultlock.DelayAfter(time.Second)},
		)
		start := time.Now()
		for _, r := range x.b.(backend.BatchRenewer).RenewBatch(t.Context(), list) {
			assert.NoError(t, r.Err)
		}
		assert.Equal(t, 2*time.Second, time.Since(start))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		for _, r := range x.b.(backend.BatchRenewer).RenewBatch(ctx, list) {
			assert.ErrorIs(t, r.Err, context.DeadlineExceeded)
		}
	})
}

func TestQueueFaults(t *testing.T) {
	inBubble(t, true, nil, func(t *testing.T, x *bench) {
		q := x.b.(backend.Queuer)
		empty := func(why string) {
			t.Helper()
			synctest.Wait()
			assert.Equal(t, 0, x.store.Len(), why)
		}
		for _, fault := range []faultlock.Fault{faultlock.FailBefore(), faultlock.Drop(), faultlock.FailAfter()} {
			x.faults.Next(1, fault, faultlock.OpEnqueue)
			_, err := q.Enqueue(t.Context(), request("k"))
			require.ErrorIs(t, err, faultlock.ErrInjected)
			empty("a place was left behind by " + fault.String())
		}
		x.faults.Next(1, faultlock.HangAfter(), faultlock.OpEnqueue)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := q.Enqueue(ctx, request("k"))
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		empty("a place was left behind by a hanging answer")

		x.faults.Next(1, faultlock.ApplyLate(time.Second), faultlock.OpEnqueue)
		_, err = q.Enqueue(t.Context(), request("k"))
		require.ErrorIs(t, err, faultlock.ErrInjected)
		time.Sleep(time.Second)
		empty("a late place was left behind")
		require.True(t, x.faults.Injected()[len(x.faults.Injected())-1].Landed)

		// The answer to the wait is lost: the grant is there until it is withdrawn.
		tk, err := q.Enqueue(t.Context(), request("k"))
		require.NoError(t, err)
		x.faults.Next(1, faultlock.FailAfter(), faultlock.OpWait)
		_, err = tk.Wait(t.Context())
		require.ErrorIs(t, err, faultlock.ErrInjected)
		require.True(t, x.held("k"))
		x.faults.Next(1, faultlock.FailBefore(), faultlock.OpWithdraw)
		require.ErrorIs(t, tk.Withdraw(t.Context()), backend.ErrUnavailable)
		require.True(t, x.held("k"))
		require.NoError(t, tk.Withdraw(t.Context()))
		empty("withdrawn")

		x.b.(backend.LossNotifier).NotifyLoss(func(backend.ID, error) {})
		tk, err = q.Enqueue(t.Context(), request("k"))
		require.NoError(t, err)
		_, err = tk.Wait(t.Context())
		require.NoError(t, err)
		require.NoError(t, tk.Withdraw(t.Context()))
		assert.Equal(t, 0, x.faults.Lose("k", nil), "what was withdrawn cannot be lost")

		// A second place would be one too many.
		x.faults.Next(1, faultlock.Duplicate(), faultlock.OpEnqueue)
		n := len(x.faults.Injected())
		tk, err = q.Enqueue(t.Context(), request("k"))
		require.NoError(t, err)
		require.NoError(t, tk.Withdraw(t.Context()))
		empty("a duplicated place")
		assert.Len(t, x.faults.Injected(), n, "what passes is not in the log")
	})
}

func TestInspectAndForceReleaseMeetFaults(t *testing.T) {
	inBubble(t, false, nil, func(t *testing.T, x *bench) {
		h := x.mustTry("k")
		x.faults.All(faultlock.FailBefore(), faultlock.OpInspect, faultlock.OpForceRelease)
		_, err := x.b.(backend.Inspector).Inspect(t.Context(), "k")
		require.ErrorIs(t, err, backend.ErrUnavailable)
		require.ErrorIs(t, x.b.(backend.ForceReleaser).ForceRelease(t.Context(), "k", h.Token), backend.ErrUnavailable)
		x.faults.Heal()
		r, err := x.b.(backend.Inspector).Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, x.b.(backend.ForceReleaser).ForceRelease(t.Context(), "k", r.Token))
		assert.False(t, x.held("k"))
	})
}

// handOver is a backend that can hand over, which none of this project does yet.
type handOver struct{ backend.Backend }

func (h handOver) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	if err := h.Release(ctx, from); err != nil {
		return backend.Grant{}, err
	}
	return h.Try(ctx, to)
}

func TestHandOverMeetsFaults(t *testing.T) {
	inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
	require.NoError(t, err)
	f := faultlock.New(handOver{inner}, nil)
	b := f.Backend()
	from, to := request("k"), request("k")
	_, err = b.Try(t.Context(), from)
	require.NoError(t, err)
	f.Next(1, faultlock.FailBefore(), faultlock.OpHandOver)
	_, err = b.(backend.HandOverer).HandOver(t.Context(), backend.HoldOf(from), to)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	_, err = b.(backend.HandOverer).HandOver(t.Context(), backend.HoldOf(from), to)
	require.NoError(t, err)
	require.ErrorIs(t, b.Release(t.Context(), backend.HoldOf(from)), backend.ErrNotHeld)
	require.NoError(t, b.Release(t.Context(), backend.HoldOf(to)))
}

// stalling takes a second longer for everything.
type stalling struct{ backend.Backend }

func (b stalling) Try(ctx context.Context, r backend.Request) (backend.Grant, error) {
	time.Sleep(time.Second)
	return b.Backend.Try(ctx, r)
}
func (b stalling) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	time.Sleep(time.Second)
	return b.Backend.Renew(ctx, h)
}
func (b stalling) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	time.Sleep(time.Second)
	return b.Backend.(backend.BatchRenewer).RenewBatch(ctx, holds)
}

// The time of the inner backend is told without that of the faults, whether the caller
// gets the answer or not.
func TestAnsweredTellsTheTimeOfTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
		require.NoError(t, err)
		var told []string
		f := faultlock.New(stalling{inner}, &faultlock.Options{Answered: func(op faultlock.Op, key string, took time.Duration, err error) {
			told = append(told, fmt.Sprint(op, " ", key, " ", took, " ", err == nil))
		}})
		b := f.Backend()
		isTold := func(want ...string) {
			t.Helper()
			assert.Equal(t, want, told)
			told = nil
		}
		req := request("k")
		_, err = b.Try(t.Context(), req)
		require.NoError(t, err)
		isTold("try k 1s true")
		hold, gone := backend.HoldOf(req), backend.HoldOf(request("gone"))
		renew := func() { _, _ = b.Renew(t.Context(), hold) }
		f.Next(1, faultlock.FailBefore())
		renew()
		assert.Empty(t, told, "it was not sent")
		for _, fault := range []faultlock.Fault{faultlock.FailAfter(), faultlock.DelayBefore(time.Second), faultlock.DelayAfter(time.Second)} {
			f.Next(1, fault)
			renew()
			isTold("renew k 1s true")
		}
		batch := b.(backend.BatchRenewer)
		batch.RenewBatch(t.Context(), []backend.Hold{hold, gone})
		isTold("renew k 1s true", "renew gone 1s false")
		f.Next(1, faultlock.FailAfter())
		batch.RenewBatch(t.Context(), []backend.Hold{hold, gone})
		isTold("renew k 1s true", "renew gone 1s false")
		require.NoError(t, b.Close())
	})
}
