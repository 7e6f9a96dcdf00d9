package servertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

const (
	readyBound = 2 * time.Minute // for a started server to answer
	maxPorts   = 10              // ports tried before giving up
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

// launch starts n servers on ports that are free, trying other ports if somebody
// takes one in the meantime.
func (f *finder) launch(k *kind, c config, source, host string, n int, make func(member int, members []ports) (instance, error)) ([]*Server, error) {
	var last error
	for range maxPorts {
		members, err := f.freePorts(n, 1+k.extraPorts)
		if err != nil {
			return nil, err
		}
		servers, err := launchAt(k, c, source, host, members, make)
		if err == nil {
			return servers, nil
		}
		last = err
		if err := stopAll(servers); err != nil {
			return nil, errors.Join(last, err)
		}
		if !errors.Is(last, errPortTaken) {
			return nil, last
		}
	}
	return nil, fmt.Errorf("no free port in %d attempts: %w", maxPorts, last)
}

// launchAt starts all members, none of which may serve before the others are
// there, and then waits for each. It returns those it made, on failure too.
func launchAt(k *kind, c config, source, host string, members []ports, make func(int, []ports) (instance, error)) ([]*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), k.bound())
	defer cancel()
	var servers []*Server
	for i := range members {
		inst, err := make(i, members)
		if err != nil {
			return servers, err
		}
		s := &Server{
			kind:      k,
			source:    source,
			addr:      net.JoinHostPort(host, strconv.Itoa(members[i].client)),
			password:  c.password,
			inst:      inst,
			clustered: len(members) > 1,
		}
		if c.tls != nil {
			s.tlsAddr = net.JoinHostPort(host, strconv.Itoa(members[i].tls()))
		}
		servers = append(servers, s)
		if err := s.start(); err != nil {
			return servers, err
		}
	}
	for _, s := range servers {
		if err := s.await(ctx); err != nil {
			return servers, err
		}
	}
	return servers, nil
}

// start starts the instance without waiting until it serves.
func (s *Server) start() error {
	err := s.inst.start()
	if err != nil && portTaken(err.Error()) {
		return fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return err
}

// up starts the instance and waits until it serves.
func (s *Server) up(ctx context.Context) error {
	if err := s.start(); err != nil {
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
		if err == nil {
			err = listens(s.Pid(), s.addr)
		}
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

// freePorts returns ports for n members, each different.
func (f *finder) freePorts(n, each int) ([]ports, error) {
	taken := map[int]bool{}
	var members []ports
	for range n {
		var got []int
		for range each {
			port, err := f.freePort()
			for again := 0; err == nil && taken[port] && again < maxPorts; again++ {
				port, err = f.freePort()
			}
			if err != nil {
				return nil, err
			}
			taken[port] = true
			got = append(got, port)
		}
		members = append(members, ports{client: got[0], extra: got[1:]})
	}
	return members, nil
}
