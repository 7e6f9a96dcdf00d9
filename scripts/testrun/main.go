// Command testrun runs go test, shows which packages are running, and ends with a summary:
// what ran, what was left out and why, and which rules of the suite were inconclusive.
//
//	testrun [-outcomes FILE] [-most N] [arguments of go test [-- arguments of another go test]...]
//
// Several go tests run side by side. Arguments like NAME=value that come first are its
// environment. The status is that of go test, the largest of them. With -most, two test programs
// run at a time, and up to N of all go tests together while the processors have time to spare.
// With -outcomes it also writes a line for each rule, form of a lock and outcome, so that two runs
// can be compared.
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
	"strconv"
	"sync"
	"time"
)

func main() {
	args, most, outcomes := os.Args[1:], 0, ""
	if len(args) > 3 && args[0] == "-begin" {
		fmt.Fprintln(os.Stderr, "testrun:", begin(args[1:]))
		os.Exit(1)
	}
	for len(args) >= 2 && (args[0] == "-outcomes" || args[0] == "-most") {
		if args[0] == "-outcomes" {
			outcomes = args[1]
		} else if n, err := strconv.Atoi(args[1]); err == nil {
			most = n
		}
		args = args[2:]
	}
	status, err := run(os.Stdout, split(args, "--"), most, outcomes)
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

// run runs go test once for each of the lists of arguments, side by side, and returns the
// largest status. most is how many test programs run at a time; 0 leaves that to go test.
func run(out io.Writer, lists [][]string, most int, outcomes string) (int, error) {
	var mu sync.Mutex
	s := newSummary(out)
	for _, args := range lists {
		label := ""
		if i := slices.Index(args, "-run"); i >= 0 && i+1 < len(args) && len(lists) > 1 {
			label = " " + args[i+1]
		}
		s.labels = append(s.labels, label)
	}
	var rm *room
	var dr *door
	if most > 0 {
		s.waits = true
		rm = newRoom(most, loadOfLinux)
		var err error
		dr, err = rm.open(func(p place) {
			mu.Lock()
			defer mu.Unlock()
			s.begin(p)
		})
		if err != nil {
			return 1, err
		}
		defer dr.close()
	}
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
			if rm != nil && ev.ends() {
				rm.leave(place{run: run, pkg: short(ev.Package)})
			}
		} else {
			_, _ = out.Write(line) // go test itself has something to say
		}
		tick.Reset(quietly)
	}
	ended := make(chan error)
	for i, args := range lists {
		knock := ""
		if dr != nil {
			var err error
			if knock, err = dr.knock(i); err != nil {
				return 1, err
			}
		}
		go func() { ended <- goTest(args, knock, func(line []byte) { take(i, line) }) }()
	}
	status := 0
	var errs []error
	for range lists {
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

// goTest runs go test with the arguments and passes on each line that it prints. knock is how
// test programs are run, unless it is empty.
func goTest(args []string, knock string, take func(line []byte)) error {
	env := os.Environ()
	for len(args) > 0 && variable.MatchString(args[0]) {
		env, args = append(env, args[0]), args[1:]
	}
	first := []string{"test", "-json"}
	if knock != "" {
		first = append(first, "-exec", knock)
	}
	cmd := exec.Command("go", append(first, args...)...)
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
