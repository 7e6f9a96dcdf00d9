package config

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/mortiselock/lock"
)

// Section is a locker as part of a program's own configuration, to be read with
// encoding/json or a YAML library, such as go.yaml.in/yaml/v3, along with the rest:
//
//	var app struct {
//		Listen string         `yaml:"listen"`
//		Lock   config.Section `yaml:"lock"`
//	}
//	err := yaml.Unmarshal(text, &app)
//	...
//	locker, err := app.Lock.Open(ctx, nil)
//
// Reading refuses what is no locker, with errors matching lock.ErrInvalid that contain no
// value: unknown fields, a missing url, a ttl that is no positive duration. Printing shows
// no secret; what it is marshalled to has the url as it was written.
type Section struct {
	// URL is the address of the backend, such as redis://cache:6379 or
	// file:/var/lib/app/locks. ${NAME} in it is replaced by the environment variable.
	URL string `yaml:"url" json:"url"`

	// Also is the address of a second store while the locker moves from one to another: URL
	// is the old one, and this the new one. OpenLocker opens both.
	Also string `yaml:"also,omitempty" json:"also,omitempty"`

	// TTL is the default time to live of the leases, such as 30s: how long others wait when
	// the holder dies. Default: ttl in the URL, else that of the backend, mostly 15s.
	TTL time.Duration `yaml:"ttl,omitempty" json:"ttl,omitempty"`
}

// Document is a whole configuration of lockers, as a file for [Load] has it and as a part
// of a program's own: what Section says is true of each.
type Document struct {
	// Lockers are the lockers by their names.
	Lockers map[string]Section `yaml:"lockers" json:"lockers"`
}

// Open opens the locker with lock.Open, with the variables of its URL replaced by what they
// are now. The options may be nil; where they have no TTL, it is that of s. The package of
// the backend must be imported. One with Also is refused with an error matching
// lock.ErrUnsupported; OpenLocker opens that.
func (s Section) Open(ctx context.Context, opts *lock.Options) (*lock.Client, error) {
	l, err := s.Locker()
	if err != nil {
		return nil, err
	}
	return l.Open(ctx, opts)
}

// OpenLocker opens the locker, in one store or in two. A program that calls it changes its
// store without being built again. With Also it returns a [lock.Pair], otherwise a
// [lock.Client]. The options and the TTL are those of Open, for each store.
func (s Section) OpenLocker(ctx context.Context, opts *lock.Options) (lock.Locker, error) {
	return s.openLocker(ctx, "the locker", opts)
}

func (s Section) openLocker(ctx context.Context, what string, opts *lock.Options) (lock.Locker, error) {
	return openStores(ctx, s, what, opts, func(_ string, s Section) (Locker, error) { return s.named(what) })
}

// Locker is how to open it, with the variables of its URL replaced by what they are now. One
// with Also is refused as by Open.
func (s Section) Locker() (Locker, error) { return s.named("the locker") }

func (s Section) named(what string) (Locker, error) {
	if s.Also != "" {
		return Locker{}, onlyOne(what)
	}
	switch {
	case s.URL == "":
		return Locker{}, fmt.Errorf("config: %w: %s has no url; it looks like redis://localhost:6379", lock.ErrInvalid, what)
	case s.TTL < 0:
		return Locker{}, fmt.Errorf("config: %w: the ttl of %s must be a positive duration such as 30s", lock.ErrInvalid, what)
	}
	l, err := s.locker(os.LookupEnv, "")
	if err != nil {
		return Locker{}, fmt.Errorf("config: %w: the url of %s: %w", lock.ErrInvalid, what, err)
	}
	l.from = what
	return l, nil
}

// Open opens the locker of that name, as [Section.Open] does. The empty name stands for
// the only one.
func (d Document) Open(ctx context.Context, name string, opts *lock.Options) (*lock.Client, error) {
	name, err := d.nameOf(name)
	if err != nil {
		return nil, err
	}
	l, err := d.Lockers[name].named(fmt.Sprintf("locker %q", name))
	if err != nil {
		return nil, err
	}
	return l.Open(ctx, opts)
}

// OpenLocker opens the locker of that name, as [Section.OpenLocker] does. The empty name
// stands for the only one.
func (d Document) OpenLocker(ctx context.Context, name string, opts *lock.Options) (lock.Locker, error) {
	name, err := d.nameOf(name)
	if err != nil {
		return nil, err
	}
	return d.Lockers[name].openLocker(ctx, fmt.Sprintf("locker %q", name), opts)
}

func (d Document) nameOf(name string) (string, error) {
	name, err := nameOf(d.Lockers, name)
	if err != nil {
		return "", fmt.Errorf("config: %w: the configuration: %w", lock.ErrInvalid, err)
	}
	return name, nil
}

// String names the scheme and nothing that could be a secret.
func (s Section) String() string { return Locker{TTL: s.TTL, url: s.URL}.String() }

