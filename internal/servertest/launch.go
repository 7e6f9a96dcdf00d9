package servertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"
)

const (
	readyBound = 30 * time.Second // for a started server to answer
	maxPorts   = 10               // ports tried before giving up
)

// errPortTaken is a start that failed because somebody else has the port.
var errPortTaken = errors.New("the port is taken")

// instance is a server that this process started and may disturb. Its methods
// are called by one goroutine at a time, except for pid and running.
type instance interface {
	start() error  // runs it, on the data that is there
	running() bool // also true while frozen
	kill() error   // like kill -9; returns when it is gone; nil if it was not running
	freeze() error // returns when all its threads stand still
	resume() error
	wipe() error   // throws its data away; only while it is not running
	remove() error // kills it and removes everything of it; may be called twice
	pid() int      // 0 if not running or not ours to know
	log() string   // the end of its output
	String() string
}

// launch starts a server on a port that is free, trying another port if
// somebody takes it in the meantime.
func (f *finder) launch(k *kind, c config, source, host string, make func(port int) (instance, error)) (*Server, error) {
	var last error
	for range maxPorts {
		port, err := f.freePort()
		if err != nil {
			return nil, err
		}
		inst, err := make(port)
		if err != nil {
			return nil, err
		}
		s := &Server{
			kind:     k,
			source:   source,
			addr:     net.JoinHostPort(host, strconv.Itoa(port)),
			password: c.password,
			inst:     inst,
		}
		ctx, cancel := context.WithTimeout(context.Background(), readyBound)
		last = s.up(ctx)
		cancel()
		if last == nil {
			return s, nil
		}
		if err := inst.remove(); err != nil {
			return nil, errors.Join(last, err)
		}
		if !errors.Is(last, errPortTaken) {
			return nil, last
		}
	}
	return nil, fmt.Errorf("no free port in %d attempts: %w", maxPorts, last)
}

// up starts the instance and waits until it serves.
func (s *Server) up(ctx context.Context) error {
	if err := s.inst.start(); err != nil {
		if portTaken(err.Error()) {
			return fmt.Errorf("%w: %w", errPortTaken, err)
		}
		return err
	}
	return s.await(ctx)
}

// await asks the server until it serves, it has exited, or ctx ends.
func (s *Server) await(ctx context.Context) error {
	begin := time.Now()
	pause, bound := 2*time.Millisecond, 100*time.Millisecond
	for ; ; pause, bound = min(pause*3/2, 50*time.Millisecond), min(bound*2, 2*time.Second) {
		attempt, cancel := context.WithTimeout(ctx, bound)
		version, err := s.kind.probe(attempt, s.target())
		cancel()
		// Who answers on the port of a server that has exited is somebody else.
		exited := s.inst != nil && !s.inst.running()
		if err == nil && !exited {
			s.mu.Lock()
			s.version = version
			s.mu.Unlock()
			return nil
		}
		if exited {
			log := s.inst.log()
			if portTaken(log) {
				return fmt.Errorf("%w: %s", errPortTaken, log)
			}
			return fmt.Errorf("%v exited before it answered; the end of its log:\n%s", s.inst, log)
		}
		if p := (*permanentError)(nil); s.inst == nil && errors.As(err, &p) {
			return fmt.Errorf("%s refuses: %w", s.addr, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			err = fmt.Errorf("%s did not answer in %v: %w", s.addr, time.Since(begin).Round(time.Millisecond), err)
			if s.inst != nil {
				err = fmt.Errorf("%w; the end of its log:\n%s", err, s.inst.log())
			}
			return err
		}
	}
}

// portTaken recognises a failed bind in the words of a server or of Docker.
func portTaken(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "address already in use") || strings.Contains(text, "port is already allocated")
}

// freePort returns a TCP port on which nobody listens. It stays below the
// ranges from which systems take ports for outgoing connections (32768 up on
// Linux, 49152 up elsewhere): such a port could be lost to any client while its
// server is down between Kill and Restart, even to a client that dials that very
// server and so connects to itself.
func freePort() (int, error) {
	const low, high, attempts = 20000, 32000, 100
	var last error
	for range attempts {
		port := low + rand.IntN(high-low)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			last = err
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no free port: %w", last)
}
