package main

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	_ "github.com/mortiselock/lock/etcd"
	"github.com/mortiselock/lock/internal/servertest"
)

const (
	bareTxn       = "create if absent + delete"
	sharedSession = "Mutex, shared session"
	ownSession    = "Mutex, own session"
)

var etcdStore = &store{
	name: "etcd", title: "etcd", parallel: 16, heldFor: aMoment,
	about: "One member that writes to the disk.",
	start: func(h *servertest.Program) *servers {
		server := servertest.Etcd(h, servertest.WithDataOnDisk())
		return &servers{
			version: "etcd " + server.Version(), addrs: []string{server.Addr()}, url: server.URL(),
			commands: func(ctx context.Context, _ *contender) (float64, error) { return etcdMessages(ctx, server.Addr()) },
		}
	},
	contenders: []contender{
		{
			name: bareTxn, kind: bare,
			how: "`Txn` with a lease of the client, `Delete`; every 1 ms while the key is taken",
			not: map[string]string{held: "the same lease for all keys, as with the shared session"},
			open: func(s *servers, p purpose) (client, error) {
				c, session, err := etcdSession(s, p)
				if err != nil {
					return client{}, err
				}
				return client{
					acquire: func(ctx context.Context, key string) (func() error, error) {
						for {
							resp, err := c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
								Then(clientv3.OpPut(key, "", clientv3.WithLease(session.Lease()))).Commit()
							if err != nil {
								return nil, err
							}
							if resp.Succeeded {
								return func() error { _, err := c.Delete(ctx, key); return err }, nil
							}
							if err := pause(ctx); err != nil {
								return nil, err
							}
						}
					},
					close: func() { _ = session.Close(); _ = c.Close() },
				}, nil
			},
		},
		{
			name: sharedSession, kind: peer,
			how: "`concurrency.NewMutex` in one `Session` of the client",
			not: map[string]string{
				contended: "two goroutines of one session both hold", waiters: "two goroutines of one session both hold",
				crowd: "two goroutines of one session both hold",
			},
			most: map[string]int{held: 10_000},
			open: func(s *servers, p purpose) (client, error) {
				c, session, err := etcdSession(s, p)
				if err != nil {
					return client{}, err
				}
				return client{
					acquire: func(ctx context.Context, key string) (func() error, error) {
						m := concurrency.NewMutex(session, key)
						if err := m.Lock(ctx); err != nil {
							return nil, err
						}
						return func() error { return m.Unlock(ctx) }, nil
					},
					close: func() { _ = session.Close(); _ = c.Close() },
				}, nil
			},
		},
		{
			name: ownSession, kind: peer,
			how:  "a `Session` for each acquisition",
			most: map[string]int{held: 1000},
			open: func(s *servers, p purpose) (client, error) {
				c, err := etcdClient(s)
				if err != nil {
					return client{}, err
				}
				return client{
					acquire: func(ctx context.Context, key string) (func() error, error) { return ownMutex(ctx, c, p, key) },
					close:   func() { _ = c.Close() },
				}, nil
			},
		},
		{
			name: "etcd:", kind: own, open: ours(""),
			how:  "`lock.Open` of `etcd://host`",
			most: map[string]int{held: 10_000},
			aims: []aim{
				atLeast(serial, 1.0, sharedSession),
				atLeast(contended, 2, ownSession),
				asWith(waiters, commands, 1500, 10, goal{atMost: 1.1}),
				{scenario: held, size: 10_000, figure: memory, goal: goal{atMost: 1.2}},
				{scenario: held, size: 10_000, figure: latest, goal: goal{atMost: 0.5}},
				{scenario: held, size: 10_000, figure: sockets, goal: goal{atMost: 10}},
				{scenario: held, size: 10_000, figure: goroutines, goal: goal{atMost: 100}},
			},
		},
	},
}

func etcdClient(s *servers) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{"http://" + s.addrs[0]}, Logger: zap.NewNop()})
}

func etcdSession(s *servers, p purpose) (*clientv3.Client, *concurrency.Session, error) {
	c, err := etcdClient(s)
	if err != nil {
		return nil, nil, err
	}
	session, err := concurrency.NewSession(c, concurrency.WithTTL(int(p.ttl/time.Second)))
	if err != nil {
		_ = c.Close()
	}
	return c, session, err
}

// ownMutex locks with a session of its own.
func ownMutex(ctx context.Context, c *clientv3.Client, p purpose, key string) (func() error, error) {
	session, err := concurrency.NewSession(c, concurrency.WithTTL(int(p.ttl/time.Second)))
	if err != nil {
		return nil, err
	}
	m := concurrency.NewMutex(session, key)
	if err := m.Lock(ctx); err != nil {
		_ = session.Close()
		return nil, err
	}
	return func() error { return errors.Join(m.Unlock(ctx), session.Close()) }, nil
}

// etcdMessages is how many the server has received, those in streams too.
func etcdMessages(ctx context.Context, addr string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	total := 0.0
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "grpc_server_msg_received_total{") {
			_, value, _ := strings.Cut(lines.Text(), "} ")
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, err
			}
			total += n
		}
	}
	return total, lines.Err()
}
