// Command containers carries out what package servertest asks of a Docker engine: JSON-RPC
// on standard input and output, until the input ends. It is a module of its own, so that
// nobody who uses locks has the Docker libraries in a module graph.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"sync"
	"time"

	"github.com/ory/dockertest/v3"
	dc "github.com/ory/dockertest/v3/docker"
)

const (
	pingBound = 5 * time.Second // for the engine to answer at first
	callBound = time.Minute     // for any other request
	pullBound = 3 * time.Minute // for an image to be pulled
)

func main() {
	if err := rpc.Register(&Engine{made: map[string]*dockertest.Resource{}}); err != nil {
		fmt.Fprintln(os.Stderr, "containers:", err)
		os.Exit(1)
	}
	jsonrpc.ServeConn(struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout})
}

// Engine is the Docker engine. Its methods may be called at the same time, after Connect.
type Engine struct {
	pool *dockertest.Pool

	mu   sync.Mutex
	made map[string]*dockertest.Resource // by the id of the container
}

// None is the answer to what has none.
type None struct{}

func bound() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), callBound)
}

// Connect asks the engine at the endpoint, or the local one, whether it is there, and
// answers with its endpoint.
func (e *Engine) Connect(endpoint string, at *string) error {
	pool, err := dockertest.NewPool(endpoint)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), pingBound)
	defer cancel()
	e.pool, *at = pool, pool.Client.Endpoint()
	return pool.Client.PingWithContext(ctx)
}

// Bridge answers with the name of the engine's network interface among containers.
func (e *Engine) Bridge(_ None, name *string) error {
	bridge, err := e.pool.Client.NetworkInfo("bridge")
	if err == nil {
		*name = bridge.Options["com.docker.network.bridge.name"]
	}
	return err
}

// Image is a repository with a tag.
type Image struct{ Repository, Tag string }

// Has answers whether the engine has the image.
func (e *Engine) Has(image Image, has *bool) error {
	_, err := e.pool.Client.InspectImage(image.Repository + ":" + image.Tag)
	*has = err == nil
	if errors.Is(err, dc.ErrNoSuchImage) {
		return nil
	}
	return err
}

// Pull pulls the image.
func (e *Engine) Pull(image Image, _ *None) error {
	ctx, cancel := context.WithTimeout(context.Background(), pullBound)
	defer cancel()
	return e.pool.Client.PullImage(dc.PullImageOptions{Repository: image.Repository, Tag: image.Tag, Context: ctx}, dc.AuthConfiguration{})
}

// Run is a container to make. Port of the container is published at HostIP:HostPort.
type Run struct {
	Name             string
	Image            Image
	Cmd, Env         []string
	Port             string
	HostIP, HostPort string
	Labels           map[string]string
	// Data is a directory that is kept outside the layers of the image, where writing costs
	// more, or empty. It goes with the container.
	Data string
}

// Run makes and starts the container, and answers with its id.
func (e *Engine) Run(run Run, id *string) error {
	inner := dc.Port(run.Port)
	made, err := e.pool.RunWithOptions(&dockertest.RunOptions{
		Name: run.Name, Repository: run.Image.Repository, Tag: run.Image.Tag, Cmd: run.Cmd, Env: run.Env,
		ExposedPorts: []string{run.Port}, Labels: run.Labels,
		PortBindings: map[dc.Port][]dc.PortBinding{inner: {{HostIP: run.HostIP, HostPort: run.HostPort}}},
	}, func(host *dc.HostConfig) {
		host.PublishAllPorts = false
		host.RestartPolicy = dc.NeverRestart()
		if run.Data != "" {
			host.Mounts = []dc.HostMount{{Type: "volume", Target: run.Data}}
		}
	})
	if err != nil {
		// A container that could not be started exists all the same.
		return errors.Join(err, e.Remove(run.Name, nil))
	}
	*id = made.Container.ID
	e.mu.Lock()
	e.made[*id] = made
	e.mu.Unlock()
	return nil
}

// Start starts a container again that has exited.
func (e *Engine) Start(id string, _ *None) error {
	ctx, cancel := bound()
	defer cancel()
	return e.pool.Client.StartContainerWithContext(id, nil, ctx)
}

// Expiry is when a container that Run has made is to end.
type Expiry struct {
	ID      string
	Seconds uint
}

// Expire has the engine end the container. It holds for one start: the engine forgets it
// when the container exits.
func (e *Engine) Expire(x Expiry, _ *None) error {
	e.mu.Lock()
	made := e.made[x.ID]
	e.mu.Unlock()
	if made == nil {
		return fmt.Errorf("no container %s was made here", x.ID)
	}
	return made.Expire(x.Seconds)
}

// Running answers whether the container runs.
func (e *Engine) Running(id string, running *bool) error {
	ctx, cancel := bound()
	defer cancel()
	state, err := e.pool.Client.InspectContainerWithContext(id, ctx)
	*running = err == nil && state.State.Running
	return err
}

// Exists answers whether there is a container with the id or the name.
func (e *Engine) Exists(id string, exists *bool) error {
	_, err := e.pool.Client.InspectContainer(id)
	*exists = err == nil
	if gone := (*dc.NoSuchContainer)(nil); errors.As(err, &gone) {
		return nil
	}
	return err
}

// Kill ends the container at once, and waits for its end.
func (e *Engine) Kill(id string, _ *None) error {
	ctx, cancel := bound()
	defer cancel()
	err := e.pool.Client.KillContainer(dc.KillContainerOptions{ID: id, Signal: dc.SIGKILL, Context: ctx})
	if down := (*dc.ContainerNotRunning)(nil); err != nil && !errors.As(err, &down) {
		return err
	}
	_, err = e.pool.Client.WaitContainerWithContext(id, ctx)
	return err
}

// Pause stops all processes of the container.
func (e *Engine) Pause(id string, _ *None) error { return e.pool.Client.PauseContainer(id) }

// Unpause has them go on.
func (e *Engine) Unpause(id string, _ *None) error { return e.pool.Client.UnpauseContainer(id) }

// Remove removes the container with the id or the name, and its volumes. One that is not
// there is fine.
func (e *Engine) Remove(name string, _ *None) error {
	ctx, cancel := bound()
	defer cancel()
	err := e.pool.Client.RemoveContainer(dc.RemoveContainerOptions{ID: name, Force: true, RemoveVolumes: true, Context: ctx})
	if gone := (*dc.NoSuchContainer)(nil); errors.As(err, &gone) {
		return nil
	}
	return err
}

// Log answers with the last lines that the container has written.
func (e *Engine) Log(id string, text *string) error {
	ctx, cancel := bound()
	defer cancel()
	var b bytes.Buffer
	err := e.pool.Client.Logs(dc.LogsOptions{
		Context: ctx, Container: id,
		OutputStream: &b, ErrorStream: &b,
		Stdout: true, Stderr: true, Tail: "30",
	})
	*text = b.String()
	return err
}

// Labelled answers with the label's value for each container that has it, by id.
func (e *Engine) Labelled(label string, values *map[string]string) error {
	found, err := e.pool.Client.ListContainers(dc.ListContainersOptions{All: true, Filters: map[string][]string{"label": {label}}})
	*values = map[string]string{}
	for _, c := range found {
		(*values)[c.ID] = c.Labels[label]
	}
	return err
}
