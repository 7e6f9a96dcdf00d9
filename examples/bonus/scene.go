package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/mortiselock/lock/backend"
)

// scene is what happens with one way.
type scene struct {
	way     way
	lockURL string
	ledger  place
	ttl     time.Duration
	pause   bool
}

// outcome is what was found afterwards.
type outcome struct {
	Paid   int
	Record record
	late   string // the last that the first copy said
}

// play has the first copy decide, pauses it, lets the second do the work, and lets the
// first go on. Without the pause both just run.
func (s scene) play(ctx context.Context) (o outcome, err error) {
	books, err := s.ledger.open()
	if err != nil {
		return o, err
	}
	defer books.close()
	if t, ok := books.(tables); ok {
		defer func() { err = errors.Join(err, t.drop(context.WithoutCancel(ctx))) }()
		if err := t.create(ctx); err != nil {
			return o, err
		}
	}
	j := job{Copy: "first", Way: s.way, LockURL: s.lockURL, LockKey: "bonus/" + backend.NewID().Hex(), TTL: s.ttl, Ledger: s.ledger, Waits: true}
	first, err := start(ctx, j)
	if err != nil {
		return o, err
	}
	defer first.end()
	if err := first.hear(decided); err != nil {
		return o, err
	}
	if s.pause {
		if err := pause(first.cmd.Process); err != nil {
			return o, err
		}
	}
	j.Copy, j.Waits = "second", false
	second, err := start(ctx, j)
	if err != nil {
		return o, err
	}
	defer second.end()
	if s.pause {
		// It waits until the lease of the first has ended.
		if _, err := second.finish(); err != nil {
			return o, err
		}
	}
	if _, err := io.WriteString(first.in, "\n"); err != nil {
		return o, err
	}
	if s.pause {
		if err := resume(first.cmd.Process); err != nil {
			return o, err
		}
	}
	if o.late, err = first.finish(); err != nil {
		return o, err
	}
	if !s.pause {
		if _, err := second.finish(); err != nil {
			return o, err
		}
	}
	o.Paid, o.Record, err = books.sum(ctx)
	return o, err
}

// process is a copy of the program.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	wrong bytes.Buffer
}

func start(ctx context.Context, j job) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	env, err := j.env()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, self)}
	p.cmd.Env = append(os.Environ(), env)
	p.cmd.Stderr = &p.wrong
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	return p, p.cmd.Start()
}

// hear waits until the copy says the word.
func (p *process) hear(word string) error {
	line, err := p.out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != word {
		p.end()
		return fmt.Errorf("a copy says %q, not %q: %s", line, word, p.wrong.String())
	}
	return nil
}

// finish waits for the end of the copy, and returns the last line that it said.
func (p *process) finish() (last string, err error) {
	text, err := io.ReadAll(p.out)
	if waited := p.cmd.Wait(); waited != nil {
		return "", fmt.Errorf("a copy ends with %w: %s", waited, p.wrong.String())
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1], err
}

// end ends the copy, if it still runs, paused or not.
func (p *process) end() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}
