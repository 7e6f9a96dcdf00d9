package servertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Etcd returns an etcd server for this test only, the one on PATH, which is
// stopped at the test's cleanup. Its data survives Kill and Restart with data.
// Arguments (WithArgs) come last on its command line. It has no users; a test
// that needs some makes them and enables authentication through a client. A
// server from the environment is not private: other tests may be using it, so
// keys must be unique, and tests that disturb the server ask for WithControl. If
// there is no server the test is skipped, or fails under LOCK_TEST_REQUIRE.
func Etcd(t TB, opts ...Option) *Server {
	t.Helper()
	return private(t, systemFinder(), etcdKind, opts)
}

// SharedEtcd returns the etcd server that all tests of this test binary share.
// It starts on first use and runs until Main returns or StopShared is called.
// Tests on it use unique keys and leave the server's settings alone; they can't
// kill, freeze or restart it. Safe for parallel tests. If there is no server the
// test is skipped, or fails under LOCK_TEST_REQUIRE.
func SharedEtcd(t TB) *Server {
	t.Helper()
	return shared.get(t, systemFinder(), etcdKind)
}

// EtcdCluster is Etcd for n members of one cluster. Each can be killed, frozen
// and restarted by itself, with its data only, since etcd takes no member back
// that has forgotten what it voted for. Restart and Resume of a member return
// when it answers, for which more than half of the members must be up.
func EtcdCluster(t TB, n int, opts ...Option) []*Server {
	t.Helper()
	return cluster(t, systemFinder(), etcdKind, n, opts)
}

var etcdKind = register(&kind{
	name:          "etcd",
	title:         "etcd",
	env:           "LOCK_TEST_ETCD",
	binaries:      []string{"etcd"},
	install:       "apt-get install etcd-server",
	image:         "quay.io/coreos/etcd:v3.6.16",
	ownImage:      "mortise-test/etcd:3.5",
	containerPort: 2379,
	extraPorts:    2, // for the other members, and for TLS
	speaksTLS:     true,
	keepsData:     true,
	refuse:        refusePassword,
	command:       etcdCommand,
	probe:         probeEtcd,
	url:           func(to target) string { return "etcd://" + to.addr },
})

func etcdCommand(l launch) []string {
	at := func(port int) string { return "http://" + l.host + ":" + strconv.Itoa(port) }
	name := func(member int) string { return "m" + strconv.Itoa(member) }
	args := []string{"etcd", "--name", name(l.member), "--log-level", "warn", "--logger", "zap", "--snapshot-count", "1000"}
	if l.binary == "" {
		advertised := "http://127.0.0.1:" + strconv.Itoa(l.port)
		args = append(args,
			"--listen-client-urls", at(l.port),
			"--advertise-client-urls", advertised,
		)
		return append(args, l.args...)
	}
	args[0] = l.binary
	var members []string
	for i, m := range l.members {
		members = append(members, name(i)+"="+at(m.extra[0]))
	}
	peer := at(l.members[l.member].extra[0])
	clients := at(l.port)
	if l.tls != nil {
		clients += ",https://" + l.host + ":" + strconv.Itoa(l.members[l.member].tls())
		args = append(args, "--cert-file", l.tls.Cert, "--key-file", l.tls.Key, "--trusted-ca-file", l.tls.CA, "--client-cert-auth")
	}
	args = append(args,
		"--data-dir", filepath.Join(l.dir, "etcd"),
		"--listen-client-urls", clients,
		"--advertise-client-urls", at(l.port),
		"--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer,
		"--initial-cluster", strings.Join(members, ","),
		// Two clusters that were given the same port must not take each other's
		// members for their own.
		"--initial-cluster-token", fmt.Sprint("mortise-", os.Getpid(), l.members),
		"--initial-cluster-state", "new",
	)
	return append(args, l.args...)
}

// probeEtcd asks over HTTP, which needs no user and starts no client: /health
// is true when a leader confirmed a read.
func probeEtcd(ctx context.Context, to target) (string, error) {
	var health struct {
		Health string `json:"health"`
		Reason string `json:"reason"`
	}
	if err := getJSON(ctx, "http://"+to.addr+"/health", &health); err != nil {
		return "", err
	}
	if health.Health != "true" {
		return "", fmt.Errorf("etcd is not healthy: %s", health.Reason)
	}
	var version struct {
		Server string `json:"etcdserver"`
	}
	if err := getJSON(ctx, "http://"+to.addr+"/version", &version); err != nil {
		return "", err
	}
	return version.Server, nil
}

func getJSON(ctx context.Context, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("%s: %s: %w", url, resp.Status, err)
	}
	return nil
}

// refusePassword is for kinds whose servers have no password from the start.
func refusePassword(c config) error {
	if c.password != "" {
		return errors.New("it has no password to start with; make users through a client")
	}
	return nil
}
