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
// error, and its clean-up, may take effect at any time after the call or never, and
// so may a release of unknown outcome, and the end of a lease that is left to run
// out. They are operations that have not returned: porcupine may put them at the
// very end, where nobody sees them. (The rule is that of etcd's robustness tests.)
// Nothing else expires, so that a second holder is seen.
package linear

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
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
	model := modelOf(h.Tokens)
	ops := make([]porcupine.Operation, len(h.Operations))
	for i, op := range h.Operations {
		ops[i] = porcupine.Operation{
			ClientId: op.Client, Input: op, Call: int64(op.Call), Return: int64(op.Return),
			Metadata: op.Who,
		}
	}
	result, info := porcupine.CheckOperationsVerbose(model, ops, timeout)
	switch result {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("%w: no order of %d operations was found within %s, and not all were tried", conformance.ErrInconclusive, len(ops), timeout)
	}
	file := fmt.Sprintf("%s-%d-%s.html", h.Rule, pictures.Add(1), unfit.ReplaceAllString(lastElement(h.Key), "_"))
	path := filepath.Join(t.ArtifactDir(), file)
	picture := "picture: " + path + " (kept with go test -artifacts)"
	if err := porcupine.VisualizePath(model, info, path); err != nil {
		picture = fmt.Sprintf("its picture could not be written: %v", err)
	}
	return fmt.Errorf("%s\n%s", explain(model, h.Operations, info), picture)
}

var unfit = regexp.MustCompile(`[^a-zA-Z0-9-]+`)

func lastElement(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

// explain says in words how far the search came.
func explain(model porcupine.Model, ops []conformance.Operation, info porcupine.LinearizationInfo) string {
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
		if !fits[i] && op.Call <= returned && op.Return != conformance.Never {
			fmt.Fprintf(&b, "\n  %s", line(op))
		}
	}
	b.WriteString("\nthe last that fit:")
	shown := longest[max(len(longest)-6, 0):]
	for _, i := range shown {
		fmt.Fprintf(&b, "\n  %s", line(ops[i]))
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

// state is a key. It is compared with ==, so the holds are a list in a string.
type state struct {
	holds string // such as " 3 7 ", in the order of their numbers; empty: the key is free
	owner string
	token uint64 // of the holds; 0 while it is not known
	last  uint64 // the largest token that was granted
}

func (s state) has(hold int) bool { return strings.Contains(s.holds, fmt.Sprintf(" %d ", hold)) }

func (s state) with(hold int) state {
	var list []int
	for _, f := range strings.Fields(s.holds) {
		var n int
		_, _ = fmt.Sscan(f, &n)
		list = append(list, n)
	}
	list = append(list, hold)
	slices.Sort(list)
	s.holds = " "
	for _, n := range list {
		s.holds += fmt.Sprintf("%d ", n)
	}
	return s
}

func (s state) without(hold int) state {
	s.holds = strings.Replace(s.holds, fmt.Sprintf(" %d ", hold), " ", 1)
	if s.holds == " " {
		s.holds, s.owner, s.token = "", "", 0
	}
	return s
}

// modelOf is the meaning of the operations on one key. It is deterministic: what is
// open is when an operation takes effect, and porcupine tries that out.
func modelOf(tokens bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return state{} },
		Step: func(st, in, _ any) (bool, any) {
			ok, next := step(st.(state), in.(conformance.Operation), tokens)
			return ok, next
		},
		DescribeOperation: func(in, _ any) string { return describe(in.(conformance.Operation)) },
		DescribeState: func(st any) string {
			s := st.(state)
			if s.holds == "" {
				return fmt.Sprintf("the key is free, the last token was %d", s.last)
			}
			who := "somebody without an owner"
			if s.owner != "" {
				who = "owner " + s.owner
			}
			return fmt.Sprintf("%s has the key by hold%swith token %d", who, s.holds, s.token)
		},
		DescribeOperationMetadata: func(info any) string { return fmt.Sprint(info) },
	}
}

func step(s state, op conformance.Operation, tokens bool) (bool, state) {
	free := s.holds == ""
	enters := !free && op.Owner != "" && op.Owner == s.owner
	switch op.Kind {
	case conformance.Granted:
		switch {
		case !free && !enters:
			return false, s
		case !tokens:
		case free || s.token == 0: // the first token of an owner whose first grant was not answered
			if op.Token <= s.last {
				return false, s
			}
			s.token, s.last = op.Token, op.Token
		case op.Token != s.token:
			return false, s
		}
		s.owner = op.Owner
		return true, s.with(op.Hold)
	case conformance.MayGrant:
		if !free && !enters {
			return true, s
		}
		s.owner = op.Owner
		return true, s.with(op.Hold)
	case conformance.Refused:
		return !free && !enters, s
	case conformance.Kept:
		return s.has(op.Hold), s
	case conformance.Released:
		return s.has(op.Hold), s.without(op.Hold)
	case conformance.Ended:
		return !s.has(op.Hold), s
	case conformance.MayEnd:
		if !s.has(op.Hold) {
			return true, s
		}
		return true, s.without(op.Hold)
	}
	return false, s
}
