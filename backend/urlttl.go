package backend

import (
	"fmt"
	"net/url"
	"strings"
	"time"
)

// CutTTL takes the parameter ttl, such as ttl=30s, out of the URL of any backend. It is
// the default time to live of the Locker, as in lock.Options.TTL, and zero where the URL
// has none. It belongs to the Locker and not to the backend, so no [Opener] sees it:
// lock.Open takes it out. Whoever opens with a [Mux] of their own does the same, and gives
// it to both [OpenConfig] and lock.New.
//
// A ttl that is given twice, or is no positive duration, is refused with an error that
// matches [ErrInvalid] and shows no part of the URL. Whether the backend can keep it is for
// [Guarantees.CheckTTL] to say.
func CutTTL(rawURL string) (without string, ttl time.Duration, err error) {
	address, query, ok := strings.Cut(rawURL, "?")
	if !ok {
		return rawURL, 0, nil
	}
	var others []string
	for part := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(part, "=")
		if name, err := url.QueryUnescape(name); err != nil || name != "ttl" {
			others = append(others, part)
			continue
		}
		if ttl != 0 {
			return "", 0, fmt.Errorf("%w: URL: ttl is given twice; write it once, as in ?ttl=30s", ErrInvalid)
		}
		value, escape := url.QueryUnescape(value)
		d, form := time.ParseDuration(value)
		if escape != nil || form != nil || d <= 0 {
			return "", 0, fmt.Errorf("%w: URL: ttl is not a positive duration; write it as in ?ttl=30s", ErrInvalid)
		}
		ttl = d
	}
	if len(others) == 0 {
		return address, ttl, nil
	}
	return address + "?" + strings.Join(others, "&"), ttl, nil
}
