package etcdflawed

import (
	"context"
	"sync"

	"github.com/mortiselock/lock/backend"
)

var z35 = Lock{
	ID: "Z35", Title: "two handles in one session both hold",
	Summary: "The second finds the first one's key, and takes it for its own.",
	Seen:    "Two concurrency.Mutex of one Session (etcd-io/etcd#11364).",
	Instead: "A key for each acquisition.",
	File:    "shared_session.go",
	Rule:    "ReentrantExplicit",
	On: onEtcd(func(h healthy) backend.Backend {
		return &sharedSession{healthy: h, holds: map[string]taken{}, names: map[backend.ID]backend.ID{}}
	}),
}

// sharedSession knows the holds of its client by the key alone.
type sharedSession struct {
	healthy
	mu    sync.Mutex
	holds map[string]taken
	names map[backend.ID]backend.ID // of later handles: the acquisition that has the key
}

type taken struct {
	id    backend.ID
	grant backend.Grant
}

func (s *sharedSession) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	s.mu.Lock()
	mine, ok := s.holds[req.Key]
	if ok {
		s.names[req.ID] = mine.id
	}
	s.mu.Unlock()
	hold := backend.HoldOf(req)
	if ok {
		hold.ID = mine.id
		if v, err := s.healthy.Renew(ctx, hold); err == nil {
			return backend.Grant{Token: mine.grant.Token, Holds: 1, Validity: v}, nil
		}
	}
	g, err := s.healthy.Try(ctx, req)
	if err == nil {
		s.mu.Lock()
		s.holds[req.Key] = taken{req.ID, g}
		delete(s.names, req.ID)
		s.mu.Unlock()
	}
	return g, err
}

func (s *sharedSession) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	return s.healthy.Renew(ctx, s.named(hold))
}

func (s *sharedSession) Release(ctx context.Context, hold backend.Hold) error {
	hold = s.named(hold)
	s.mu.Lock()
	if s.holds[hold.Key].id == hold.ID {
		delete(s.holds, hold.Key)
	}
	s.mu.Unlock()
	return s.healthy.Release(ctx, hold)
}

func (s *sharedSession) named(hold backend.Hold) backend.Hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, ok := s.names[hold.ID]; ok {
		hold.ID = id
	}
	return hold
}
