package config

import (
	"fmt"
	"net/url"
	"strings"
)

// expand replaces the variables of a URL.
func expand(raw string, env func(string) (string, bool)) (string, error) {
	var out strings.Builder
	rest := raw
	for {
		i := strings.Index(rest, "${")
		if i < 0 {
			out.WriteString(rest)
			return out.String(), nil
		}
		if i > 0 && rest[i-1] == '$' {
			out.WriteString(rest[:i-1] + "${")
			rest = rest[i+2:]
			continue
		}
		out.WriteString(rest[:i])
		name, after, ok := strings.Cut(rest[i+2:], "}")
		switch {
		case !ok:
			return "", fmt.Errorf("there is a ${ without its }; write $${ for the characters themselves")
		case !isName(name):
			return "", fmt.Errorf("%q is not the name of an environment variable; between ${ and } there are letters, digits and _", name)
		}
		value, set := env(name)
		switch {
		case !set:
			return "", fmt.Errorf("the environment variable %s is not set; set it, or take it out of the URL", name)
		case value == "":
			return "", fmt.Errorf("the environment variable %s is empty, and without it the URL would mean something else; set it, or take it out of the URL", name)
		}
		out.WriteString(encoder(out.String(), after)(value))
		rest = after
	}
}

// encoder says how a value is written between these parts of a URL.
func encoder(before, after string) func(string) string {
	_, authority, hasAuthority := strings.Cut(before, "//")
	authorityAfter, _, _ := strings.Cut(after, "/")
	switch {
	case strings.Contains(before, "?"):
		return url.QueryEscape
	case hasAuthority && !strings.Contains(authority, "/") && !strings.Contains(authority, "@") && strings.Contains(authorityAfter, "@"):
		return func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
	}
	return func(s string) string { return s }
}

func isName(s string) bool {
	for i, r := range s {
		letter := r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}
