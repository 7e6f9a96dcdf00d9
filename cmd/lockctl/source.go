package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/config"
	"github.com/mortiselock/lock/internal/fileurl"
)

// source is where the flags say that the locks are: a URL, or a name in a file.
type source struct {
	url    string
	config string
	locker string

	both bool   // the locks may be in two stores
	also string // the URL of the second

	flags *pflag.FlagSet
}

// address is a source once it is known.
type address struct {
	url  string        // without its ttl
	ttl  time.Duration // of the file or of the URL; zero: none is given
	from string        // the file and the locker; empty: the URL was given as such
	// guessed: nothing said where the locks are, so it is file:.
	guessed bool
	// also is the second store, or nil.
	also *address
}

// here says of an address that was guessed what it is about: an operator who has
// forgotten the URL must not read that nobody holds a key.
func (a address) here() string {
	if !a.guessed {
		return ""
	}
	return "; this is about file:, the locks of this user on this machine, since neither --url nor LOCK_URL nor LOCK_CONFIG says otherwise"
}

// at says which server and which of its names were looked at, so that a wrong URL is
// noticed: with the parameters that choose names, and no other, which may be secrets.
func (a address) at() string {
	u, err := backend.ParseURL(a.url)
	if a.guessed || err != nil {
		return ""
	}
	var names []string
	for _, parameter := range []string{"prefix", "mode", "table"} {
		if value := u.Query.String(parameter, ""); value != "" {
			names = append(names, parameter+"="+value)
		}
	}
	at := " at " + u.String()
	if len(names) > 0 {
		at += " with " + strings.Join(names, " and ")
	}
	if a.from != "" {
		at += " (" + a.from + ")"
	}
	return at
}

// named puts the file and the locker, if it was those, before what is wrong with their
// backend.
func (a address) named(e *exitError) *exitError {
	if a.from == "" {
		return e
	}
	return exitWith(e.code, "%s: %s", a.from, strings.ReplaceAll(e.message, "check --url or LOCK_URL", "check its url"))
}

// register adds the flags.
func (s *source) register(cmd *cobra.Command) {
	s.flags = cmd.Flags()
	s.flags.StringVar(&s.url, "url", "", "`url` of the backend (default $LOCK_URL, else that of $LOCK_CONFIG, else file:)")
	s.flags.StringVar(&s.config, "config", "", "YAML or JSON `file` that names lockers, instead of --url (default $LOCK_CONFIG)")
	s.flags.StringVar(&s.locker, "locker", "", "`name` of the locker in the file; may be left out when there is one only")
	cmd.MarkFlagsMutuallyExclusive("url", "config")
	cmd.MarkFlagsMutuallyExclusive("url", "locker")
}

// registerAlso adds the flag of the second store.
func (s *source) registerAlso(cmd *cobra.Command) {
	s.both = true
	cmd.Flags().StringVar(&s.also, "also", "", "`url` of a second backend: hold the key there, too, after that of --url (see docs/migrating.md)")
	cmd.MarkFlagsMutuallyExclusive("also", "config")
	cmd.MarkFlagsMutuallyExclusive("also", "locker")
}

// resolve finds the address and checks what can be checked without the backend.
func (s *source) resolve(p *printer) (address, error) {
	a := address{url: s.url}
	origin, file := "--url", s.config
	if s.flags.Changed("url") && s.url == "" {
		return a, usageError("--url is empty; leave it out for LOCK_URL, LOCK_CONFIG or file:, or write for example --url redis://localhost:6379")
	}
	if s.url == "" && file == "" {
		var err error
		if a.url, file, err = config.EnvValues(); err != nil {
			return a, usageError("%s, or say with --url or --config which one counts", plain(err))
		}
		origin = config.EnvURL
	}
	switch {
	case file != "":
		if err := s.resolveFile(&a, file); err != nil {
			return a, err
		}
	case s.flags.Changed("locker"):
		return a, usageError("--locker names a locker of a file; give the file with --config or LOCK_CONFIG")
	case a.url == "":
		a.url, a.guessed = "file:", true
	}
	if err := a.check(p, origin); err != nil {
		return a, a.named(err)
	}
	if s.both && s.flags.Changed("also") {
		if file != "" || a.guessed {
			return a, usageError("--also is the second of two backends; give the first with --url or LOCK_URL")
		}
		a.also = &address{url: s.also}
		if s.also == "" || s.also == s.url {
			return a, usageError("--also is empty, or the URL of the first backend; write that of the second, for example --also redis://localhost:6379")
		}
	}
	if a.also != nil {
		if err := a.also.check(p, "--also"); err != nil {
			return a, a.also.named(err)
		}
	}
	return a, nil
}

