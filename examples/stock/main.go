// Stock counts goods that several tills sell at once, without selling one twice.
// Each till holds the key of the article while it reads, decides and writes, and
// the shelf refuses a till whose token is older than one that it has seen: a till
// that stood still between its decision and its write must not undo what another
// has sold meanwhile.
//
//	go run ./examples/stock
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/mortiselock/lock"
	_ "github.com/mortiselock/lock/memory"
)

func main() {
	if err := run(context.Background(), "mem:", 4, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "stock:", err)
		os.Exit(1)
	}
}

// shelf is what the tills share. In a real shop it is a row with a column for the
// token: UPDATE shelf SET stock = ?, token = ? WHERE article = ? AND token <= ?
type shelf struct {
	mu    sync.Mutex
	stock int
	token uint64
}

var errTooLate = errors.New("a later till has written already")

func (s *shelf) read() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stock
}

func (s *shelf) write(stock int, token uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if token < s.token {
		return errTooLate
	}
	s.stock, s.token = stock, token
	return nil
}

// sell sells one piece, or says that none is left.
func sell(ctx context.Context, l lock.Locker, s *shelf) (sold bool, err error) {
	err = lock.Do(ctx, l, "article/4711", func(_ context.Context, lease lock.Lease) error {
		left := s.read()
		if left == 0 {
			return nil
		}
		sold = true
		return s.write(left-1, lease.Token())
	})
	return sold && err == nil, err
}

// run lets the tills sell a hundred pieces.
func run(ctx context.Context, url string, tills int, out io.Writer) error {
	const pieces = 100
	s := &shelf{stock: pieces}
	sold := make([]int, tills)
	failed := make([]error, tills)
	var wg sync.WaitGroup
	for till := range tills {
		wg.Go(func() {
			// A till is a process of its own in a real shop, with a Locker of its own.
			l, err := lock.Open(ctx, url, nil)
			if err != nil {
				failed[till] = err
				return
			}
			defer l.Close()
			for {
				ok, err := sell(ctx, l, s)
				if err != nil || !ok {
					failed[till] = err
					return
				}
				sold[till]++
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	total := 0
	for _, n := range sold {
		total += n
	}
	fmt.Fprintf(out, "%d pieces on the shelf, %d sold, %d left\n", pieces, total, s.read())
	return nil
}
