package redislock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// holdUp keeps requests that contain a text from being sent.
type holdUp struct {
	text string
	met  int           // how many there are
	over chan struct{} // closed when they may go on
}

// traffic is a hook that notes the requests of a client, and holds up those that
// contain a text.
type traffic struct {
	mu       sync.Mutex
	requests [][]goredis.Cmder
	ctxs     []context.Context
	at       []backend.Instant
	holds    []*holdUp
	refuse   error // what pipelines are refused with
}

func (h *traffic) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (h *traffic) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		_ = h.note(ctx, []goredis.Cmder{cmd})
		return next(ctx, cmd)
	}
}

func (h *traffic) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		if err := h.note(ctx, cmds); err != nil {
			return err
		}
		return next(ctx, cmds)
	}
}

func (h *traffic) note(ctx context.Context, cmds []goredis.Cmder) error {
	h.mu.Lock()
	h.requests, h.ctxs, h.at = append(h.requests, cmds), append(h.ctxs, ctx), append(h.at, backend.SystemClock().Now())
	var held *holdUp
	for _, hold := range h.holds {
		if slices.ContainsFunc(cmds, func(c goredis.Cmder) bool { return mentions(c, hold.text) }) {
			held = hold
			hold.met++
		}
	}
	var refuse error
	if len(cmds) > 0 && strings.HasPrefix(cmds[0].Name(), "eval") { // and not those of a new connection
		refuse = h.refuse
	}
	h.mu.Unlock()
	if held != nil {
		<-held.over
	}
	return refuse
}

// holdUp holds up the requests that contain the text. met waits for a number of
// them, and open lets them go.
func (h *traffic) holdUp(t *testing.T, text string) (met func(n int), open func()) {
	hold := &holdUp{text: text, over: make(chan struct{})}
	h.mu.Lock()
	h.holds = append(h.holds, hold)
	h.mu.Unlock()
	open = sync.OnceFunc(func() { close(hold.over) })
	t.Cleanup(open)
	return func(n int) {
		backendtest.Eventually(t, "requests are held up", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return hold.met == n
		})
	}, open
}

func mentions(cmd goredis.Cmder, text string) bool {
	return strings.Contains(fmt.Sprint(cmd.Args()...), text)
}

// with are the requests that contain a text, by how many commands each has.
func (h *traffic) with(text string) (sizes []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, cmds := range h.requests {
		if slices.ContainsFunc(cmds, func(c goredis.Cmder) bool { return mentions(c, text) }) {
			sizes = append(sizes, len(cmds))
		}
	}
	return sizes
}

// busy is a backend whose requests are all held up: commands that are given to it
// from now on wait until open is called. They wait for longer than any test.
func busy(t *testing.T, addr string) (b *redisBackend, h *traffic, open func()) {
	t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true, ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = c.Close() })
	b = backendOn(t, c)
	for range 2 { // the server knows the scripts
		hold, _ := backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
		require.NoError(t, b.Release(t.Context(), hold))
	}
	// Pipelines have connections of their own.
	_, err := c.Pipelined(t.Context(), func(pipe goredis.Pipeliner) error { return pipe.Ping(t.Context()).Err() })
	require.NoError(t, err)
	h = &traffic{}
	c.AddHook(h)
	b.together.patience = time.Hour
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	met, release := h.holdUp(t, "held-up")
	for i := range maxFlights {
		wg.Go(func() {
			req := redistest.Request(fmt.Sprintf("held-up/%d/%s", i, backendtest.UniqueKey(t)))
			_, err := b.Try(context.WithoutCancel(t.Context()), req)
			require.NoError(t, err)
		})
	}
	met(maxFlights)
	return b, h, func() { release(); wg.Wait() }
}

func queueLength(b *redisBackend) int {
	b.together.mu.Lock()
	defer b.together.mu.Unlock()
	return len(b.together.queue)
}

// outcome is what a call in a goroutine of its own returned.
type outcome struct {
	req   backend.Request
	grant backend.Grant
	err   error
}

