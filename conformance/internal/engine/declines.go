package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mortiselock/lock/backend"
)

// A method of an ability that returns ErrUnsupported declines, and the backend is to be taken as
// one that has no such ability. A case that has met such an answer asks each ability about a
// key that nobody uses.

// declining is what is known of the abilities, which are asked once in a run.
type declining struct {
	turn  chan struct{} // a mutex would stop virtual time
	asked bool
	names []string
}

// declined are the abilities that the backend has and declines, by name.
func (s *Settings) declined(ctx context.Context) []string {
	d := &s.declining
	d.turn <- struct{}{}
	defer func() { <-d.turn }()
	if d.asked || s.OpenBackend == nil {
		return d.names
	}
	d.asked = true
	defer func() { _ = recover() }() // the rules tell of it
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loneLimit)
	defer cancel()
	b, err := s.openBackend(ctx)
	if err != nil {
		return nil
	}
	defer s.closeApart(b)
	for _, a := range abilities {
		req := backend.Request{Key: s.KeySpace + "declined/" + a.name, ID: backend.NewID(), TTL: s.TTL}
		if errors.Is(a.ask(ctx, b, req), backend.ErrUnsupported) {
			d.names = append(d.names, "backend."+a.name)
		}
	}
	return d.names
}

// Declines reports whether the backend declines the ability of that name.
func (e *Env) Declines(ability string) bool {
	return slices.Contains(e.declined(e.Ctx), "backend."+ability)
}

// unsupported reports whether the failure is about an answer that is ErrUnsupported.
func (f failure) unsupported() bool {
	return !f.proof && strings.Contains(f.text, "(matches ErrUnsupported)")
}

// declinedWhy says which abilities are declined, where a broken case was about that.
func (s *Settings) declinedWhy(ctx context.Context, res Result) string {
	if !res.unsupported {
		return ""
	}
	names := s.declined(ctx)
	if len(names) == 0 {
		return ""
	}
	first, _, _ := strings.Cut(res.Evidence, "\n")
	return fmt.Sprintf("the backend declines %s; seen when it was tried: %s", strings.Join(names, ", "), first)
}

// abilities are those that ask the server, each with a question about what there is not.
var abilities = []struct {
	name string
	ask  func(ctx context.Context, b backend.Backend, req backend.Request) error
}{
	{"Watcher", asked(func(ctx context.Context, a backend.Watcher, req backend.Request) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		_, err := a.Watch(ctx, req.Key)
		return err
	})},
	{"Queuer", asked(func(ctx context.Context, a backend.Queuer, req backend.Request) error {
		place, err := a.Enqueue(ctx, req)
		if err == nil && place != nil {
			_ = place.Withdraw(ctx)
		}
		return err
	})},
	{"ReleaseTeller", asked(func(ctx context.Context, a backend.ReleaseTeller, req backend.Request) error {
		_, err := a.ReleaseTelling(ctx, backend.HoldOf(req))
		return err
	})},
	{"HandOverer", asked(func(ctx context.Context, a backend.HandOverer, req backend.Request) error {
		to := req
		to.ID = backend.NewID()
		_, err := a.HandOver(ctx, backend.HoldOf(req), to)
		return err
	})},
	{"BatchRenewer", asked(func(ctx context.Context, a backend.BatchRenewer, req backend.Request) error {
		answers := a.RenewBatch(ctx, []backend.Hold{backend.HoldOf(req)})
		if len(answers) != 1 {
			return nil
		}
		return answers[0].Err
	})},
	{"Inspector", asked(func(ctx context.Context, a backend.Inspector, req backend.Request) error {
		_, err := a.Inspect(ctx, req.Key)
		return err
	})},
	{"ForceReleaser", asked(func(ctx context.Context, a backend.ForceReleaser, req backend.Request) error {
		return a.ForceRelease(ctx, req.Key, 1)
	})},
	{"Revoker", asked(func(ctx context.Context, a backend.Revoker, req backend.Request) error {
		return a.Revoke(ctx, req.Key, 1)
	})},
	{"Lister", asked(func(ctx context.Context, a backend.Lister, req backend.Request) error {
		return a.List(ctx, req.Key, func(backend.Record) bool { return false })
	})},
	{"Forgetter", asked(func(ctx context.Context, a backend.Forgetter, req backend.Request) error {
		return a.Forget(ctx, req.Key)
	})},
	{"Cleaner", asked(func(ctx context.Context, a backend.Cleaner, _ backend.Request) error {
		_, err := a.Cleanup(ctx, 100*365*24*time.Hour, true)
		return err
	})},
	{"FloorRaiser", asked(func(ctx context.Context, a backend.FloorRaiser, _ backend.Request) error {
		return a.RaiseFloor(ctx, 0)
	})},
	{"TokenTeller", asked(func(ctx context.Context, a backend.TokenTeller, _ backend.Request) error {
		_, err := a.LastToken(ctx)
		return err
	})},
}

// asked asks the ability where there is one.
func asked[T any](ask func(ctx context.Context, able T, req backend.Request) error) func(context.Context, backend.Backend, backend.Request) error {
	return func(ctx context.Context, b backend.Backend, req backend.Request) error {
		able, ok := backend.As[T](b)
		if !ok {
			return nil
		}
		return ask(ctx, able, req)
	}
}
