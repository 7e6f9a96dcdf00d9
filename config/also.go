package config

import (
	"context"
	"errors"
	"fmt"

	"github.com/mortiselock/lock"
)

// OpenLocker opens the locker of that name, in one store or in two, as the file says. A
// program that calls it changes its store without being built again. With also it returns a
// [lock.Pair], otherwise a [lock.Client]. The options and the TTL are those of Open, for
// each store.
func (f *File) OpenLocker(ctx context.Context, name string, opts *lock.Options) (lock.Locker, error) {
	name, err := f.nameOf(name)
	if err != nil {
		return nil, err
	}
	return openStores(ctx, f.lockers[name].section, f.from(name), opts, func(field string, s Section) (Locker, error) {
		return f.store(name, field, s)
	})
}

// Stores are how to open the one or two stores of the locker of that name: that of its url,
// and that of its also. The empty name stands for the only one. Errors are those of Locker.
func (f *File) Stores(name string) ([]Locker, error) {
	name, err := f.nameOf(name)
	if err != nil {
		return nil, err
	}
	s := f.lockers[name].section
	first, err := f.store(name, "url", Section{URL: s.URL, TTL: s.TTL})
	if err != nil || s.Also == "" {
		return []Locker{first}, err
	}
	second, err := f.store(name, "also", Section{URL: s.Also, TTL: s.TTL})
	return []Locker{first, second}, err
}

// openStores opens the one or two stores of a locker, which store locates by the field that
// names it.
func openStores(ctx context.Context, s Section, what string, opts *lock.Options, store func(field string, s Section) (Locker, error)) (lock.Locker, error) {
	l, err := store("url", Section{URL: s.URL, TTL: s.TTL})
	if err != nil {
		return nil, err
	}
	var second Locker
	if s.Also != "" {
		if second, err = store("also", Section{URL: s.Also, TTL: s.TTL}); err != nil {
			return nil, err
		}
	}
	first, err := l.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	if s.Also == "" {
		return first, nil
	}
	other, err := second.Open(ctx, opts)
	if err != nil {
		_ = first.Close()
		return nil, err
	}
	p, err := lock.Both(first, other)
	if err != nil {
		_ = first.Close()
		_ = other.Close()
		return nil, fmt.Errorf("config: %s: %w", what, err)
	}
	return p, nil
}

// onlyOne refuses a locker in two stores.
func onlyOne(what string) error {
	return fmt.Errorf("config: %w: %s has also, and is held in two stores: in a program, open it with OpenLocker; lockctl run takes it, too; to look at one store, give its url",
		lock.ErrUnsupported, what)
}

// checkAlso looks at how a second store is written.
func checkAlso(url, also string) error {
	switch also {
	case "":
		return errors.New("it is empty; it is the url of the new store, such as redis://localhost:6379; without one leave it out")
	case url:
		return errors.New("it is the same as the url; in a move to another store, url is the old one and also the new one")
	}
	_, err := expand(also, func(string) (string, bool) { return "x", true })
	return err
}
