package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/failure"
)

// InvalidURL is the error of a URL that can't be followed.
func InvalidURL(text string) error { return fmt.Errorf("%w: URL: %s", backend.ErrInvalid, text) }

// Database reads the path: empty, "/" or a slash and a number.
func Database(path string) (int, error) {
	number, ok := strings.CutPrefix(path, "/")
	switch {
	case number == "":
		return 0, nil
	case !ok:
		return 0, InvalidURL("two slashes come before the host, as in redis://host:6379/2")
	}
	db, err := strconv.Atoi(number)
	if err != nil || db < 0 || strconv.Itoa(db) != number {
		return 0, InvalidURL("after the host comes nothing, or a slash and the number of a database, as in redis://host:6379/2")
	}
	return db, nil
}

// HintAboutTLS is what to try when the server and the client may differ about TLS, with
// the words for using it and for not. A server without it waits for the rest of a
// command that never comes, and one with it closes the connection.
func HintAboutTLS(err error, used bool, use, dont string) string {
	var record tls.RecordHeaderError
	switch {
	case failure.DialFailed(err):
		return ""
	case errors.As(err, &record):
		return "; the server speaks no TLS on this port: " + dont + ", or name the port for TLS"
	case used && (failure.IsTimeout(err) || errors.Is(err, context.DeadlineExceeded)):
		return "; if the server speaks no TLS on this port, " + dont + ", or name the port for TLS"
	case !used && (ConnectionBroke(err) || errors.Is(err, syscall.ECONNRESET)):
		return "; if the server wants TLS on this port, " + use
	}
	return ""
}
