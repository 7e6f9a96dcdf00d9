package mysqltest

import (
	"bytes"
	"log/slog"
	"sync"
)

// Logged is a logger and what it has written.
func Logged() (*slog.Logger, func() string) {
	var mu sync.Mutex
	var buf bytes.Buffer
	write := writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return buf.Write(p)
	})
	return slog.New(slog.NewTextHandler(write, nil)), func() string {
		mu.Lock()
		defer mu.Unlock()
		return buf.String()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
