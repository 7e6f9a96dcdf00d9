//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// fileStore keeps everything in one JSON file, for processes of one machine. It changes the
// file as a database changes its rows: under a lock of its own (flock) for the length of one
// step, and with a rename, which a killed process has done or has not. That lock says nothing
// about who may work: the tokens do.
type fileStore struct {
	path  string
	check check
}

// content is the file.
type content struct {
	Tasks   []task  `json:"tasks"`
	Queue   []claim `json:"queue"`
	Sent    int64   `json:"sent"` // the number of the last message
	Effects []claim `json:"effects"`
	Refused []claim `json:"refused"`
}

func openFile(dir string, by check) store {
	return &fileStore{path: filepath.Join(dir, "tasks.json"), check: by}
}

func (s *fileStore) read() (c content, err error) {
	text, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(text, &c)
}

// change writes what do makes of the content, unless it says that nothing was changed.
func (s *fileStore) change(ctx context.Context, do func(c *content) (changed bool)) error {
	l := flock.New(s.path + ".lock")
	if _, err := l.TryLockContext(ctx, time.Millisecond); err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	c, err := s.read()
	if err != nil || !do(&c) {
		return err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(s.path+".new", s.path)
}

func (s *fileStore) Add(ctx context.Context, n int) error {
	return s.change(ctx, func(c *content) bool {
		for range n {
			c.Tasks = append(c.Tasks, task{ID: len(c.Tasks) + 1, State: waiting})
		}
		return true
	})
}

func (s *fileStore) Requeue(ctx context.Context, token uint64) error {
	return s.change(ctx, func(c *content) (changed bool) {
		for i, t := range c.Tasks {
			if t.State == dispatched && t.Token < token {
				c.Tasks[i].State, c.Tasks[i].Token = waiting, token
				changed = true
			}
		}
		return changed
	})
}

func (s *fileStore) Dispatch(ctx context.Context, token uint64, pid int) (dispatch claim, ok bool, err error) {
	err = s.change(ctx, func(c *content) bool {
		for i, t := range c.Tasks {
			if t.State == waiting && (t.Token <= token || s.check != byToken) {
				c.Tasks[i].State, c.Tasks[i].Token, c.Tasks[i].PID = dispatched, token, pid
				dispatch, ok = claim{Task: t.ID, Token: token}, true
				return true
			}
		}
		return false
	})
	return dispatch, ok, err
}

// holds reports whether the task is dispatched under the token of the claim.
func (c claim) holds(t task) bool { return t.State == dispatched && t.Token == c.Token }

func (s *fileStore) Begin(ctx context.Context, of claim) error {
	ours := false
	err := s.change(ctx, func(c *content) bool {
		t := &c.Tasks[of.Task-1]
		if ours = of.holds(*t) || s.check != byToken && t.State == dispatched; ours {
			t.Begun++
		}
		return ours
	})
	if err == nil && !ours {
		return errNotOurs
	}
	return err
}

func (s *fileStore) Finish(ctx context.Context, of claim, ok bool) error {
	ours := false
	err := s.change(ctx, func(c *content) bool {
		t := &c.Tasks[of.Task-1]
		ours = of.holds(*t) || s.check == byState && t.State == dispatched || s.check == byLock
		switch {
		case !ours:
			c.Refused = append(c.Refused, of)
		case ok:
			t.State = done
			c.Effects = append(c.Effects, of)
		default:
			t.State = waiting
			if t.Tries++; t.Tries >= maxTries {
				t.State = failed
			}
		}
		return true
	})
	if err == nil && !ours {
		return errNotOurs
	}
	return err
}

func (s *fileStore) Send(ctx context.Context, of claim) error {
	return s.change(ctx, func(c *content) bool {
		c.Sent++
		of.Message = c.Sent
		c.Queue = append(c.Queue, of)
		return true
	})
}

func (s *fileStore) Receive(context.Context) ([]claim, error) {
	c, err := s.read()
	return c.Queue[:min(len(c.Queue), batch)], err
}

func (s *fileStore) Ack(ctx context.Context, of claim) error {
	return s.change(ctx, func(c *content) bool {
		for i, m := range c.Queue {
			if m.Message == of.Message {
				c.Queue = append(c.Queue[:i], c.Queue[i+1:]...)
				return true
			}
		}
		return false
	})
}

func (s *fileStore) Busy(context.Context) (bool, error) {
	l := flock.New(s.path + ".lock")
	free, err := l.TryLock()
	return !free, errors.Join(err, l.Close())
}

func (s *fileStore) Look(context.Context) (view, error) {
	c, err := s.read()
	return view{c.Tasks, c.Effects, c.Refused}, err
}

func (s *fileStore) Close() error { return nil }