// trying calls Try in a goroutine and returns when its command is in the queue.
func trying(ctx context.Context, t *testing.T, b *redisBackend, req backend.Request) <-chan outcome {
	t.Helper()
	out := make(chan outcome, 1)
	before := queueLength(b)
	go func() {
		g, err := b.Try(ctx, req)
		out <- outcome{req, g, err}
	}()
	backendtest.Eventually(t, "the command waits to be sent", func() bool { return queueLength(b) > before })
	return out
}

type ctxKey struct{}

func TestLoneCallerSendsItself(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	h := &traffic{}
	c.AddHook(h)
	key := backendtest.UniqueKey(t)
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), ctxKey{}, "mine"), time.Minute)
	defer cancel()
	_, err := b.Try(ctx, redistest.Request(key))
	require.NoError(t, err)
	h.mu.Lock()
	defer h.mu.Unlock()
	require.NotEmpty(t, h.ctxs)
	require.Same(t, ctx, h.ctxs[0])
	require.Nil(t, b.together.queue)
	require.Empty(t, b.together.flights)
}

func TestConcurrentCommandsGoTogether(t *testing.T) {
	t.Parallel()
	b, h, open := busy(t, servertest.SharedRedis(t).Addr())
	const callers = leastTogether - maxFlights // which are away with one command each
	prefix := backendtest.UniqueKey(t)
	ctx := context.WithValue(t.Context(), ctxKey{}, "of the first")
	var outs []<-chan outcome
	for i := range callers {
		outs = append(outs, trying(ctx, t, b, redistest.Request(fmt.Sprintf("%s/%d", prefix, i))))
		ctx = t.Context()
	}
	require.Empty(t, h.with(prefix), "nothing is sent while the flights are away")
	opened := b.clock.Now()
	open()
	tokens := map[uint64]bool{}
	for _, out := range outs {
		o := <-out
		require.NoError(t, o.err)
		require.Equal(t, 1, o.grant.Holds)
		tokens[o.grant.Token] = true
		require.False(t, o.grant.Sent.Before(opened), "counted from when it was sent")
		h.mu.Lock()
		for i, cmds := range h.requests {
			if len(cmds) == callers {
				require.False(t, h.at[i].Before(o.grant.Sent), "and not from later")
				require.Equal(t, "of the first", h.ctxs[i].Value(ctxKey{}))
			}
		}
		h.mu.Unlock()
	}
	require.Equal(t, []int{callers}, h.with(prefix), "one request")
}

func TestManyCommandsAreSharedAmongTheFlights(t *testing.T) {
	t.Parallel()
	b, h, open := busy(t, servertest.SharedRedis(t).Addr())
	const callers = 100
	prefix := backendtest.UniqueKey(t)
	var outs []<-chan outcome
	for i := range callers {
		outs = append(outs, trying(t.Context(), t, b, redistest.Request(fmt.Sprintf("%s/%d", prefix, i))))
	}
	open()
	for _, out := range outs {
		require.NoError(t, (<-out).err)
	}
	sizes := h.with(prefix)
	require.LessOrEqual(t, slices.Max(sizes), (callers+2*maxFlights)/maxFlights, "one request takes all: %v", sizes)
	require.LessOrEqual(t, len(sizes), callers/leastTogether+1, "each is small: %v", sizes)
}

func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	b, h, open := busy(t, servertest.SharedRedis(t).Addr())
	prefix := backendtest.UniqueKey(t)
	var outs []<-chan outcome
	for i := range maxFlights*maxTogether + 5 {
		outs = append(outs, trying(t.Context(), t, b, redistest.Request(fmt.Sprintf("%s/%d", prefix, i))))
	}
	open()
	for _, out := range outs {
		require.NoError(t, (<-out).err)
	}
	sizes := h.with(prefix)
	require.Equal(t, maxTogether, slices.Max(sizes), "%v", sizes)
}

func TestShareIsEven(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		waiting int
		away    []int
		share   int
	}{
		{1, nil, 1},
		{16, nil, 16},
		{17, nil, 9},
		{40, nil, 14},
		{64, nil, 22},
		{10, []int{30, 20}, 20},
		{64, []int{1, 1}, 22},
		{1000, nil, 128},
	} {
		d := &dispatcher{queue: make([]*message, c.waiting)}
		for _, n := range c.away {
			d.depart(n)
		}
		require.Equal(t, c.share, d.share(), "%+v", c)
	}
}

