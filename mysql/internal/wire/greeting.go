package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/failure"
)

// greetingLimit is how long the first words of a server are waited for. It sends them
// as soon as it is connected to.
const greetingLimit = time.Second

// NotMySQL replaces the error of an opening that came to nothing, if what listens at the
// address does not greet as MySQL and MariaDB do. The driver only says that it got no
// connection. It looks when the opening has failed already: a server counts those who
// connect and leave again. It is nil where nothing better is known.
func NotMySQL(ctx context.Context, cfg *mysql.Config, err error) error {
	if !errors.Is(err, backend.ErrUnavailable) || failure.DialFailed(err) || CodeOf(err) != 0 || errors.Is(err, context.Canceled) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), greetingLimit)
	defer cancel()
	conn, dialled := new(net.Dialer).DialContext(ctx, cfg.Net, cfg.Addr)
	if dialled != nil {
		return nil
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetReadDeadline(deadline)
	// Three bytes of length, the number of the packet, and its kind.
	var head [5]byte
	_, read := io.ReadFull(conn, head[:])
	switch {
	case read == nil && head[3] == 0 && (head[4] == protocolVersion || head[4] == errorPacket):
		return nil
	case failure.IsTimeout(read):
		return noGreeting{err, fmt.Sprintf("what listens at %s does not greet, as MySQL and MariaDB do at once: check the host and the port, or whether the server hangs", cfg.Addr)}
	}
	return noGreeting{err, fmt.Sprintf("what listens at %s does not speak the protocol of MySQL: check the host and the port", cfg.Addr)}
}

// noGreeting matches what the error of the opening matches, and says why it came to that.
type noGreeting struct {
	err error
	why string
}

func (n noGreeting) Error() string {
	return "mysqllock: open: " + backend.ErrUnavailable.Error() + ": " + n.why
}
func (n noGreeting) Unwrap() error { return n.err }

// What the first packet of a server begins with.
const (
	protocolVersion = 10
	errorPacket     = 0xff
)
