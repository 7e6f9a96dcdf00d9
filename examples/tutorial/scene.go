package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// job is the key of the lock in all steps.
const job = "tutorial:job"

// text is the key of what the work writes.
const text = "tutorial:text"

var ctx = context.Background()

// scene is where the clients of a step meet: a server, and what is printed.
type scene struct {
	server string
	opts   *goredis.Options
	out    io.Writer
	quiet  *goredis.Client
	opened []*goredis.Client
}

// demonstrate plays the step's code.
func demonstrate(s step, server string, out io.Writer) (err error) {
	opts, err := goredis.ParseURL(server)
	if err != nil {
		return err
	}
	sc := &scene{server: server, opts: opts, out: out}
	sc.quiet = sc.open(opts.DB)
	defer sc.close()
	defer func() {
		switch failed := recover().(type) {
		case nil:
		case error:
			err = fmt.Errorf("step %s, on %s: %w", s.title, opts.Addr, failed)
		default:
			panic(failed)
		}
	}()
	sc.tidy()
	s.play(sc)
	sc.tidy()
	return nil
}

func (s *scene) open(db int) *goredis.Client {
	opts := *s.opts
	opts.DB, opts.DisableIdentity = db, true
	c := goredis.NewClient(&opts)
	s.opened = append(s.opened, c)
	return c
}

// tidy deletes what steps write.
func (s *scene) tidy() {
	for _, db := range []int{s.opts.DB, 0, 1, 2, 3} {
		must(s.open(db).Del(ctx, job, job+":token", text).Result())
	}
}

func (s *scene) close() {
	for _, c := range s.opened {
		_ = c.Close()
	}
}

// say prints a line that is not a command.
func (s *scene) say(what ...any) { fmt.Fprintln(s.out, what...) }

// timePasses lets the record of the lock expire, without the wait: the server is told to
// end it now, and asked until it has.
func (s *scene) timePasses() {
	if must(s.quiet.PTTL(ctx, job).Result()) < 0 {
		panic(errors.New("the record has no expiry, or is gone"))
	}
	must(s.quiet.PExpire(ctx, job, time.Millisecond).Result())
	for must(s.quiet.Exists(ctx, job).Result()) == 1 {
		time.Sleep(time.Millisecond)
	}
	s.say("(the record expires)")
}

// client is a client of Redis, as of a program of its own, which prints what it sends.
type client struct {
	*goredis.Client
	name   string
	shown  string
	scene  *scene
	before map[string]func() // what happens before a command is sent, once
}

// client returns a new one. Its name is also the value that it writes, which would be a
// random number in a program.
func (s *scene) client(name string) *client { return s.clientOf(s.opts.DB, name, name) }

func (s *scene) clientOf(db int, name, shown string) *client {
	c := &client{Client: s.open(db), name: name, shown: shown, scene: s, before: map[string]func(){}}
	c.AddHook(c)
	return c
}

// nodes is how many databases stand for servers in the step on Redlock.
const nodes = 4

// onNodes returns one client for each node.
func (s *scene) onNodes(name string) (all []*client) {
	for node := range nodes {
		all = append(all, s.clientOf(node, name, fmt.Sprintf("%s, node %d", name, node+1)))
	}
	return all
}

var errDied = errors.New("the program has died")

// diesBefore runs f, which ends when the client would send the command.
func (c *client) diesBefore(command string, f func()) {
	c.before[command] = func() { panic(errDied) }
	defer func() {
		if r := recover(); r != errDied { //nolint:errorlint // a panic with this very value
			panic(fmt.Errorf("%s did not die: %v", c.name, r))
		}
		c.scene.say(c.shown, "dies")
	}()
	f()
}

// DialHook implements goredis.Hook.
func (c *client) DialHook(next goredis.DialHook) goredis.DialHook { return next }

// ProcessHook implements goredis.Hook.
func (c *client) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		c.interrupt(cmd)
		err := next(ctx, cmd)
		if !slices.Contains(unshown, cmd.Name()) {
			c.scene.say(c.shown+":", words(cmd), "->", answer(cmd))
		}
		return err
	}
}

// ProcessPipelineHook implements goredis.Hook. It is for MULTI with one command.
func (c *client) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		if cmds[0].Name() != "multi" {
			return next(ctx, cmds)
		}
		c.interrupt(cmds[0])
		err := next(ctx, cmds)
		c.scene.say(c.shown+":", "MULTI,", words(cmds[1])+",", "EXEC ->", answer(cmds[1]))
		return err
	}
}

func (c *client) interrupt(cmd goredis.Cmder) {
	if f := c.before[cmd.Name()]; f != nil {
		delete(c.before, cmd.Name())
		f()
	}
}

// unshown are the commands by which connections are opened and returned.
var unshown = []string{"hello", "auth", "select", "client", "unwatch"}

// words are those of a command. A script has a name in their place.
func words(cmd goredis.Cmder) string {
	words := []string{strings.ToUpper(cmd.Name())}
	for _, arg := range cmd.Args()[1:] {
		word := fmt.Sprint(arg)
		switch name, isScript := scriptNames[word]; {
		case isScript:
			word = name
		case slices.Contains([]string{"nx", "px", "ex"}, word):
			word = strings.ToUpper(word)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func answer(cmd goredis.Cmder) any {
	if err := cmd.Err(); err != nil {
		return err
	}
	switch cmd := cmd.(type) {
	case *goredis.BoolCmd:
		return cmd.Val()
	case *goredis.IntCmd:
		return cmd.Val()
	case *goredis.StringCmd:
		return cmd.Val()
	case *goredis.StatusCmd:
		return cmd.Val()
	case *goredis.Cmd:
		return cmd.Val()
	}
	panic(fmt.Errorf("the answer of %T is not known", cmd))
}

// must ends the step at an error. Programs return it instead.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
