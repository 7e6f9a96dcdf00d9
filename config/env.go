package config

import (
	"context"
	"fmt"
	"os"

	"github.com/mortiselock/lock"
)

// The environment variables that name a backend, for [OpenEnv] and lockctl.
const (
	// EnvURL holds the URL of a backend.
	EnvURL = "LOCK_URL"
	// EnvFile holds the path of a configuration file, as for [Load].
	EnvFile = "LOCK_CONFIG"
)

// OpenEnv opens what the environment names: the URL in LOCK_URL, or the locker of that name
// in the file that LOCK_CONFIG names. The empty name stands for the only one. With LOCK_URL
// the name says nothing: every Locker of the program is on that backend.
//
// With none of the two variables, with both, and with a URL that lock.Open would refuse, the
// error matches lock.ErrInvalid. An empty variable counts as not set. The options may be
// nil; where they have no TTL, it is that of the file or of the URL.
func OpenEnv(ctx context.Context, name string, opts *lock.Options) (*lock.Client, error) {
	l, err := Env(name)
	if err != nil {
		return nil, err
	}
	return l.Open(ctx, opts)
}

// OpenLockerEnv is [OpenEnv] for a program that changes its store without being built again:
// of a locker with also it opens both stores, as [File.OpenLocker] does.
func OpenLockerEnv(ctx context.Context, name string, opts *lock.Options) (lock.Locker, error) {
	f, l, err := fromEnv()
	if f != nil {
		return f.OpenLocker(ctx, name, opts)
	}
	if err != nil {
		return nil, err
	}
	return l.Open(ctx, opts)
}

// Env is how to open what [OpenEnv] opens.
func Env(name string) (Locker, error) {
	f, l, err := fromEnv()
	if f != nil {
		return f.Locker(name)
	}
	return l, err
}

// fromEnv is the file that the environment names, or else the locker of the URL.
func fromEnv() (*File, Locker, error) {
	url, file, err := EnvValues()
	switch {
	case err != nil:
		return nil, Locker{}, err
	case file != "":
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, Locker{}, fmt.Errorf("config: %s: %w; set it to the path of a configuration file, or set %s", EnvFile, err, EnvURL)
		}
		f, err := Parse(file, text)
		return f, Locker{}, err
	case url == "":
		return nil, Locker{}, fmt.Errorf("config: %w: neither %s nor %s is set; set one, as in %s=redis://localhost:6379", lock.ErrInvalid, EnvURL, EnvFile, EnvURL)
	}
	l, err := locate(url, "")
	if err != nil {
		return nil, Locker{}, fmt.Errorf("config: %w: %s: %w", lock.ErrInvalid, EnvURL, err)
	}
	l.from = EnvURL
	return nil, l, nil
}

// EnvValues returns the values of LOCK_URL and LOCK_CONFIG, of which at most one may be set:
// which of two locks a program takes is not to be guessed. The error matches
// lock.ErrInvalid.
func EnvValues() (url, file string, err error) {
	url, file = os.Getenv(EnvURL), os.Getenv(EnvFile)
	if url != "" && file != "" {
		return "", "", fmt.Errorf("config: %w: both %s and %s are set; unset one of them", lock.ErrInvalid, EnvURL, EnvFile)
	}
	return url, file, nil
}
