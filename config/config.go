// Package config opens Lockers from what operators write, so that a program changes its
// backend without being built again: from the environment ([OpenEnv]), from a section of
// the program's own configuration ([Section]), or by name from a file ([Load]):
//
//	lockers:
//	  jobs:
//	    url: redis://:${REDIS_PASSWORD}@cache:6379
//	    ttl: 30s
//	  reports:
//	    url: file:/var/lib/app/locks
//
// The file is YAML, of which JSON is a part. Every field is known and checked: an
// unknown one is refused with its line, since a typing error must not turn a
// setting off. Errors match lock.ErrInvalid and contain no value of the file, since
// a URL may hold a password. lockers.schema.json, beside this package, has editors
// complete and check such files.
//
// # Two stores
//
// A locker with also is held in two stores, url first and then also, as lock.Both says:
//
//	lockers:
//	  jobs:
//	    url: redis://cache:6379
//	    also: etcd://etcd1:2379,etcd2:2379
//
// It is the second of three rolling deploys that change the store: url is the old one;
// then url is the old one and also the new one; then url is the new one, without also.
// Every copy needs the two in these places. A program opens it with [File.OpenLocker].
//
// # Variables
//
// ${NAME} in a URL is replaced by the environment variable when that Locker is asked
// for, so that a program needs the variables of the Lockers that it opens, and no
// others. The variable must be set and not be empty: with an empty password or host
// the URL would mean something else, without a word. $${ stands for ${ itself. In the user, the password and the
// parameters of the URL the value is percent-encoded, so that any password will do;
// elsewhere it is taken as it is.
//
// # The TTL
//
// What is nearer to the acquisition wins: lock.WithTTL, then the TTL of the lock.Options
// that a program passes, then ttl beside the url, then the parameter ttl of the URL
// (redis://cache?ttl=30s), then the default of the backend.
//
// # Directories
//
// file: with a relative path is refused. The same words would be another lock in every
// working directory, and next to every copy of a file.
package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/mortiselock/lock"
)

// File is a configuration that has been read and checked. It is not changed
// afterwards and is safe for concurrent use.
type File struct {
	name    string
	env     func(string) (string, bool)
	lockers map[string]written
}

// written is a locker as it stands in the file.
type written struct {
	section Section
	lines   map[string]int // of its fields
}

// Load reads the file. A file that cannot be read is an error of package os.
func Load(path string) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return parse(path, data, os.LookupEnv)
}

// Parse reads what a file contains; name stands for it in errors.
func Parse(name string, data []byte) (*File, error) { return parse(name, data, os.LookupEnv) }

// document is the form of the file.
type document struct {
	Lockers map[string]entry `yaml:"lockers"`
}

type entry struct {
	URL  string  `yaml:"url"`
	Also *string `yaml:"also"`
	TTL  *string `yaml:"ttl"`
}

func parse(name string, data []byte, env func(string) (string, bool)) (*File, error) {
	var doc document
	d := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict())
	if err := d.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, malformed(name, data, err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, invalid(name, 0, "there is more than one document; remove the line with ---")
	}
	if len(doc.Lockers) == 0 {
		return nil, invalid(name, 0, "there are no lockers; it looks like\nlockers:\n  jobs:\n    url: redis://localhost:6379")
	}
	f := &File{name: name, env: env, lockers: map[string]written{}}
	for _, locker := range slices.Sorted(maps.Keys(doc.Lockers)) {
		e := doc.Lockers[locker]
		at := func(field string) int { return lineOf(data, locker, field) }
		switch {
		case locker == "":
			return nil, invalid(name, at(""), "a locker has an empty name")
		case e.URL == "":
			return nil, invalid(name, at(""), "locker %q has no url", locker)
		}
		l := written{section: Section{URL: e.URL}, lines: map[string]int{"url": at("url"), "also": at("also")}}
		// The variables are looked up when the locker is asked for; how they are
		// written is looked at now.
		_, err := expand(e.URL, func(string) (string, bool) { return "x", true })
		if err != nil {
			return nil, invalid(name, l.lines["url"], "the url of locker %q: %v", locker, err)
		}
		if e.TTL != nil {
			if l.section.TTL, err = parseTTL(*e.TTL); err != nil {
				return nil, invalid(name, at("ttl"), "the ttl of locker %q %v", locker, err)
			}
		}
		if e.Also != nil {
			if err := checkAlso(e.URL, *e.Also); err != nil {
				return nil, invalid(name, at("also"), "the also of locker %q: %v", locker, err)
			}
			l.section.Also = *e.Also
		}
		f.lockers[locker] = l
	}
	return f, nil
}

// Names lists the lockers of the file in alphabetical order.
func (f *File) Names() []string { return slices.Sorted(maps.Keys(f.lockers)) }

