package backend

import (
	"fmt"
	"net"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"time"
)

// URL is the address of a backend: scheme://user:password@host1:port,host2:port/path?query,
// or scheme:path?query for backends without a host. Unlike net/url it accepts
// several hosts. It never prints its password.
type URL struct {
	Scheme      string
	User        string
	Password    string
	HasPassword bool
	Hosts       []string // host or host:port, in the order given; nil without "//"
	Path        string   // unescaped, with its leading slash where it has one
	Query       *Query
}

// ParseURL reads a backend URL. Its errors match [ErrInvalid] and contain no
// part of the URL that may hold a secret.
func ParseURL(raw string) (*URL, error) {
	if raw == "" {
		return nil, fmt.Errorf("%w: the URL is empty; it looks like redis://localhost:6379 or file:/var/lib/app/locks", ErrInvalid)
	}
	scheme, rest, ok := strings.Cut(raw, ":")
	if !ok || !validScheme(scheme) {
		return nil, fmt.Errorf("%w: the URL has no scheme; it looks like redis://localhost:6379 or file:/var/lib/app/locks", ErrInvalid)
	}
	u := &URL{Scheme: strings.ToLower(scheme)}
	if strings.Contains(rest, "#") {
		return nil, fmt.Errorf("%w: the %s URL has a fragment; write a # in a user, a password, a path or a parameter as %%23", ErrInvalid, u.Scheme)
	}
	rest, rawQuery, _ := strings.Cut(rest, "?")
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		authority, path := after, ""
		if i := strings.IndexByte(after, '/'); i >= 0 {
			authority, path = after[:i], after[i:]
		}
		rest = path
		if err := u.parseAuthority(authority); err != nil {
			return nil, err
		}
	}
	path, err := url.PathUnescape(rest)
	if err != nil {
		return nil, fmt.Errorf("%w: the path of the %s URL has a bad %%-escape", ErrInvalid, u.Scheme)
	}
	u.Path = path
	values, err := url.ParseQuery(rawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w: the query of the %s URL is malformed", ErrInvalid, u.Scheme)
	}
	u.Query = &Query{values: values, seen: map[string]bool{}}
	return u, nil
}

func validScheme(s string) bool {
	for i, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || !strings.ContainsRune("0123456789+-.", r)) {
			return false
		}
	}
	return s != ""
}

func (u *URL) parseAuthority(authority string) error {
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, password, has := strings.Cut(authority[:i], ":")
		if strings.Contains(authority[:i], ",") {
			// A host before it would go unnoticed, and the lock would be on the others.
			return fmt.Errorf("%w: the %s URL has a comma before its last @; write user and password once, before the first host, for all of them, and with %%-escapes (a comma is %%2C, an @ is %%40)", ErrInvalid, u.Scheme)
		}
		authority = authority[i+1:]
		var err1, err2 error
		u.User, err1 = url.PathUnescape(user)
		u.Password, err2 = url.PathUnescape(password)
		u.HasPassword = has
		if err1 != nil || err2 != nil {
			return fmt.Errorf("%w: the user or the password in the %s URL has a bad %%-escape", ErrInvalid, u.Scheme)
		}
	}
	if authority == "" {
		return nil
	}
	hosts := strings.Split(authority, ",")
	for i, host := range hosts {
		if host == "" && len(hosts) > 1 {
			return fmt.Errorf("%w: in the list of hosts of the %s URL, number %d is empty; write user and password with %%-escapes", ErrInvalid, u.Scheme, i+1)
		}
		// A password with an unescaped slash ends up here; never print it.
		if !validHost(host) {
			return fmt.Errorf("%w: the %s URL has a host that is not host:port; write user and password with %%-escapes", ErrInvalid, u.Scheme)
		}
		u.Hosts = append(u.Hosts, host)
	}
	return nil
}

