package rules

import "github.com/mortiselock/lock/conformance/internal/engine"

// ownStore is a store that nobody else uses.
type ownStore struct {
	e     *engine.Env
	store engine.Store
}

// untouched makes such a store, where Config.Untouched is there.
func untouched(e *engine.Env) ownStore {
	store, err := e.Untouched(e.Ctx)
	if err != nil {
		e.UnexpectedFatal("", err, "Config.Untouched failed: %v", err)
	}
	return ownStore{e, store}
}

// open opens a client of it, which is closed with the case.
func (s ownStore) open(who string) *engine.BackendClient {
	b := s.e.BackendFrom(s.store.Open, "a store that nobody has used")
	b.Who = who
	return b
}

// contents is what is in it.
func (s ownStore) contents() string {
	text, err := s.store.Contents(s.e.Ctx)
	if err != nil {
		s.e.UnexpectedFatal("", err, "Config.Untouched: the contents can't be told: %v", err)
	}
	return text
}
