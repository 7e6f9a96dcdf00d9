// The program tutorial plays the steps of docs/tutorial.md on a Redis server, and runs
// the rule of the conformance suite that shows the mistake of each:
//
//	go run ./examples/tutorial -redis redis://localhost:6379 [STEP...]
//
// Without steps it plays all of them. The server should be one for trying things: the
// program uses keys with "tutorial" in their names, in the databases 0 to 3, and deletes
// them in the end. The library's counter of tokens stays.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
)

func main() {
	log.SetFlags(0)
	server := flag.String("redis", cmp.Or(os.Getenv("REDIS_URL"), "redis://localhost:6379"), "URL of a Redis server; the default is REDIS_URL, if set")
	flag.Parse()
	chosen := steps
	if flag.NArg() > 0 {
		chosen = nil
	}
	for _, arg := range flag.Args() {
		n, err := strconv.Atoi(arg)
		if err != nil || n < 1 || n > len(steps) {
			log.Fatalf("there is no step %s: name numbers from 1 to %d", arg, len(steps))
		}
		chosen = append(chosen, steps[n-1])
	}
	for _, s := range chosen {
		if err := play(context.Background(), s, *server, os.Stdout); err != nil {
			log.Fatal(err)
		}
	}
}

// play prints a step as it is on the page: what the clients sent, and what the rule says.
func play(ctx context.Context, s step, server string, out io.Writer) error {
	fmt.Fprintf(out, "%s\n\n", s.title)
	if err := demonstrate(s, server, out); err != nil {
		return err
	}
	if s.file == "" {
		return nil
	}
	verdict, err := tryRule(ctx, s, server)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\n%s\n\n", verdict)
	return err
}