// validHost accepts a name or an address, in brackets if it is IPv6, with or
// without a port number.
func validHost(host string) bool {
	name, port := splitHost(host)
	if strings.HasPrefix(name, "[") {
		if net.ParseIP(strings.Trim(name, "[]")) == nil {
			return false
		}
	} else if name == "" || strings.ContainsAny(name, "@ :[]%") {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return port == "" && !strings.HasSuffix(host, ":") || err == nil && n > 0
}

// splitHost cuts a port off; a colon in brackets does not begin one.
func splitHost(host string) (name, port string) {
	i := strings.LastIndexByte(host, ':')
	if i < strings.LastIndexByte(host, ']') || i < 0 {
		return host, ""
	}
	return host[:i], host[i+1:]
}

// HostsWithPort returns the hosts, with the port added to those that have none.
// Without any host it returns localhost.
func (u *URL) HostsWithPort(port string) []string {
	hosts := u.Hosts
	if len(hosts) == 0 {
		hosts = []string{"localhost"}
	}
	out := make([]string, len(hosts))
	for i, h := range hosts {
		if _, p := splitHost(h); p == "" {
			h += ":" + port
		}
		out[i] = h
	}
	return out
}

// String is the URL without its password and without the values of its query,
// fit for logs and errors.
func (u *URL) String() string {
	var b strings.Builder
	b.WriteString(u.Scheme + ":")
	if len(u.Hosts) > 0 || u.User != "" || u.HasPassword {
		b.WriteString("//")
		if u.User != "" || u.HasPassword {
			b.WriteString(url.PathEscape(u.User))
			if u.HasPassword {
				b.WriteString(":xxxxx")
			}
			b.WriteString("@")
		}
		b.WriteString(strings.Join(u.Hosts, ","))
	}
	b.WriteString((&url.URL{Path: u.Path}).EscapedPath())
	return b.String()
}

// Query reads the parameters of a URL and remembers which were read, so that
// what nobody asked for can be refused. It is used by one goroutine.
type Query struct {
	values url.Values
	seen   map[string]bool
	errs   []string
}

// String returns the parameter, or def when it is absent.
func (q *Query) String(name, def string) string {
	q.seen[name] = true
	if v, ok := q.values[name]; ok && len(v) == 1 {
		return v[0]
	}
	return def
}

// Duration returns a parameter such as "1500ms" or "15s".
func (q *Query) Duration(name string, def time.Duration) time.Duration {
	return parse(q, name, def, "a duration such as 1500ms or 15s", time.ParseDuration)
}

// Int returns an integer parameter.
func (q *Query) Int(name string, def int) int {
	return parse(q, name, def, "an integer", strconv.Atoi)
}

// Bool returns a parameter that is true or false.
func (q *Query) Bool(name string, def bool) bool {
	return parse(q, name, def, "true or false", strconv.ParseBool)
}

// OneOf returns a parameter that must be one of the choices. The first choice is
// the default.
func (q *Query) OneOf(name string, choices ...string) string {
	v := q.String(name, choices[0])
	if v == "" { // Done tells
		return choices[0]
	}
	for _, c := range choices {
		if v == c {
			return v
		}
	}
	q.errs = append(q.errs, fmt.Sprintf("parameter %q must be one of %s", name, strings.Join(choices, ", ")))
	return choices[0]
}

func parse[T any](q *Query, name string, def T, want string, f func(string) (T, error)) T {
	s := q.String(name, "")
	if s == "" { // absent, given twice, or empty, of which Done tells
		return def
	}
	v, err := f(s)
	if err != nil {
		q.errs = append(q.errs, fmt.Sprintf("parameter %q is not %s", name, want))
		return def
	}
	return v
}

// Done returns an error matching [ErrInvalid] when a parameter was malformed, was empty, was
// given twice, or was never asked for. Call it after reading every parameter.
func (q *Query) Done() error {
	errs := q.errs
	var known []string
	for name := range q.seen {
		known = append(known, name)
	}
	sort.Strings(known)
	accepts := "accepted is ttl"
	if len(known) > 0 {
		accepts = "accepted are " + strings.Join(append(known, "ttl"), ", ")
	}
	var names []string
	for name := range q.values {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		switch {
		case !q.seen[name] && name == "ttl":
			errs = append(errs, "ttl is for lock.Open, and this was opened otherwise; take it out with backend.CutTTL, and set the TTL of the options")
		case !q.seen[name] && strings.ContainsAny(name, "@:/"):
			// The rest of a password with an unescaped question mark ends up here.
			errs = append(errs, "unknown parameter ("+accepts+"); write user and password with %-escapes")
		case !q.seen[name]:
			errs = append(errs, fmt.Sprintf("unknown parameter %q (%s)", name, accepts))
		case len(q.values[name]) > 1:
			errs = append(errs, fmt.Sprintf("parameter %q is given %d times", name, len(q.values[name])))
		case q.values[name][0] == "":
			// As where a variable of the environment is not set: the default may be another thing.
			errs = append(errs, fmt.Sprintf("parameter %q is empty; give it a value, or leave it out", name))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: URL: %s", ErrInvalid, strings.Join(errs, "; "))
}
