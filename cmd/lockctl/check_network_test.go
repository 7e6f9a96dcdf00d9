package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A network is put before the servers of a URL where the client goes nowhere else.
func TestNetworkBeforeAServer(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]struct{ server, at string }{
		"redis://cache":                           {"cache:6379", "redis://127.0.0.1:1"},
		"redis://u:p%40@cache:1234/2?fair=true":   {"cache:1234", "redis://u:p%40@127.0.0.1:1/2?fair=true"},
		"etcd://[::1]:2379":                       {"[::1]:2379", "etcd://127.0.0.1:1"},
		"zk://zoo?prefix=/a/b":                    {"zoo:2181", "zk://127.0.0.1:1?prefix=/a/b"},
		"mysql://root@db/app?mode=row":            {"db:3306", "mysql://root@127.0.0.1:1/app?mode=row"},
		"redlock://a,b:1,c?token=none":            {"a:6379,b:1,c:6379", "redlock://127.0.0.1:1?token=none"},
		"rediss://cache":                          {},
		"mysql://root@db/app?mode=table&tls=true": {},
		"redis://a,b,c?cluster=true":              {},
		"redis://a?cluster=true":                  {},
		"redis://sentinel?master=cache":           {},
		"etcd://a,b,c":                            {},
		"file:/var/lock/app":                      {},
		"mem:":                                    {},
		"no URL":                                  {},
	} {
		p := proxyOf(url)
		if want.server == "" {
			assert.Nil(t, p, url)
			continue
		}
		if assert.NotNil(t, p, url) {
			assert.Equal(t, want.server, p.Server, url)
			assert.Equal(t, want.at, urlAt(url, "127.0.0.1:1"))
		}
	}
}
