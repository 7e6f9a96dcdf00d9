package zklock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock/backend"
)

// session is one ZooKeeper session and the connection that it lives on. It is never
// followed by another session on the same connection, so that what was asked of it
// cannot take effect in a later one. No mutex is held during I/O.
type session struct {
	cfg   *config
	clock backend.Clock
	conn  *zk.Conn
	loop  <-chan zk.Event // closed when the client library has stopped
	life  context.Context // ends with the session
	gone  <-chan struct{} // of life
	stop  context.CancelFunc
	begun chan struct{} // closed when conn is set
	over  chan struct{} // closed when the connection has been closed

	making sync.WaitGroup // requests for containers under way; added to with mu, before the session ends

	mu        sync.Mutex
	link      *link
	timeout   time.Duration   // granted, or asked for until then
	attached  bool            // the server has the session, and requests can be sent
	changed   chan struct{}   // closed and replaced when attached or failures change
	greeted   backend.Instant // when the handshake under way was sent
	greeting  bool
	era       int // of the connection: each event of it begins a new one
	failures  int // connections in a row that did not come about
	failure   error
	refused   error // by the server, for good
	admitted  bool  // the credentials were given
	proof     proof
	places    map[backend.ID]*node
	left      versions
	floor     watchedFloor               // on this connection
	watches   map[string]<-chan zk.Event // set on this connection
	retired   []<-chan zk.Event          // on earlier ones, and still with the client library
	reaping   bool
	onExpired func(held []backend.ID) // called once, when the server has expired the session
}

// errGone is what requests of a session get when it has ended.
var errGone = fmt.Errorf("%w: the session has expired; a new one begins", backend.ErrUnavailable)

// leastAsked is the least timeout that is asked for: the client library waits for the answer
// to that for ten times as long at most. Servers grant so little only when they are told to.
const leastAsked = 200 * time.Millisecond

// begin starts to connect. It does no I/O.
func begin(cfg *config, clock backend.Clock, onExpired func([]backend.ID)) (*session, error) {
	s := &session{
		cfg: cfg, clock: clock, timeout: max(cfg.timeout, leastAsked), onExpired: onExpired,
		changed: make(chan struct{}), begun: make(chan struct{}), over: make(chan struct{}),
		places: map[backend.ID]*node{}, left: versions{}, watches: map[string]<-chan zk.Event{},
	}
	s.life, s.stop = context.WithCancel(context.Background())
	s.gone = s.life.Done()
	var err error
	s.conn, s.loop, err = zk.Connect(cfg.servers, s.timeout,
		zk.WithDialer(s.dial), zk.WithHostProvider(&hosts{s: s, i: rand.IntN(len(cfg.servers))}), zk.WithEventCallback(s.event),
		zk.WithLogger(libraryLog{cfg.logger}), zk.WithLogInfo(false))
	if err != nil {
		s.stop()
		return nil, err
	}
	close(s.begun)
	go s.keep()
	return s, nil
}

func (s *session) ended() bool { return s.life.Err() != nil }

// event is called by the client library and does not block.
func (s *session) event(e zk.Event) {
	if e.Type != zk.EventSession {
		return
	}
	if e.State == zk.StateExpired {
		s.end(true)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.era++
	switch e.State {
	case zk.StateConnected: // the handshake is sent next
		s.greeting, s.greeted = true, s.clock.Now()
	case zk.StateHasSession:
		if s.link == nil {
			return
		}
		s.greeting, s.failures, s.failure = false, 0, nil
		if t := s.link.granted(); t > 0 {
			s.timeout = t
		}
		s.link.setPatience(max(s.timeout/5, 100*time.Millisecond))
		s.proof.reset(s.timeout, s.greeted)
		if s.retireWatches() {
			s.link.awaitWatches(s.timeout / 4)
		}
		if s.cfg.auth != nil && !s.admitted {
			go s.admit(s.era)
			return
		}
		s.attached = true
		s.change()
	case zk.StateDisconnected:
		if s.greeting {
			s.greeting = false
			s.failedLocked(s.whyNotGreeted())
		}
		s.attached = false
		s.change()
	case zk.StateAuthFailed:
		s.refused = zk.ErrAuthFailed
		s.change()
	}
}

// whyNotGreeted is why a server has ended the connection in answer to the handshake.
// The mutex is held.
func (s *session) whyNotGreeted() error {
	if s.link != nil {
		if err := s.link.refusal(); err != nil {
			return err
		}
	}
	return errors.New("the server did not answer the handshake: it serves nobody for lack of a quorum, or this is not its client port")
}

// admit gives the credentials, once. The client library repeats them on every
// connection that follows, before anything else is sent.
func (s *session) admit(era int) {
	<-s.begun
	err := s.conn.AddAuth("digest", s.cfg.auth)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.admitted = true
		s.attached = s.era == era // else there is another connection by now, or none
	case errors.Is(err, zk.ErrAuthFailed):
		s.refused = err
	}
	s.change()
}

// use notes the connection that is being set up, unless the session has ended.
func (s *session) use(l *link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended() {
		return false
	}
	s.link = l
	return true
}

func (s *session) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failedLocked(err)
}

func (s *session) failedLocked(err error) {
	s.failures++
	s.failure = err
	s.change()
}

// change wakes those who wait for the connection. The mutex is held.
func (s *session) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// end is the end of the session: the server has expired it, or the Locker closes.
func (s *session) end(expired bool) {
	s.mu.Lock()
	if s.ended() {
		s.mu.Unlock()
		return
	}
	s.attached = false
	s.stop()
	s.change()
	var held []backend.ID
	for id, n := range s.places {
		if n.granted {
			held = append(held, id)
		}
	}
	clear(s.places)
	s.mu.Unlock()
	if expired {
		s.onExpired(held)
	}
}

