// Command testrun runs go test, shows which packages are running, and ends with a summary:
// what ran, what was left out and why, and which rules of the suite were inconclusive.
//
//	testrun [-outcomes FILE] [arguments of go test]
//
// Its status is that of go test. With -outcomes it also writes a line for each rule, form of
// a lock and outcome, so that two runs can be compared.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

func main() {
	args, outcomes := os.Args[1:], ""
	if len(args) >= 2 && args[0] == "-outcomes" {
		outcomes, args = args[1], args[2:]
	}
	status, err := run(os.Stdout, args, outcomes)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

// quietly is how often it is said which packages are running, while none ends.
const quietly = 30 * time.Second

// run runs go test with the arguments and returns its status.
func run(out io.Writer, args []string, outcomes string) (int, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
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
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			mu.Lock()
			var ev event
			if json.Unmarshal(line, &ev) == nil {
				s.add(ev)
			} else {
				_, _ = out.Write(line) // go test itself has something to say
			}
			mu.Unlock()
			tick.Reset(quietly)
		}
		if err != nil {
			break
		}
	}
	err = cmd.Wait()
	mu.Lock()
	defer mu.Unlock()
	s.end()
	if outcomes != "" {
		if err := os.WriteFile(outcomes, []byte(s.outcomes()), 0o600); err != nil {
			return 0, err
		}
	}
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return max(failed.ExitCode(), 1), nil
	}
	return 0, err
}
