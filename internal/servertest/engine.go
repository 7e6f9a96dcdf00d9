package servertest

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/ory/dockertest/v3"
	dc "github.com/ory/dockertest/v3/docker"
)

const (
	pingBound = 5 * time.Second // for the Docker engine to answer
	pullBound = 3 * time.Minute // for an image to be pulled

	// labelExpires marks our containers, with the Unix second after which they
	// are nobody's.
	labelExpires = "mortise.servertest.expires"
)

// engine is a Docker engine that answered.
type engine struct {
	pool   *dockertest.Pool
	host   string // where published ports are reached
	bindIP string // address on the engine's machine to publish ports on
	images memo[struct{}]
}

var engines memo[*engine]

// engine returns the Docker engine that the environment names, or the local one.
func (f *finder) engine() (*engine, error) {
	endpoint := f.getenv("DOCKER_HOST")
	return engines.get(endpoint, func() (*engine, error) {
		pool, err := dockertest.NewPool(endpoint)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(context.Background(), pingBound)
		defer cancel()
		if err := pool.Client.PingWithContext(ctx); err != nil {
			return nil, err
		}
		e := &engine{pool: pool, host: "127.0.0.1", bindIP: "127.0.0.1"}
		if u, err := url.Parse(pool.Client.Endpoint()); err == nil && u.Scheme != "unix" && u.Scheme != "npipe" && u.Hostname() != "" {
			e.host, e.bindIP = u.Hostname(), ""
		}
		e.sweep()
		return e, nil
	})
}

// has reports whether the engine has the image.
func (e *engine) has(image string) bool {
	repository, tag := splitImage(image)
	_, err := e.pool.Client.InspectImage(repository + ":" + tag)
	return err == nil
}

// ensureImage pulls the image unless the engine has it.
func (e *engine) ensureImage(image string) error {
	_, err := e.images.get(image, func() (struct{}, error) {
		repository, tag := splitImage(image)
		_, err := e.pool.Client.InspectImage(repository + ":" + tag)
		if !errors.Is(err, dc.ErrNoSuchImage) {
			return struct{}{}, err
		}
		ctx, cancel := context.WithTimeout(context.Background(), pullBound)
		defer cancel()
		err = e.pool.Client.PullImage(dc.PullImageOptions{Repository: repository, Tag: tag, Context: ctx}, dc.AuthConfiguration{})
		if err != nil {
			err = fmt.Errorf("the engine does not have it, and pulling it failed: %w", err)
		}
		return struct{}{}, err
	})
	return err
}

// labels marks a container that is started now.
func (e *engine) labels() map[string]string {
	return map[string]string{labelExpires: strconv.FormatInt(time.Now().Add(lifetime()).Unix(), 10)}
}

// sweep removes the containers of test binaries that were killed.
func (e *engine) sweep() {
	found, err := e.pool.Client.ListContainers(dc.ListContainersOptions{
		All:     true,
		Filters: map[string][]string{"label": {labelExpires}},
	})
	if err != nil {
		return
	}
	for _, c := range found {
		expires, err := strconv.ParseInt(c.Labels[labelExpires], 10, 64)
		if err == nil && time.Now().Unix() > expires {
			_ = e.removeContainer(c.ID) // the next run tries again
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
