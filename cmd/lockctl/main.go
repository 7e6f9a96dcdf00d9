// Command lockctl runs commands under locks that several machines share.
//
//	lockctl run nightly-report -- ./report.sh
//
// It holds the key while the command runs, keeps the lease renewed, and stops
// the command before anybody else can get the key when the hold is lost. See
// lockctl run --help, which has the exit statuses too.
package main

import (
	"errors"
	"io"
	"os"
	"strings"

	"github.com/redis/go-redis/v9/logging"

	"github.com/mortiselock/lock/conformance"

	// The backends, each of which registers its URL schemes.
	_ "github.com/mortiselock/lock/etcd"
	_ "github.com/mortiselock/lock/file"
	_ "github.com/mortiselock/lock/memory"
	_ "github.com/mortiselock/lock/mysql"
	_ "github.com/mortiselock/lock/redis"
	_ "github.com/mortiselock/lock/redis/redlock"
	_ "github.com/mortiselock/lock/zookeeper"
)

func main() {
	conformance.Child(checkOf) // for lockctl check
	runHelper()
	os.Exit(execute(os.Args[1:], os.Stdout, messages()))
}

// execute runs the command line and returns the exit status.
func execute(args []string, stdout, stderr io.Writer) int {
	logging.Disable() // go-redis would write to stderr what we say as well
	p := newPrinter(stderr)
	defer p.close()
	root := newRootCommand(p)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return exitOK
	}
	var e *exitError
	if !errors.As(err, &e) {
		// Everything that cobra and pflag complain about themselves.
		hint := "see " + cmd.CommandPath() + " --help"
		if strings.HasPrefix(err.Error(), "unknown ") && strings.Contains(err.Error(), "flag") {
			hint = "a key that begins with - stands behind --; " + hint
		}
		e = usageError("%v; %s", err, hint)
	}
	if e.message != "" {
		p.say(e.message)
	}
	return e.code
}