// outlivedLocked reports whether the session has holds, and no answer for the whole of its
// timeout, so that none of them is good any more. To come back would be wrong then: where
// only the answers are lost, each handshake keeps the session alive on the server, and the
// keys from everybody. The mutex is held.
func (s *session) outlivedLocked() bool {
	if s.proof.last == 0 || s.clock.Now().Sub(s.proof.last) <= s.timeout {
		return false
	}
	for _, n := range s.places {
		if n.granted {
			return true
		}
	}
	return false
}

// close ends the connection, and with it the session on the server. It is called by
// the keeper, after end.
func (s *session) close() {
	s.letContainersBeMade()
	s.conn.Close()
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
	for range s.loop {
	}
}

// makeContainer is CreateContainer of the client library, which reads what the server said
// also when Close has ended it, and the answer may still be coming in.
func (s *session) makeContainer(c *zk.Conn, path string) (string, error) {
	s.mu.Lock()
	if s.ended() {
		s.mu.Unlock()
		return "", errGone
	}
	s.making.Add(1)
	s.mu.Unlock()
	defer s.making.Done()
	return c.CreateContainer(path, nil, zk.FlagContainer, s.cfg.acl)
}

// letContainersBeMade waits until no container is being made, as long at most as the client
// library waits for the answer to the end of a session.
func (s *session) letContainersBeMade() {
	made := make(chan struct{})
	go func() { s.making.Wait(); close(made) }()
	limit := time.NewTimer(time.Second)
	defer limit.Stop()
	select {
	case <-made:
	case <-limit.C:
	}
}

// ready returns when a request can be sent. It gives up when none of the servers
// can be reached.
func (s *session) ready(ctx context.Context) error {
	return s.await(ctx, func() bool { return s.failures >= len(s.cfg.servers) })
}

// await returns when a request can be sent, or when hopeless is true.
func (s *session) await(ctx context.Context, hopeless func() bool) error {
	for {
		s.mu.Lock()
		changed := s.changed
		switch {
		case s.ended():
			s.mu.Unlock()
			return errGone
		case s.refused != nil:
			defer s.mu.Unlock()
			return s.refused
		case s.attached:
			s.mu.Unlock()
			return nil
		case hopeless():
			defer s.mu.Unlock()
			if badCertificate(s.failure) {
				return fmt.Errorf("%w: no server can be reached: %w; check ca, cert and key, and the names in the servers' certificates", backend.ErrPermanent, s.failure)
			}
			return fmt.Errorf("%w: no server can be reached: %w", backend.ErrUnavailable, s.failure)
		}
		failure := s.failure
		s.mu.Unlock()
		select {
		case <-changed:
		case <-s.gone:
		case <-ctx.Done():
			if failure != nil {
				return fmt.Errorf("%w: not connected: %w (%w)", backend.ErrUnavailable, failure, ctx.Err())
			}
			return fmt.Errorf("%w: not connected: %w", backend.ErrUnavailable, ctx.Err())
		}
	}
}

// connection returns what tells the present connection from others, and a channel that
// is closed when it changes.
func (s *session) connection() (era int, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.era, s.changed
}

func (s *session) sameConnection(era int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.era == era && s.attached
}

// answer is what a request returned.
type answer[T any] struct {
	value T
	sent  backend.Instant // read just before the request was given to the client library
	err   error
}

// ask sends one request and returns when it is answered, ctx ends or the session
// ends. When it gave up waiting, late is told of the answer, if there is one and late
// is not nil. An error that matches notSent says that nothing was sent.
func ask[T any](ctx context.Context, s *session, f func(*zk.Conn) (T, error), late func(answer[T])) answer[T] {
	if err := ctx.Err(); err != nil {
		return answer[T]{err: notSent{err}}
	}
	if err := s.ready(ctx); err != nil {
		return answer[T]{err: notSent{err}}
	}
	if ctx.Done() == nil {
		return send(s, f)
	}
	answers := make(chan answer[T], 1)
	var settled atomic.Bool // by whoever is first: the answer, or the end of the wait
	go func() {
		a := send(s, f)
		if settled.CompareAndSwap(false, true) {
			answers <- a
		} else if late != nil {
			late(a)
		}
	}()
	var gaveUp error
	select {
	case a := <-answers:
		return a
	case <-ctx.Done():
		gaveUp = ctx.Err()
	case <-s.gone:
		gaveUp = errGone
	}
	if !settled.CompareAndSwap(false, true) {
		return <-answers
	}
	return answer[T]{err: gaveUp}
}

// askAgain is ask for a request that may be carried out twice. A connection that ends before the
// answer has another one asked.
func askAgain[T any](ctx context.Context, s *session, f func(*zk.Conn) (T, error)) answer[T] {
	for tries := 1; ; tries++ {
		a := ask(ctx, s, f, nil)
		if !lostReply(a.err) || tries == 3 {
			return a
		}
	}
}

func send[T any](s *session, f func(*zk.Conn) (T, error)) answer[T] {
	a := answer[T]{sent: s.clock.Now()}
	a.value, a.err = f(s.conn)
	if answered(a.err) {
		s.mu.Lock()
		s.proof.touched(a.sent, s.clock.Now())
		s.mu.Unlock()
	}
	return a
}

// libraryLog passes what the client library has to say on as debug messages.
// Without it the library prints to standard error.
type libraryLog struct{ to logger }

func (l libraryLog) Printf(format string, args ...any) {
	l.to.Debug("zookeeper client", "message", fmt.Sprintf(format, args...))
}

type logger interface{ Debug(msg string, args ...any) }
