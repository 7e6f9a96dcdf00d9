package zkflawed

import (
	"context"
	"slices"

	"github.com/mortiselock/lock/backend"
)

var z34 = Lock{
	ID: "Z34", Title: "Names are compared with their random ids",
	Summary: "A later node can sort before the holder's, and both hold.",
	Seen:    "sort.Strings over protected nodes.",
	Instead: "Compare the sequences only, with wrap-around.",
	File:    "sorted_with_guid.go",
	Rule:    "ExclusiveAcrossTakeover",
	Also:    twoHolders,
	On:      onZooKeeper(func(r *recipe) backend.Backend { return sortedWithGUID{r} }),
}

// sortedWithGUID sorts the children by their whole names.
//
//	A: creates job/9f3a...-0000000001, which is the only one: holds
//	B: creates job/02c4...-0000000002, which sorts before it: holds too
//
// Caught by ExclusiveAcrossTakeover, where many ask at once. (Exclusive asks through waiters, and sees it seldom.) The id is there to find a node whose creation was not
// confirmed, and has no part in the order.
//
// Instead: cut the id off before comparing.
type sortedWithGUID struct{ *recipe }

func (s sortedWithGUID) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if s.find(req.ID) != nil || ctx.Err() != nil {
		return s.recipe.Try(ctx, req)
	}
	sent := now()
	path, err := s.create(req)
	if err != nil {
		return backend.Grant{}, err
	}
	names, _, err := s.conn.Children(dirOf(req.Key))
	if err != nil {
		return backend.Grant{}, err
	}
	slices.Sort(names)
	if len(names) > 0 && dirOf(req.Key)+"/"+names[0] < path {
		return backend.Grant{}, s.refuse(req, path)
	}
	return s.granted(req, path, sent)
}
