package servertest

// EtcdCurrent is Etcd for a current server in place of the one on PATH: it is
// built from its Go module (internal/etcdserver) when a machine needs it for the
// first time, which takes about a minute, and kept in the user's cache directory.
func EtcdCurrent(t TB, opts ...Option) *Server {
	t.Helper()
	return private(t, systemFinder(), etcdCurrentKind, opts)
}

// SharedEtcdCurrent is SharedEtcd for a current server; see EtcdCurrent.
func SharedEtcdCurrent(t TB) *Server {
	t.Helper()
	return shared.get(t, systemFinder(), etcdCurrentKind)
}

// EtcdCurrentCluster is EtcdCluster for a current server; see EtcdCurrent.
func EtcdCurrentCluster(t TB, n int, opts ...Option) []*Server {
	t.Helper()
	return cluster(t, systemFinder(), etcdCurrentKind, n, opts)
}

var etcdCurrentKind = register(func() *kind {
	k := *etcdKind
	k.name = "etcd-current"
	k.title = "current etcd"
	k.env = "LOCK_TEST_ETCD_CURRENT"
	k.ownImage = "" // which is an older one
	k.program = etcdCurrentProgram
	k.install = "let go build in internal/etcdserver reach the Go module proxy"
	k.command = func(l launch) []string {
		args := etcdCommand(l)
		if !l.persistence {
			// What was written survives the end of the process, not that of the machine.
			args = append(args, "--unsafe-no-fsync")
		}
		return args
	}
	return &k
}())

func etcdCurrentProgram(f *finder) (string, error) { return f.moduleProgram("etcdserver") }
