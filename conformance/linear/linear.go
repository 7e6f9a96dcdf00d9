// Package linear is a judge for the conformance suite: it decides with porcupine
// whether the calls that callers made fit into one order of single steps in which
// every answer is right. It is for tests, as the testing package is; package
// conformance does not import it, so that programs which link the suite don't link
// porcupine.
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Config{
//			OpenBackend: open,
//			Judge:       linear.Judge(t),
//		})
//	}
//
// # The model
//
// A key is free or has an owner, the owner's holds, and their token. An acquisition
// that was granted needs a free key, and then a token larger than all before, or a
// key of the same explicit owner, and then the same token. A try that was refused
// needs a key of somebody else. A renewal and a release that succeeded need their
// hold to be there; one that was told "not held" needs it to have ended.
//
// What callers don't know, the model leaves open. An acquisition that returned an
// error may have held the key for a while, once, at any time after its call; so may one
// that was granted after an answer to it was lost, since it may have started over. A hold
// may have ended by itself when its release got no answer, or its lease was left to
// run out. These are not steps of their own, which would multiply the orders to be
// tried: a step that would make no sense otherwise takes them for granted, as far as
// they can have happened by the time at which it returned. Nothing else ends or takes
// a hold, so that a second holder is seen.
package linear

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/mortiselock/lock/conformance"
)

// TB is what a judge needs of a test. *testing.T has it.
type TB interface {
	// ArtifactDir is where the pictures go. Without go test -artifacts it is
	// removed after the test.
	ArtifactDir() string
}

// Timeout is how long the search for an order may take. The histories of the suite
// take milliseconds.
const Timeout = 20 * time.Second

// Judge returns the function for conformance.Config.Judge. When a history makes no
// sense, it writes porcupine's picture of it, an HTML file, into the artifact
// directory of the test, and names the file in the error. The function may be
// called from several goroutines.
func Judge(t TB) func(conformance.History) error {
	return func(h conformance.History) error { return judge(t, h, Timeout) }
}

var pictures atomic.Int64

func judge(t TB, h conformance.History, timeout time.Duration) error {
	model := modelOf(h)
	var steps []conformance.Operation
	var unknown []conformance.Operation
	var open []porcupine.Annotation
	var ops []porcupine.Operation
	end := time.Duration(0)
	for _, op := range h.Operations {
		end = max(end, op.Call)
		if op.Return != conformance.Never {
			end = max(end, op.Return)
		}
	}
	for _, op := range h.Operations {
		if op.Kind == conformance.MayGrant || op.Kind == conformance.MayEnd {
			unknown = append(unknown, op)
			open = append(open, porcupine.Annotation{Tag: "not known", Start: int64(op.Call), End: int64(end), Description: describe(op)})
			continue
		}
		steps = append(steps, op)
		ops = append(ops, porcupine.Operation{
			ClientId: op.Client, Input: op, Call: int64(op.Call), Return: int64(op.Return),
			Metadata: op.Who,
		})
	}
	result, info := porcupine.CheckOperationsVerbose(model, ops, timeout)
	switch result {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("%w: no order of %d operations was found within %s, and not all were tried", conformance.ErrInconclusive, len(ops), timeout)
	}
	info.AddAnnotations(open)
	file := fmt.Sprintf("%s-%d-%s.html", h.Rule, pictures.Add(1), unfit.ReplaceAllString(lastElement(h.Key), "_"))
	path := filepath.Join(t.ArtifactDir(), file)
	picture := "picture: " + path + " (kept with go test -artifacts)"
	if err := porcupine.VisualizePath(model, info, path); err != nil {
		picture = fmt.Sprintf("its picture could not be written: %v", err)
	}
	return fmt.Errorf("%s\n%s", explain(model, steps, unknown, info), picture)
}

var unfit = regexp.MustCompile(`[^a-zA-Z0-9-]+`)

func lastElement(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

// explain says in words how far the search came.
func explain(model porcupine.Model, ops, unknown []conformance.Operation, info porcupine.LinearizationInfo) string {
	var longest []int
	for _, partition := range info.PartialLinearizations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	state := model.Init()
	fits := make([]bool, len(ops))
	for _, i := range longest {
		_, state = model.Step(state, ops[i], nil)
		fits[i] = true
	}
	var b strings.Builder
	fmt.Fprintf(&b, "the calls make no sense together: no order of all %d has every answer right. The longest that has begins with %d of them. Then %s", len(ops), len(longest), model.DescribeState(state))
	fmt.Fprintf(&b, ", and none of these can be next:")
	// A call is next when it was made before each of the others had returned.
	returned := conformance.Never
	for i, op := range ops {
		if !fits[i] {
			returned = min(returned, op.Return)
		}
	}
	for i, op := range ops {
		if !fits[i] && op.Call <= returned {
			fmt.Fprintf(&b, "\n  %s", line(op))
		}
	}
	b.WriteString("\nthe last that fit:")
	shown := longest[max(len(longest)-16, 0):]
	for _, i := range shown {
		fmt.Fprintf(&b, "\n  %s", line(ops[i]))
	}
	if len(unknown) > 0 {
		b.WriteString("\nand what is not known:")
	}
	for _, op := range unknown {
		fmt.Fprintf(&b, "\n  %s", line(op))
	}
	return b.String()
}

func line(op conformance.Operation) string {
	to := "     ..."
	if op.Return != conformance.Never {
		to = fmt.Sprintf("%8.4f", op.Return.Seconds())
	}
	return fmt.Sprintf("%8.4f .. %s  %s (caller %d): %s", op.Call.Seconds(), to, op.Who, op.Client, describe(op))
}

func describe(op conformance.Operation) string {
	owner := ""
	if op.Owner != "" {
		owner = " for owner " + op.Owner
	}
	switch op.Kind {
	case conformance.Granted:
		return fmt.Sprintf("hold %d is granted%s with token %d", op.Hold, owner, op.Token)
	case conformance.Refused:
		return "a try is refused" + owner
	case conformance.MayGrant:
		return fmt.Sprintf("hold %d may be granted%s", op.Hold, owner)
	case conformance.Kept:
		return fmt.Sprintf("hold %d is renewed", op.Hold)
	case conformance.Released:
		return fmt.Sprintf("hold %d is released", op.Hold)
	case conformance.Ended:
		return fmt.Sprintf("hold %d has ended, says the lock", op.Hold)
	case conformance.MayEnd:
		return fmt.Sprintf("hold %d may end", op.Hold)
	}
	return string(op.Kind)
}
