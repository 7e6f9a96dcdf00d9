package servertest

import "slices"

// Option says what a test needs of a server of its own. A test with any option
// passes over a server from the environment, where options can't be applied.
type Option func(*config)

// config is what a test asked for.
type config struct {
	args        []string
	password    string
	persistence bool
	control     bool
	disk        bool
	tls         *TLSFiles
}

// TLSFiles are paths of PEM files of a server that speaks TLS.
type TLSFiles struct {
	CA        string // the authority that its clients' certificates are signed by
	Cert, Key string // its own certificate
}

// own reports whether only a server started here will do.
func (c config) own() bool {
	return len(c.args) > 0 || c.password != "" || c.persistence || c.control || c.disk || c.tls != nil
}

func newConfig(opts []Option) config {
	var c config
	for _, opt := range opts {
		opt(&c)
	}
	return c
}

// WithArgs appends arguments to the server's command line, after those that
// this package sets, as in WithArgs("--maxmemory", "2mb"). Don't move the
// port, the directory or the password with it.
func WithArgs(args ...string) Option {
	return func(c *config) { c.args = append(slices.Clip(c.args), args...) }
}

// WithPassword makes the server ask for a password. It is visible in the
// process list, so it is for tests only.
func WithPassword(password string) Option {
	return func(c *config) { c.password = password }
}

// WithPersistence makes the server write each change to disk before it answers
// (Redis: appendonly yes, appendfsync always), so that Restart with its data
// kept brings back all that was confirmed.
func WithPersistence() Option {
	return func(c *config) { c.persistence = true }
}

// WithDataOnDisk keeps the data of a server that is started here out of memory (see
// the package comment): MariaDB maps a log that is in memory, and then forgets
// nothing when it is killed.
func WithDataOnDisk() Option {
	return func(c *config) { c.disk = true }
}

// WithControl asks for a server that this test may kill, freeze and restart.
func WithControl() Option {
	return func(c *config) { c.control = true }
}

// WithTLS makes the server serve at TLSAddr too, to those alone who show a
// certificate that the authority has signed. MariaDB does so at its only address, to
// those who ask for it, and asks for certificates only where the account requires them.
// Only etcd, ZooKeeper and MariaDB do it, and not in a container, which does not see
// the files.
func WithTLS(files TLSFiles) Option {
	return func(c *config) { c.tls = &files }
}