// check checks what can be checked without the backend, and takes the ttl out of the URL.
// origin says where the URL was given.
func (a *address) check(p *printer, origin string) *exitError {
	if fileurl.Relative(a.url) {
		return usageError("%s is a file: URL with a relative path, which would be another lock in another directory; write %s", origin, fileurl.Absolute(a.url, ""))
	}
	without, ttl, err := backend.CutTTL(a.url)
	if err != nil {
		return usageError("%s", plain(err))
	}
	a.url = without
	if a.ttl == 0 {
		a.ttl = ttl
	}
	return checkURL(p, a.url)
}

// resolveFile finds the locker in the file.
func (s *source) resolveFile(a *address, file string) error {
	f, err := config.Load(file)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		if s.config == "" {
			return usageError("LOCK_CONFIG: %s cannot be read: %v", file, cause(err))
		}
		return usageError("%s cannot be read: %v", file, cause(err))
	}
	if err != nil {
		return usageError("%s", plain(err))
	}
	if !s.both {
		l, err := f.Locker(s.locker)
		if err != nil {
			return usageError("%s", plain(err))
		}
		a.url, a.ttl, a.from = l.URL(), l.TTL, l.From()
		return nil
	}
	stores, err := f.Stores(s.locker)
	if err != nil {
		return usageError("%s", plain(err))
	}
	*a = address{url: stores[0].URL(), ttl: stores[0].TTL, from: stores[0].From()}
	if len(stores) > 1 {
		a.also = &address{url: stores[1].URL(), ttl: stores[1].TTL, from: stores[1].From()}
	}
	return nil
}

// openShared opens the backend for a look from outside, and refuses one that other
// processes cannot see.
func openShared(ctx context.Context, p *printer, a address) (backend.Backend, error) {
	b, err := openBackend(ctx, p, a, backend.OpenConfig{Logger: p.lookLogger(), LookOnly: true})
	if err != nil {
		return nil, err
	}
	if b.Guarantees().Reach == backend.ReachProcess {
		_ = b.Close()
		return nil, usageError("%s holds nothing outside this process; use file: or a server such as redis://localhost:6379", b.Guarantees().Name)
	}
	return b, nil
}

// openBackend opens the backend. It is for short work: what is done with it ends
// with ctx.
func openBackend(ctx context.Context, p *printer, a address, cfg backend.OpenConfig) (backend.Backend, error) {
	opening, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	defer p.opens(a.url)()
	cfg.TTL = cmp.Or(a.ttl, lock.DefaultTTL)
	b, err := backend.DefaultMux.Open(opening, a.url, cfg)
	if err != nil {
		return nil, a.named(operateError(err, ""))
	}
	if a.ttl != 0 {
		if err := b.Guarantees().CheckTTL(a.ttl); err != nil {
			_ = b.Close()
			return nil, a.named(operateError(err, ""))
		}
	}
	return b, nil
}

// operateError says why a look or a forced release failed.
func operateError(err error, key string) *exitError {
	switch {
	case errors.Is(err, lock.ErrInvalid), errors.Is(err, lock.ErrUnsupported):
		return usageError("%s", plain(err))
	case errors.Is(err, lock.ErrPermanent):
		return exitWith(exitUnavailable, "the backend refuses: %s", plain(err))
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, lock.ErrUnavailable):
		return exitWith(exitUnavailable, "no answer from the backend in time; check --url or LOCK_URL and the server")
	case errors.Is(err, lock.ErrUnavailable):
		return exitWith(exitUnavailable, "the backend is not available: %s; check --url or LOCK_URL, and the server or directory", plain(err))
	case key != "":
		return exitWith(exitUnavailable, "no clear answer about %q: %s; look again with lockctl inspect", key, plain(err))
	}
	return exitWith(exitUnavailable, "%s", plain(err))
}
