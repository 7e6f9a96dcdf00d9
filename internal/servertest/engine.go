package servertest

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"net/rpc/jsonrpc"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// labelExpires marks our containers, with the Unix second after which they are nobody's.
const labelExpires = "mortise.servertest.expires"

// engine is a Docker engine that answered, behind the program internal/containers, which
// ends with this process.
type engine struct {
	rpc    *rpc.Client
	host   string // where published ports are reached
	bindIP string // address on the engine's machine to publish ports on
	images memo[struct{}]
}

var engines memo[*engine]

// engine returns the Docker engine that the environment names, or the local one.
func (f *finder) engine() (*engine, error) {
	endpoint := f.getenv("DOCKER_HOST")
	return engines.get(endpoint, func() (*engine, error) {
		program, err := f.moduleProgram("containers")
		if err != nil {
			return nil, err
		}
		e, err := newEngine(program)
		if err != nil {
			return nil, err
		}
		at, err := ask[string](e, "Connect", endpoint)
		if err != nil {
			return nil, errors.Join(err, e.rpc.Close())
		}
		if u, err := url.Parse(at); err == nil && u.Scheme != "unix" && u.Scheme != "npipe" && u.Hostname() != "" {
			e.host, e.bindIP = u.Hostname(), ""
		} else if name, err := ask[string](e, "Bridge", struct{}{}); err == nil {
			// What is published on a loopback address goes through a process of the engine.
			if ip := addressOf(name); ip != "" {
				e.host, e.bindIP = ip, ip
			}
		}
		e.sweep()
		return e, nil
	})
}

// addressOf is the address of this machine's network interface, or nothing: the engine may
// run on another machine, a virtual one too.
func addressOf(name string) string {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return ""
	}
	all, err := i.Addrs()
	if err != nil {
		return ""
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	return ""
}

// closeEngines ends the programs. The next use starts them again.
func closeEngines() (err error) {
	engines.mu.Lock()
	defer engines.mu.Unlock()
	for _, get := range engines.runs {
		if e, failed := get(); failed == nil {
			err = errors.Join(err, e.rpc.Close())
		}
	}
	engines.runs = nil
	return err
}

func newEngine(program string) (*engine, error) {
	cmd := exec.Command(program)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &engine{rpc: jsonrpc.NewClient(pipe{out, in, cmd}), host: "127.0.0.1", bindIP: "127.0.0.1"}, nil
}

// pipe is what a program reads and writes.
type pipe struct {
	io.Reader
	io.WriteCloser
	cmd *exec.Cmd
}

func (p pipe) Close() error { return errors.Join(p.WriteCloser.Close(), p.cmd.Wait()) }

// ask has the program do something, and returns its answer.
func ask[T any](e *engine, method string, args any) (answer T, err error) {
	return answer, e.rpc.Call("Engine."+method, args, &answer)
}

func (e *engine) tell(method string, args any) error {
	_, err := ask[struct{}](e, method, args)
	return err
}

// image is a repository with a tag.
type image struct{ Repository, Tag string }

// has reports whether the engine has the image.
func (e *engine) has(name string) bool {
	has, err := ask[bool](e, "Has", splitImage(name))
	return err == nil && has
}

// ensureImage pulls the image unless the engine has it.
func (e *engine) ensureImage(name string) error {
	_, err := e.images.get(name, func() (struct{}, error) {
		has, err := ask[bool](e, "Has", splitImage(name))
		if err != nil || has {
			return struct{}{}, err
		}
		if err := e.tell("Pull", splitImage(name)); err != nil {
			return struct{}{}, fmt.Errorf("the engine does not have it, and pulling it failed: %w", err)
		}
		return struct{}{}, nil
	})
	return err
}

// labels marks a container that is started now.
func (e *engine) labels() map[string]string {
	return map[string]string{labelExpires: strconv.FormatInt(time.Now().Add(lifetime()).Unix(), 10)}
}

// sweep removes the containers of test binaries that were killed.
func (e *engine) sweep() {
	found, err := ask[map[string]string](e, "Labelled", labelExpires)
	if err != nil {
		return
	}
	for id, label := range found {
		expires, err := strconv.ParseInt(label, 10, 64)
		if err == nil && time.Now().Unix() > expires {
			_ = e.tell("Remove", id) // the next run tries again
		}
	}
}

// lifetime is how long a container may run: a minute longer than the time limit
// of the test binary, a day if it has none.
func lifetime() time.Duration {
	var limit time.Duration
	if f := flag.Lookup("test.timeout"); f != nil {
		if g, ok := f.Value.(flag.Getter); ok {
			limit, _ = g.Get().(time.Duration)
		}
	}
	return cmp.Or(limit, 24*time.Hour) + time.Minute
}