// Format is String, with every verb.
func (s Section) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue implements [slog.LogValuer].
func (s Section) LogValue() slog.Value { return slog.StringValue(s.String()) }

// UnmarshalYAML reads it strictly. The form of the method is one that the YAML libraries
// have in common.
func (s *Section) UnmarshalYAML(unmarshal func(any) error) error {
	var fields map[string]any
	if err := unmarshal(&fields); err != nil {
		return errForm // the error of the library may show a value
	}
	return s.set(fields)
}

// UnmarshalJSON reads it strictly.
func (s *Section) UnmarshalJSON(text []byte) error {
	fields, err := fieldsOf[any](text)
	if err != nil {
		return err
	}
	return s.set(fields)
}

// MarshalJSON writes the TTL as it is read.
func (s Section) MarshalJSON() ([]byte, error) {
	fields := struct {
		URL  string `json:"url"`
		Also string `json:"also,omitempty"`
		TTL  string `json:"ttl,omitempty"`
	}{URL: s.URL, Also: s.Also}
	if s.TTL != 0 {
		fields.TTL = s.TTL.String()
	}
	return json.Marshal(fields)
}

// UnmarshalYAML reads it strictly, as that of [Section].
func (d *Document) UnmarshalYAML(unmarshal func(any) error) error {
	var fields map[string]map[string]Section
	if err := unmarshal(&fields); errors.Is(err, lock.ErrInvalid) {
		return err
	} else if err != nil {
		return errForm
	}
	return d.set(fields)
}

// UnmarshalJSON reads it strictly.
func (d *Document) UnmarshalJSON(text []byte) error {
	parts, err := fieldsOf[json.RawMessage](text)
	if err != nil {
		return err
	}
	fields := map[string]map[string]Section{}
	for name, part := range parts {
		if fields[name], err = fieldsOf[Section](part); err != nil {
			return err
		}
	}
	return d.set(fields)
}

func (d *Document) set(fields map[string]map[string]Section) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if name != "lockers" {
			return unknownField(name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields["lockers"])) {
		switch {
		case name == "":
			return fmt.Errorf("config: %w: a locker has an empty name", lock.ErrInvalid)
		case fields["lockers"][name].URL == "":
			return fmt.Errorf("config: %w: locker %q has no url", lock.ErrInvalid, name)
		}
	}
	if len(fields["lockers"]) == 0 {
		return fmt.Errorf("config: %w: there are no lockers", lock.ErrInvalid)
	}
	d.Lockers = fields["lockers"]
	return nil
}

// set takes over what was read.
func (s *Section) set(fields map[string]any) error {
	read := Section{}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		text, isText := fields[name].(string)
		switch name {
		case "url":
			if read.URL = text; !isText || text == "" {
				return fmt.Errorf("config: %w: the url of a locker is text, such as redis://localhost:6379", lock.ErrInvalid)
			}
			if _, err := expand(text, func(string) (string, bool) { return "x", true }); err != nil {
				return fmt.Errorf("config: %w: the url of a locker: %w", lock.ErrInvalid, err)
			}
		case "also":
			if read.Also = text; !isText || text == "" {
				return fmt.Errorf("config: %w: the also of a locker is the url of a second store; without one leave it out", lock.ErrInvalid)
			}
		case "ttl":
			var err error
			if read.TTL, err = parseTTL(text); err != nil {
				return fmt.Errorf("config: %w: the ttl of a locker %w", lock.ErrInvalid, err)
			}
		default:
			return unknownField(name)
		}
	}
	if read.URL == "" {
		return fmt.Errorf("config: %w: a locker has no url", lock.ErrInvalid)
	}
	if read.Also != "" {
		if err := checkAlso(read.URL, read.Also); err != nil {
			return fmt.Errorf("config: %w: the also of a locker: %w", lock.ErrInvalid, err)
		}
	}
	*s = read
	return nil
}

var errForm = fmt.Errorf("config: %w: it is not of the expected form; a locker has url, also and ttl, as in url: redis://localhost:6379", lock.ErrInvalid)

func unknownField(name string) error {
	return fmt.Errorf("config: %w: unknown field %q; there are lockers, and a locker has url, also and ttl", lock.ErrInvalid, name)
}

// fieldsOf reads a JSON object and refuses a field that is there twice, of which
// encoding/json would take the last.
func fieldsOf[T any](text []byte) (map[string]T, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, errForm
	}
	fields := map[string]T{}
	for d.More() {
		token, err := d.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return nil, errForm
		}
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("config: %w: %q is there twice", lock.ErrInvalid, name)
		}
		var value T
		if err := d.Decode(&value); errors.Is(err, lock.ErrInvalid) {
			return nil, err
		} else if err != nil {
			return nil, errForm
		}
		fields[name] = value
	}
	if _, err := d.Token(); err != nil && !errors.Is(err, io.EOF) {
		return nil, errForm
	}
	return fields, nil
}