// Locker returns the entry of that name, with the variables of its URL replaced by what
// they are now. The empty name stands for the only locker of a file that has one. One
// with also is refused as by Open.
func (f *File) Locker(name string) (Locker, error) {
	name, err := f.nameOf(name)
	if err != nil {
		return Locker{}, err
	}
	w := f.lockers[name]
	if w.section.Also != "" {
		return Locker{}, onlyOne(f.from(name))
	}
	return f.store(name, "url", w.section)
}

func (f *File) nameOf(name string) (string, error) {
	name, err := nameOf(f.lockers, name)
	if err != nil {
		return "", invalid(f.name, 0, "%v", err)
	}
	return name, nil
}

// from is what errors call the locker of that name.
func (f *File) from(name string) string { return fmt.Sprintf("%s: locker %q", f.name, name) }

// store is one store of a locker, which the field names.
func (f *File) store(name, field string, s Section) (Locker, error) {
	l, err := s.locker(f.env, filepath.Dir(f.name))
	if err != nil {
		return Locker{}, invalid(f.name, f.lockers[name].lines[field], "the %s of locker %q: %v", field, name, err)
	}
	l.from = f.from(name)
	return l, nil
}

// nameOf finds a locker by its name; the empty name stands for the only one.
func nameOf[T any](lockers map[string]T, name string) (string, error) {
	names := slices.Sorted(maps.Keys(lockers))
	if name == "" && len(names) == 1 {
		return names[0], nil
	}
	_, ok := lockers[name]
	switch {
	case len(names) == 0:
		return "", errors.New("it has no lockers")
	case !ok && name == "":
		return "", fmt.Errorf("it has several lockers; name one of: %s", strings.Join(names, ", "))
	case !ok:
		return "", fmt.Errorf("it has no locker %q; it has: %s", name, strings.Join(names, ", "))
	}
	return name, nil
}

// Open opens the locker of that name, as [Locker.Open] does. Errors name the file and the
// locker. One with also is refused with an error matching lock.ErrUnsupported;
// [File.OpenLocker] opens that.
func (f *File) Open(ctx context.Context, name string, opts *lock.Options) (*lock.Client, error) {
	l, err := f.Locker(name)
	if err != nil {
		return nil, err
	}
	return l.Open(ctx, opts)
}

// invalid is an error about a line of the file; 0 stands for the whole file.
func invalid(name string, line int, format string, args ...any) error {
	where := name
	if line > 0 {
		where = fmt.Sprintf("%s:%d", name, line)
	}
	return fmt.Errorf("config: %w: %s: %s", lock.ErrInvalid, where, fmt.Sprintf(format, args...))
}

// malformed leaves out the excerpt of the file that the YAML library would show,
// and values it may quote.
func malformed(name string, data []byte, err error) error {
	var e yaml.Error
	if !errors.As(err, &e) || e.GetToken() == nil {
		return invalid(name, 0, "it is not YAML of the expected form")
	}
	var (
		unknown *yaml.UnknownFieldError
		kind    *yaml.TypeError
		syntax  *yaml.SyntaxError
	)
	at := e.GetToken()
	line := 0
	if at.Position != nil {
		line = at.Position.Line
	}
	switch {
	case errors.As(err, &unknown):
		return invalid(name, line, "unknown field %q; a file has lockers, and a locker has url, also and ttl", at.Value)
	case errors.As(err, &kind):
		return invalid(name, line, "a value of another type is expected here; a ttl looks like 30s, a url is text")
	case errors.As(err, &syntax) && strings.Contains(syntax.Message, "already defined"):
		return invalid(name, line, "%q is there twice", at.Value)
	case errors.As(err, &syntax) && strings.Contains(syntax.Message, "'\t'"):
		return invalid(name, line, "the line is indented with a tab; YAML wants spaces")
	case unquotedURL(data, line):
		return invalid(name, line, "put the url into quotes, as in url: \"file:\"; YAML takes a colon at its end or before a blank for its own")
	}
	return invalid(name, line, "it is not YAML of the expected form; look at the indentation, and put a url with special characters into quotes")
}

// unquotedURL reports whether the line has a url without quotes.
func unquotedURL(data []byte, line int) bool {
	lines := strings.Split(string(data), "\n")
	if line < 1 || line > len(lines) {
		return false
	}
	value, ok := strings.CutPrefix(strings.TrimSpace(lines[line-1]), "url:")
	value = strings.TrimSpace(value)
	return ok && value != "" && !strings.ContainsAny(value[:1], `"'`)
}

// lineOf finds the line of a field of a locker, or of the locker itself.
func lineOf(data []byte, locker, field string) int {
	b := (&yaml.PathBuilder{}).Root().Child("lockers").Child(locker)
	if field != "" {
		b = b.Child(field)
	}
	node, err := b.Build().ReadNode(bytes.NewReader(data))
	if err != nil {
		return 0
	}
	return firstLine(node)
}

func firstLine(node ast.Node) int {
	if t := node.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}
