package main

import (
	"context"
	"strings"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

// ports are those of the servers before which a network can be put: a client reaches
// nothing but the addresses of its URL, and none of them is in a certificate.
var ports = map[string]string{"redis": "6379", "redlock": "6379", "etcd": "2379", "zk": "2181", "mysql": "3306"}

// proxyOf is what the suite needs to disturb the network before the servers of a URL, or nil.
// A client that is told of other addresses by its server would go around it, and TLS would
// not know the server by the proxy's address.
func proxyOf(raw string) *conformance.Proxy {
	u, err := backend.ParseURL(raw)
	if err != nil || ports[u.Scheme] == "" || len(u.Hosts) > 1 && u.Scheme != "redlock" {
		return nil
	}
	if u.Query.Bool("tls", false) || u.Query.Bool("cluster", false) || u.Query.String("master", "") != "" {
		return nil
	}
	return &conformance.Proxy{
		Server: strings.Join(u.HostsWithPort(ports[u.Scheme]), ","),
		Open: func(ctx context.Context, addr string) (lock.Locker, error) {
			return lock.Open(ctx, urlAt(raw, addr), &lock.Options{TTL: checkTTL})
		},
	}
}

// urlAt is the URL with another address.
func urlAt(raw, addr string) string {
	scheme, rest, _ := strings.Cut(raw, ":")
	rest, query, parameters := strings.Cut(rest, "?")
	rest = strings.TrimPrefix(rest, "//")
	authority, path, below := strings.Cut(rest, "/")
	user := authority[:strings.LastIndex(authority, "@")+1]
	out := scheme + "://" + user + addr
	if below {
		out += "/" + path
	}
	if parameters {
		out += "?" + query
	}
	return out
}
