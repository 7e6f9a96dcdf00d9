package servertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/ory/dockertest/v3"
	dc "github.com/ory/dockertest/v3/docker"
)

// containerData is the data directory in containers.
const containerData = "/data"

// container is a server that runs in a container of the local Docker engine.
// It is not removed by the engine when it exits, since Restart needs its data,
// so it carries labels by which a later run finds it.
type container struct {
	engine *engine
	opts   *dockertest.RunOptions
	image  string

	mu       sync.Mutex
	resource *dockertest.Resource // nil before the first start and after wipe
}

func newContainer(e *engine, k *kind, c config, image string, port int) *container {
	repository, tag := splitImage(image)
	inner := dc.Port(strconv.Itoa(k.containerPort) + "/tcp")
	opts := &dockertest.RunOptions{
		Name:         fmt.Sprintf("mortise-%s-%d-%08x", k.name, os.Getpid(), rand.Uint32()),
		Repository:   repository,
		Tag:          tag,
		Cmd:          k.command(launch{config: c, host: "0.0.0.0", port: k.containerPort, dir: containerData}),
		ExposedPorts: []string{string(inner)},
		// A chosen port, since one that Docker chooses changes at each start.
		PortBindings: map[dc.Port][]dc.PortBinding{inner: {{HostIP: e.bindIP, HostPort: strconv.Itoa(port)}}},
	}
	if k.containerEnv != nil {
		opts.Env = k.containerEnv(c)
	}
	return &container{engine: e, opts: opts, image: image}
}

// splitImage splits name:tag, name@digest or name, where the name may hold the
// port of a registry.
func splitImage(image string) (repository, tag string) {
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		return image[:i], image[i+1:]
	}
	return image, "latest"
}

func (c *container) get() *dockertest.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resource
}

func (c *container) set(r *dockertest.Resource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resource = r
}

func (c *container) start() error {
	r := c.get()
	if r == nil {
		c.opts.Labels = c.engine.labels()
		created, err := c.engine.pool.RunWithOptions(c.opts, func(host *dc.HostConfig) {
			host.PublishAllPorts = false
			host.RestartPolicy = dc.NeverRestart()
		})
		if err != nil {
			// A container that could not be started exists all the same.
			return errors.Join(err, c.engine.removeContainer(c.opts.Name))
		}
		r = created
		c.set(r)
	} else {
		ctx, cancel := c.engine.bound()
		defer cancel()
		if err := c.engine.pool.Client.StartContainerWithContext(r.Container.ID, nil, ctx); err != nil {
			return err
		}
	}
	// Holds for one start: the engine forgets it when the container exits.
	return r.Expire(uint(lifetime().Seconds()))
}

func (c *container) running() bool {
	r := c.get()
	if r == nil {
		return false
	}
	ctx, cancel := c.engine.bound()
	defer cancel()
	state, err := c.engine.pool.Client.InspectContainerWithContext(r.Container.ID, ctx)
	return err == nil && state.State.Running
}

func (c *container) kill() error {
	r := c.get()
	if r == nil {
		return nil
	}
	ctx, cancel := c.engine.bound()
	defer cancel()
	err := c.engine.pool.Client.KillContainer(dc.KillContainerOptions{ID: r.Container.ID, Signal: dc.SIGKILL, Context: ctx})
	if down := (*dc.ContainerNotRunning)(nil); err != nil && !errors.As(err, &down) {
		return err
	}
	_, err = c.engine.pool.Client.WaitContainerWithContext(r.Container.ID, ctx)
	return err
}

func (c *container) freeze() error {
	return c.withID(c.engine.pool.Client.PauseContainer)
}

func (c *container) resume() error {
	return c.withID(c.engine.pool.Client.UnpauseContainer)
}

func (c *container) withID(do func(id string) error) error {
	r := c.get()
	if r == nil {
		return os.ErrProcessDone
	}
	return do(r.Container.ID)
}

func (c *container) wipe() error { return c.remove() }

func (c *container) remove() error {
	if c.get() == nil {
		return nil
	}
	if err := c.engine.removeContainer(c.opts.Name); err != nil {
		return err
	}
	c.set(nil)
	c.engine.pool.Client.HTTPClient.CloseIdleConnections()
	return nil
}

func (c *container) pid() int { return 0 }

func (c *container) log() string {
	r := c.get()
	if r == nil {
		return "(there is no container)"
	}
	ctx, cancel := c.engine.bound()
	defer cancel()
	var text bytes.Buffer
	err := c.engine.pool.Client.Logs(dc.LogsOptions{
		Context: ctx, Container: r.Container.ID,
		OutputStream: &text, ErrorStream: &text,
		Stdout: true, Stderr: true, Tail: "30",
	})
	if err != nil {
		fmt.Fprintf(&text, "(its log can't be read: %v)", err)
	}
	return text.String()
}

func (c *container) String() string {
	return fmt.Sprintf("container %s of %s", c.opts.Name, c.image)
}

// removeContainer removes a container with its volumes. One that is not there
// is fine.
func (e *engine) removeContainer(name string) error {
	ctx, cancel := e.bound()
	defer cancel()
	err := e.pool.Client.RemoveContainer(dc.RemoveContainerOptions{ID: name, Force: true, RemoveVolumes: true, Context: ctx})
	if gone := (*dc.NoSuchContainer)(nil); errors.As(err, &gone) {
		return nil
	}
	return err
}

func (e *engine) bound() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), readyBound)
}
