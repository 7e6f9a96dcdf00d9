// Command testrun runs go test, shows which packages are running, and ends with a summary:
// what ran, what was left out and why, and which rules of the suite were inconclusive.
//
//	testrun [-outcomes FILE] [arguments of go test [-- arguments of another go test]...]
//
// Several go tests run side by side; one behind "then" in place of "--" when the one before it has
// ended. Arguments like NAME=value that come first are its environment. The status is that of go
// test, the largest of them. With -outcomes it also writes a line for each rule, form of a lock
// and outcome, so that two runs can be compared.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"sync"
	"time"
)

func main() {
	args, outcomes := os.Args[1:], ""
	if len(args) >= 2 && args[0] == "-outcomes" {
		outcomes, args = args[1], args[2:]
	}
	status, err := run(os.Stdout, split(args, "--"), outcomes)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

// split returns the lists of arguments between which there is the separator.
func split(args []string, separator string) (lists [][]string) {
	for {
		i := slices.Index(args, separator)
		if i < 0 {
			return append(lists, args)
		}
		lists, args = append(lists, args[:i]), args[i+1:]
	}
}

var variable = regexp.MustCompile(`^[A-Z_]+=`)

// quietly is how often it is said which packages are running, while none ends.
const quietly = 30 * time.Second

// run runs go test once for each of the lists of arguments, side by side or where "then" is in
// a list one after the other, and returns the largest status.
func run(out io.Writer, lists [][]string, outcomes string) (int, error) {
	var mu sync.Mutex
	s := newSummary(out)
	tick := time.NewTicker(quietly)
	defer tick.Stop()
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				mu.Lock()
				s.progress()
				mu.Unlock()
			}
		}
	}()
	take := func(run int, line []byte) {
		mu.Lock()
		defer mu.Unlock()
		var ev event
		if json.Unmarshal(line, &ev) == nil {
			ev.run = run
			s.add(ev)
		} else {
			_, _ = out.Write(line) // go test itself has something to say
		}
		tick.Reset(quietly)
	}
	runs := 0
	ended := make(chan error)
	for _, list := range lists {
		inTurn, first := split(list, "then"), runs
		runs += len(inTurn)
		go func() {
			for i, args := range inTurn {
				ended <- goTest(args, func(line []byte) { take(first+i, line) })
			}
		}()
	}
	status := 0
	var errs []error
	for range runs {
		err := <-ended
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			status = max(status, failed.ExitCode(), 1)
		} else {
			errs = append(errs, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	s.end()
	if outcomes != "" {
		errs = append(errs, os.WriteFile(outcomes, []byte(s.outcomes()), 0o600))
	}
	return status, errors.Join(errs...)
}

// goTest runs go test with the arguments and passes on each line that it prints.
func goTest(args []string, take func(line []byte)) error {
	env := os.Environ()
	for len(args) > 0 && variable.MatchString(args[0]) {
		env, args = append(env, args[0]), args[1:]
	}
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Env, cmd.Stderr = env, os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			take(line)
		}
		if err != nil {
			return cmd.Wait()
		}
	}
}
