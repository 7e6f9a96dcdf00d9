package linear

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/mortiselock/lock/conformance"
)

// set is a set of holds, in the order of their numbers, such as " 3 7 ", so that
// states are compared with ==.
type set string

func (s set) has(hold int) bool { return strings.Contains(string(s), fmt.Sprintf(" %d ", hold)) }

func (s set) list() (out []int) {
	for _, f := range strings.Fields(string(s)) {
		n, _ := strconv.Atoi(f)
		out = append(out, n)
	}
	return out
}

func setOf(holds []int) set {
	if len(holds) == 0 {
		return ""
	}
	slices.Sort(holds)
	s := " "
	for _, n := range holds {
		s += strconv.Itoa(n) + " "
	}
	return set(s)
}

func (s set) with(hold int) set { return setOf(append(s.list(), hold)) }

func (s set) without(hold int) set {
	return setOf(slices.DeleteFunc(s.list(), func(n int) bool { return n == hold }))
}

// state is what is so for a key between two steps.
type state struct {
	holds set    // empty: the key is free
	owner string // of the holds
	token uint64 // of the holds; 0 while it is not known
	last  uint64 // the largest token that was granted
	used  set    // acquisitions without an answer that have had their while
	// The owner of a free key before, and its token: it may go on by an acquisition
	// without an answer.
	before      string
	beforeToken uint64
}

// model is the meaning of the steps on one key.
type model struct {
	tokens bool
	ghosts []conformance.Operation // acquisitions without an answer, in the order of their calls
	owners []string                // of the ghosts
	ends   map[int]time.Duration   // from when holds may end by themselves
}

func modelOf(h conformance.History) porcupine.Model {
	m := &model{tokens: h.Tokens, ends: map[int]time.Duration{}}
	for _, op := range h.Operations {
		switch op.Kind {
		case conformance.MayGrant:
			m.ghosts = append(m.ghosts, op)
			if !slices.Contains(m.owners, op.Owner) {
				m.owners = append(m.owners, op.Owner)
			}
		case conformance.MayEnd:
			if at, ok := m.ends[op.Hold]; !ok || op.Call < at {
				m.ends[op.Hold] = op.Call
			}
		}
	}
	slices.SortStableFunc(m.ghosts, func(a, b conformance.Operation) int { return cmp.Compare(a.Call, b.Call) })
	nm := porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} },
		Step: func(st, in, _ any) (out []any) {
			for _, next := range m.step(st.(state), in.(conformance.Operation)) {
				out = append(out, next)
			}
			return out
		},
		DescribeOperation:         func(in, _ any) string { return describe(in.(conformance.Operation)) },
		DescribeOperationMetadata: func(info any) string { return fmt.Sprint(info) },
	}
	out := nm.ToModel()
	out.DescribeState = func(st any) string {
		var parts []string
		for _, s := range st.([]any) {
			if text := s.(state).String(); !slices.Contains(parts, text) {
				parts = append(parts, text)
			}
		}
		return strings.Join(parts, ", or ")
	}
	return out
}

func (s state) String() string {
	if s.holds == "" {
		return fmt.Sprintf("the key is free, and the last token was %d", s.last)
	}
	who, token := "somebody without an owner", "a token that is not known"
	if s.owner != "" {
		who = "owner " + s.owner
	}
	if s.token != 0 {
		token = fmt.Sprintf("token %d", s.token)
	}
	return fmt.Sprintf("%s has the key by hold%swith %s", who, string(s.holds), token)
}

// step is the states after a step that makes sense in the state, or none.
func (m *model) step(s state, op conformance.Operation) []state {
	switch op.Kind {
	case conformance.Granted:
		return m.granted(s, op)
	case conformance.Refused:
		return m.refused(s, op)
	case conformance.Kept:
		if s.holds.has(op.Hold) {
			return []state{s}
		}
	case conformance.Released:
		if s.holds.has(op.Hold) {
			return []state{s.without(op.Hold)}
		}
	case conformance.Ended:
		switch {
		case !s.holds.has(op.Hold):
			return []state{s}
		case m.mayEnd(op.Hold, op.Return):
			return []state{s.without(op.Hold)}
		}
	}
	return nil
}

// granted: the key is free, or entered again by its owner. Where it can be entered,
// the state with more holds allows for all that the other does.
func (m *model) granted(s state, op conformance.Operation) []state {
	if s.holds != "" && op.Owner != "" && op.Owner == s.owner {
		in := s
		in.holds = s.holds.with(op.Hold)
		switch {
		case !m.tokens || op.Token == s.token:
			return []state{in}
		case s.token == 0 && op.Token > s.last: // that of a grant without an answer
			in.token, in.last = op.Token, op.Token
			return []state{in}
		}
	}
	free, ok := m.freed(s, op.Return)
	if !ok {
		return nil
	}
	next := state{holds: set("").with(op.Hold), owner: op.Owner, token: op.Token, last: max(s.last, op.Token), used: free.used}
	if !m.tokens || op.Token > s.last {
		return []state{next}
	}
	if op.Owner != "" && op.Owner == free.before && op.Token == free.beforeToken {
		// A hold of the same owner, whose grant got no answer, has kept the key, and
		// may keep it for longer than this one.
		if g := m.ghost(op.Owner, free, op.Return); g != 0 {
			next.holds, next.used = next.holds.with(g), free.used.with(g)
			return []state{next}
		}
	}
	return nil
}

// refused: somebody else holds the key.
func (m *model) refused(s state, op conformance.Operation) (out []state) {
	if s.holds != "" && (op.Owner == "" || op.Owner != s.owner) {
		return []state{s}
	}
	free, ok := m.freed(s, op.Return)
	if !ok {
		return nil
	}
	for _, owner := range m.owners {
		if owner != "" && owner == op.Owner {
			continue
		}
		if g := m.ghost(owner, free, op.Return); g != 0 {
			next := state{holds: set("").with(g), owner: owner, last: s.last, used: free.used.with(g)}
			out = append(out, next)
			if owner != "" && owner == free.before {
				// Or it has kept the key, which the owner had entered by it.
				next.token = free.beforeToken
				out = append(out, next)
			}
		}
	}
	return out
}

// ghost is an acquisition of the owner that got no answer and can take the key by
// the time, or 0. The one that was called first is as good as any: the others can
// do the same for the steps that come after.
func (m *model) ghost(owner string, s state, by time.Duration) int {
	for _, g := range m.ghosts {
		if g.Owner == owner && g.Call <= by && !s.used.has(g.Hold) {
			return g.Hold
		}
	}
	return 0
}

func (m *model) mayEnd(hold int, by time.Duration) bool {
	at, ok := m.ends[hold]
	return ok && at <= by
}

// freed is the state in which all holds have ended by themselves, if they may.
func (m *model) freed(s state, by time.Duration) (state, bool) {
	for _, n := range s.holds.list() {
		if !m.mayEnd(n, by) {
			return s, false
		}
		s = s.without(n)
	}
	return s, true
}

func (s state) without(hold int) state {
	s.holds = s.holds.without(hold)
	if s.holds == "" {
		s.before, s.beforeToken = s.owner, s.token
		s.owner, s.token = "", 0
	}
	return s
}
