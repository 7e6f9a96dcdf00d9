package servertest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
)

// containerData is the data directory in containers.
const containerData = "/data"

// container is a server that runs in a container of the local Docker engine.
// It is not removed by the engine when it exits, since Restart needs its data,
// so it carries labels by which a later run finds it.
type container struct {
	engine *engine
	run    containerRun

	mu sync.Mutex
	id string // empty before the first start and after wipe
}

// containerRun is what internal/containers is told to make.
type containerRun struct {
	Name             string
	Image            image
	Cmd, Env         []string
	Port             string
	HostIP, HostPort string
	Labels           map[string]string
	Data             string
}

func newContainer(e *engine, k *kind, c config, name string, port int) *container {
	run := containerRun{
		Name:   fmt.Sprintf("mortise-%s-%d-%08x", k.name, os.Getpid(), rand.Uint32()),
		Image:  splitImage(name),
		Cmd:    k.command(launch{config: c, host: "0.0.0.0", port: k.containerPort, dir: containerData}),
		Port:   strconv.Itoa(k.containerPort) + "/tcp",
		HostIP: e.bindIP,
		// A chosen port, since one that Docker chooses changes at each start.
		HostPort: strconv.Itoa(port),
		Data:     k.containerData,
	}
	if k.containerEnv != nil {
		run.Env = k.containerEnv(c)
	}
	return &container{engine: e, run: run}
}

// splitImage splits name:tag, name@digest or name, where the name may hold the
// port of a registry.
func splitImage(name string) image {
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		return image{name[:i], name[i+1:]}
	}
	return image{name, "latest"}
}

func (c *container) get() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

func (c *container) set(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.id = id
}

func (c *container) start() error {
	id := c.get()
	if id == "" {
		c.run.Labels = c.engine.labels()
		made, err := ask[string](c.engine, "Run", c.run)
		if err != nil {
			return err
		}
		id = made
		c.set(id)
	} else if err := c.engine.tell("Start", id); err != nil {
		return err
	}
	return c.expire(uint(lifetime().Seconds()))
}

func (c *container) expire(seconds uint) error {
	return c.engine.tell("Expire", struct {
		ID      string
		Seconds uint
	}{c.get(), seconds})
}

func (c *container) running() bool {
	id := c.get()
	if id == "" {
		return false
	}
	running, err := ask[bool](c.engine, "Running", id)
	return err == nil && running
}

func (c *container) kill() error {
	if c.get() == "" {
		return nil
	}
	return c.engine.tell("Kill", c.get())
}

// freeze asks again when runc has given up: on a busy machine the kernel may take longer to
// freeze all threads of a group than runc looks at it.
func (c *container) freeze() (err error) {
	for range 5 {
		if err = c.tell("Pause"); err == nil || !strings.Contains(err.Error(), "unable to freeze") {
			break
		}
	}
	return err
}

func (c *container) resume() error { return c.tell("Unpause") }

func (c *container) tell(method string) error {
	id := c.get()
	if id == "" {
		return os.ErrProcessDone
	}
	return c.engine.tell(method, id)
}

func (c *container) wipe() error { return c.remove() }

func (c *container) remove() error {
	if c.get() == "" {
		return nil
	}
	if err := c.engine.tell("Remove", c.run.Name); err != nil {
		return err
	}
	c.set("")
	return nil
}

func (c *container) pid() int { return 0 }

func (c *container) log() string {
	id := c.get()
	if id == "" {
		return "(there is no container)"
	}
	text, err := ask[string](c.engine, "Log", id)
	if err != nil {
		text += fmt.Sprintf("(its log can't be read: %v)", err)
	}
	return text
}

func (c *container) String() string {
	return fmt.Sprintf("container %s of %s:%s", c.run.Name, c.run.Image.Repository, c.run.Image.Tag)
}