func TestFirstComeFirstSent(t *testing.T) {
	t.Parallel()
	d := &dispatcher{}
	var asked []*message
	for range 100 {
		asked = append(asked, &message{})
	}
	d.queue = slices.Clone(asked)
	sent := 0
	for range 3 {
		calls, f := d.next()
		require.NotNil(t, f)
		require.Equal(t, len(calls), f.calls)
		for i, q := range calls {
			require.Same(t, asked[sent+i], q)
		}
		sent += len(calls)
	}
	_, f := d.next()
	require.Nil(t, f, "a fourth request")
	require.GreaterOrEqual(t, sent, 99)
}

// Requests that hang are replaced by others, again and again, while there is something
// to send.
func TestRequestsThatHangAreReplaced(t *testing.T) {
	t.Parallel()
	b, h, open := busy(t, servertest.SharedRedis(t).Addr())
	prefix := backendtest.UniqueKey(t)
	const callers = 2*maxFlights*maxTogether + 5
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			_, err := b.Try(t.Context(), redistest.Request(fmt.Sprintf("%s/%d", prefix, i)))
			require.NoError(t, err)
		})
	}
	backendtest.Eventually(t, "the commands wait", func() bool { return queueLength(b) == callers })
	_, release := h.holdUp(t, prefix)
	b.together.mu.Lock()
	b.together.patience = 10 * time.Millisecond
	b.together.timer.Reset(b.together.patience)
	b.together.mu.Unlock()
	open()
	backendtest.Eventually(t, "all are under way although none is back", func() bool {
		sent := 0
		for _, n := range h.with(prefix) {
			sent += n
		}
		return sent == callers
	})
	release()
	all.Wait()
}

func TestCancelledInTheQueueIsNeverSent(t *testing.T) {
	t.Parallel()
	b, h, open := busy(t, servertest.SharedRedis(t).Addr())
	prefix := backendtest.UniqueKey(t)
	first := trying(t.Context(), t, b, redistest.Request(prefix+"/first"))
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := trying(ctx, t, b, redistest.Request(prefix+"/cancelled"))
	last := trying(t.Context(), t, b, redistest.Request(prefix+"/last"))
	cancel()
	o := <-cancelled
	require.ErrorIs(t, o.err, context.Canceled)
	require.ErrorContains(t, o.err, "nothing was sent")
	require.NotContains(t, o.err.Error(), o.req.ID.Hex())
	require.Equal(t, 2, queueLength(b))
	open()
	require.NoError(t, (<-first).err)
	require.NoError(t, (<-last).err)
	require.Empty(t, h.with(prefix+"/cancelled"))
	_, err := b.Inspect(t.Context(), prefix+"/cancelled")
	require.ErrorIs(t, err, backend.ErrNotHeld)
}

func TestRepliesArePerCommand(t *testing.T) {
	t.Parallel()
	b, h, open := busy(t, servertest.SharedRedis(t).Addr())
	direct := redistest.Client(t, servertest.SharedRedis(t))
	prefix := backendtest.UniqueKey(t)
	backendtest.Granted(t, backendOn(t, direct), redistest.Request(prefix+"/held"))
	require.NoError(t, direct.Set(t.Context(), namesOf(defaultPrefix, prefix+"/foreign").record(), "x", time.Minute).Err())
	require.NoError(t, direct.LPush(t.Context(), namesOf(defaultPrefix, prefix+"/type").record(), "x").Err())
	want := map[string]error{"/type": backend.ErrPermanent, "/free": nil, "/held": backend.ErrHeld, "/foreign": backend.ErrPermanent, "/free too": nil}
	outs := map[string]<-chan outcome{}
	for name := range want {
		outs[name] = trying(t.Context(), t, b, redistest.Request(prefix+name))
	}
	open()
	for name, err := range want {
		o := <-outs[name]
		require.ErrorIs(t, o.err, err, name)
		if err != nil {
			require.ErrorContains(t, o.err, prefix+name)
		}
	}
	require.Equal(t, []int{len(want)}, h.with(prefix))
}
