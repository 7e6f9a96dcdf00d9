package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/fileurl"
)

// Locker is how to open one Locker. Printing it shows no secret.
type Locker struct {
	// TTL is the default time to live of its leases: the ttl beside the url, or the one in
	// the URL; zero means the default of the backend.
	TTL time.Duration

	url  string
	from string // what says so
}

// URL is the address of the backend, with its variables replaced and with its ttl, which
// lock.Open understands. It may hold a password: don't print it.
func (l Locker) URL() string { return l.url }

// From says where the URL was found, such as LOCK_URL, or a file and the name of the
// locker in it.
func (l Locker) From() string { return l.from }

// String names the scheme and nothing that could be a secret.
func (l Locker) String() string {
	scheme, _, _ := strings.Cut(l.url, ":")
	if l.TTL > 0 {
		return fmt.Sprintf("%s: with a TTL of %s", scheme, l.TTL)
	}
	return scheme + ":"
}

// GoString is String, for %#v.
func (l Locker) GoString() string { return l.String() }

// Open opens it with lock.Open. The options may be nil; where they have no TTL, it is that
// of l. The package of the backend must be imported. Errors say where the URL was found.
func (l Locker) Open(ctx context.Context, opts *lock.Options) (*lock.Client, error) {
	var o lock.Options
	if opts != nil {
		o = *opts
	}
	if o.TTL == 0 {
		o.TTL = l.TTL
	}
	c, err := lock.Open(ctx, l.url, &o)
	if err != nil {
		return nil, fmt.Errorf("config: %s: %w", l.from, err)
	}
	return c, nil
}

// locker replaces the variables and checks what can be checked without the backend. dir is
// what a relative directory was perhaps meant to be below. Errors say what is wrong with
// the url.
func (s Section) locker(env func(string) (string, bool), dir string) (Locker, error) {
	url, err := expand(s.URL, env)
	if err != nil {
		return Locker{}, err
	}
	l, err := locate(url, dir)
	if s.TTL > 0 {
		l.TTL = s.TTL
	}
	return l, err
}

// locate checks what is true of a URL wherever it was found.
func locate(url, dir string) (Locker, error) {
	_, ttl, err := backend.CutTTL(url)
	if err != nil {
		return Locker{}, errors.New("its ttl is given twice or is not a positive duration; write it once, as in ?ttl=30s")
	}
	if fileurl.Relative(url) {
		return Locker{}, fmt.Errorf("its path is relative, so that it would be another lock in another directory; write %s", fileurl.Absolute(url, dir))
	}
	return Locker{TTL: ttl, url: url}, nil
}

// parseTTL reads a ttl. Its error follows the words "the ttl of ...".
func parseTTL(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, errors.New("must be a positive duration such as 30s")
	}
	return d, nil
}

// LogValue implements [slog.LogValuer].
func (l Locker) LogValue() slog.Value { return slog.StringValue(l.String()) }
