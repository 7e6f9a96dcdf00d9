package servertest

import (
	"io"
	"net"
)

// Words listens on a free port until the test ends. It says the words to whoever
// connects, and nothing more, and keeps the connection until the other side leaves: a
// server that is not the one that was meant.
func Words(t TB, words string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("servertest: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.WriteString(conn, words)
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
	return l.Addr().String()
}
