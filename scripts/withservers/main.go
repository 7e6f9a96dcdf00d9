// Withservers runs a command with servers that it finds or starts, as the tests do, and
// stops afterwards:
//
//	go run ./scripts/withservers redis mariadb -- go run ./examples/sale
//
// The command is told of them by REDIS_URL and MYSQL_DSN.
package main

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"slices"

	"github.com/mortiselock/lock/internal/servertest"
)

func main() {
	host := &servertest.Program{}
	host.Cleanup(func() { _ = servertest.StopShared() })
	defer host.CleanUp()
	names, command, ok := split(os.Args[1:])
	if !ok {
		host.Fatalf("name servers and a command, as in: redis mariadb -- go run ./examples/sale")
	}
	env := os.Environ()
	for _, name := range names {
		switch name {
		case "redis":
			env = append(env, "REDIS_URL="+servertest.SharedRedis(host).URL())
		case "mariadb":
			env = append(env, "MYSQL_DSN="+servertest.MySQLDSN(servertest.SharedMariaDB(host)))
		default:
			host.Fatalf("no server is called %q: name redis or mariadb", name)
		}
	}
	// The signal of a terminal reaches the command too, and its end is awaited.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, os.Stdin, os.Stdout, os.Stderr
	var failed *exec.ExitError
	switch err := cmd.Run(); {
	case errors.As(err, &failed):
		host.CleanUp()
		os.Exit(max(failed.ExitCode(), 1))
	case err != nil:
		host.Fatalf("%v", err)
	}
}

// split parts the servers from the command.
func split(args []string) (names, command []string, ok bool) {
	at := slices.Index(args, "--")
	if at < 0 || at == len(args)-1 {
		return nil, nil, false
	}
	return args[:at], args[at+1:], true
}
