package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock/internal/servertest"
	_ "github.com/mortiselock/lock/zookeeper"
)

const zkLock = "zk.Lock"

var zookeeperStore = &store{
	name: "zookeeper", title: "ZooKeeper", parallel: 16, heldFor: aMoment,
	about: "One server that writes to the disk.",
	start: func(h *servertest.Program) *servers {
		server := servertest.ZooKeeper(h, servertest.WithDataOnDisk())
		return &servers{
			version: "ZooKeeper " + server.Version(), addrs: []string{server.Addr()}, url: server.URL(),
			commands: func(ctx context.Context, _ *contender) (float64, error) { return zkReceived(ctx, server.Addr()) },
		}
	},
	contenders: []contender{
		{
			name: zkLock, kind: peer,
			how:  "`zk.NewLock` on one connection; its `Lock` takes no context",
			most: map[string]int{held: 10_000},
			open: func(s *servers, p purpose) (client, error) {
				conn, events, err := zk.Connect(s.addrs, p.ttl, zk.WithLogInfo(false))
				if err != nil {
					return client{}, err
				}
				go func() {
					for range events {
					}
				}()
				return client{
					acquire: func(_ context.Context, key string) (func() error, error) {
						l := zk.NewLock(conn, "/bench/"+key, zk.WorldACL(zk.PermAll))
						return l.Unlock, l.Lock()
					},
					close: conn.Close,
				}, nil
			},
		},
		{
			name: "zk:", kind: own, open: ours(""),
			how:  "`lock.Open` of `zk://host`",
			most: map[string]int{held: 10_000},
			aims: []aim{
				atLeast(serial, 1.0, zkLock),
				atLeast(contended, 1.3, zkLock),
				asWith(waiters, commands, 1500, 10, goal{atMost: 1.1}),
				{scenario: held, size: 10_000, figure: memory, goal: goal{atMost: 1.2}},
				{scenario: held, size: 10_000, figure: latest, goal: goal{atMost: 0.5}},
				{scenario: held, size: 10_000, figure: sockets, goal: goal{atMost: 10}},
				{scenario: held, size: 10_000, figure: goroutines, goal: goal{atMost: 100}},
			},
		},
	},
}

// zkReceived is how many packets the server has received.
func zkReceived(ctx context.Context, addr string) (float64, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprint(conn, "srvr"); err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		var n float64
		if _, err := fmt.Sscanf(lines.Text(), "Received: %f", &n); err == nil {
			return n, nil
		}
	}
	return 0, errors.Join(lines.Err(), errors.New("the server does not say what it has received"))
}
