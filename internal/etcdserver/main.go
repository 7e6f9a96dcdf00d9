// Command etcdserver is a current etcd server for tests, built from its Go
// module. It is a module of its own, so that what a server depends on stays out
// of the library's go.mod. It takes the flags of etcd.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
