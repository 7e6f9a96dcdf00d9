package mysqllock

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// answerLimit is for how long a connection of a URL waits for an answer.
const answerLimit = 10 * time.Second

func TestBadURLs(t *testing.T) {
	t.Parallel()
	for raw, text := range map[string]string{
		"mysql://ann:secret@h/app?unknown=1":             "unknown",
		"mysql://ann:secret@h/app?clientFoundRows=true":  "clientFoundRows",
		"mysql://ann:secret@h/app?autocommit=0":          "autocommit",
		"mysql://ann:secret@h/app?tls=skip-verify":       "tls",
		"mysql://ann:secret@h/app?mode=named":            "mode",
		"mysql://ann:secret@h/app?pool_size=many":        "pool_size",
		"mysql://ann:secret@h/app?pool_size=0":           "pool_size",
		"mysql://ann:secret@h/app?dial_timeout=5":        "dial_timeout",
		"mysql://ann:secret@h/app?dial_timeout=-5s":      "dial_timeout",
		"mysql://ann:secret@h/app?create=perhaps":        "create",
		"mysql://ann:secret@h/app?table=a&table=b":       "table",
		"mysql://ann:secret@h/app?table=a.b.c":           "table",
		"mysql://ann:secret@h/app?table=a%60b":           "table",
		"mysql://ann:secret@h/app?ca=/x":                 "tls=true",
		"mysql://ann:secret@h/app?tls=true&ca=/no.pem":   "ca",
		"mysql://ann:secret@h/app?tls=true&cert=/no.pem": "together",
		"mysql://ann:secret@h/app?socket=/s":             "socket",
		"mysql://ann:secret@/app?socket=/s&tls=true":     "exclude",
		"mysql://ann:secret@h,i/app":                     "one host",
		"mysql://ann:secret@h":                           "database",
		"mysql://ann:secret@h/app/locks":                 "one database",
		"mysql://h/app":                                  "user",
	} {
		u, err := backend.ParseURL(raw)
		require.NoError(t, err, raw)
		_, err = Opener(t.Context(), u, backend.OpenConfig{TTL: mysqltest.TTL})
		require.ErrorIs(t, err, backend.ErrInvalid, raw)
		require.ErrorContains(t, err, text, raw)
		require.NotContains(t, err.Error(), "secret", raw)
	}
}

func TestBadOpenings(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		for name, c := range map[string]struct {
			url  string
			want error
			text string
		}{
			"wrong password":   {"mysql://mortise:wrong-secret@" + s.Addr() + "/mortise", backend.ErrPermanent, "check user and password"},
			"unknown database": {"mysql://mortise:" + s.Password() + "@" + s.Addr() + "/nothing_here", backend.ErrPermanent, "existing database"},
			"no server":        {"mysql://mortise:wrong-secret@127.0.0.1:1/mortise", backend.ErrUnavailable, "connection refused"},
			"no TLS":           {"mysql://mortise:wrong-secret@" + s.Addr() + "/mortise?tls=true", backend.ErrPermanent, "tls"},
			"no table":         {s.URL() + "?table=nothing_here&create=false", backend.ErrPermanent, "CREATE TABLE"},
		} {
			_, err := lock.Open(t.Context(), c.url, nil)
			require.ErrorIs(t, err, c.want, name)
			require.Contains(t, strings.ToLower(err.Error()), strings.ToLower(c.text), name)
			require.NotContains(t, err.Error(), "secret", name)
			require.NotContains(t, err.Error(), s.Password(), name)
		}
		_, err := lock.Open(t.Context(), s.URL(), &lock.Options{TTL: 1})
		require.ErrorIs(t, err, backend.ErrInvalid)
		l := lockerOn(t, mysqltest.UserPool(t, s, ""))
		_, err = l.TryAcquire(t.Context(), strings.Repeat("k", backend.MaxKey+1))
		require.ErrorIs(t, err, backend.ErrInvalid)
	})
}
