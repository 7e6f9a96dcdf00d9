package conformance

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/mortiselock/lock/conformance/internal/engine"

	"github.com/mortiselock/lock/backend"
)

// Verdict is what became of a rule.
type Verdict string

// The verdicts.
const (
	// Pass: no violation was seen.
	Pass Verdict = Verdict(engine.Pass)
	// Fail: the rule was broken. The evidence says how.
	Fail Verdict = Verdict(engine.Fail)
	// NotClaimed: the guarantees don't claim it, and it did not work when it was
	// tried, or could not be tried.
	NotClaimed Verdict = Verdict(engine.NotClaimed)
	// Unclaimed: it worked, although the guarantees don't claim it.
	Unclaimed Verdict = Verdict(engine.Unclaimed)
	// Inconclusive: it was tried, again with longer TTLs, and this machine or the server
	// was too slow for a judgement each time. The rule was neither kept nor broken.
	Inconclusive Verdict = Verdict(engine.Inconclusive)
	// Skipped: something to test with is missing, or the rule does not apply.
	Skipped Verdict = Verdict(engine.Skipped)
	// Deviation: Config.Deviations declares that the lock does not keep it. The evidence
	// is the reason that it gives, and what was seen.
	Deviation Verdict = Verdict(engine.Deviation)
)

// Result is what became of one rule.
type Result struct {
	Rule      string  `json:"rule"`
	Subject   string  `json:"subject"`
	Statement string  `json:"statement"`
	Verdict   Verdict `json:"verdict"`
	// Evidence is what was expected and seen and the calls around it, for a
	// failure; the reason, for a rule that was skipped, not claimed or inconclusive, or
	// is a deviation; numbers worth knowing, for a pass.
	Evidence string  `json:"evidence,omitempty"`
	Seconds  float64 `json:"seconds"`
}

// result is what the machinery says.
func result(r engine.Result) Result {
	return Result{
		Rule: r.Rule, Subject: r.Subject, Statement: r.Statement,
		Verdict: Verdict(r.Verdict), Evidence: r.Evidence, Seconds: r.Seconds,
	}
}

// Report is the outcome of a run.
type Report struct {
	Name string `json:"name"`
	// Incomplete is why the run ended before every rule could be tried, such as "the
	// server stopped answering". It is empty for a run that went to its end.
	Incomplete string             `json:"incomplete,omitempty"`
	Guarantees backend.Guarantees `json:"guarantees"`
	TTL        time.Duration      `json:"-"`
	Seed       uint64             `json:"seed"`
	Started    time.Time          `json:"started"`
	Seconds    float64            `json:"seconds"`
	Results    []Result           `json:"results"`
}

type (
	plainReport Report
	jsonReport  struct {
		OK      bool           `json:"ok"`
		Verdict string         `json:"verdict"`
		Untried []UntriedClaim `json:"untried_claims"`
		Counts  Counts         `json:"counts"`
		TTL     float64        `json:"ttl_seconds"`
		plainReport
	}
)

// MarshalJSON writes the TTL in seconds, as "ttl_seconds", and what OK, Verdict,
// UntriedClaims and Counts say.
func (r Report) MarshalJSON() ([]byte, error) {
	return json.Marshal(jsonReport{r.OK(), r.Verdict(), append([]UntriedClaim{}, r.UntriedClaims()...), r.Counts(), r.TTL.Seconds(), plainReport(r)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Report) UnmarshalJSON(data []byte) error {
	var j jsonReport
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*r = Report(j.plainReport)
	r.TTL = time.Duration(math.Round(j.TTL * float64(time.Second)))
	return nil
}

// Counts is the number of results by verdict.
type Counts struct {
	Pass         int `json:"pass"`
	Fail         int `json:"fail"`
	NotClaimed   int `json:"not_claimed"`
	Unclaimed    int `json:"unclaimed"`
	Inconclusive int `json:"inconclusive"`
	Skipped      int `json:"skipped"`
	Deviation    int `json:"deviation"`
}

// String is a line such as
//
//	70 pass, 1 fail, 3 not claimed, 0 "works, not claimed", 0 inconclusive, 2 skipped
//
// with ", 2 deviations" at its end if there are any.
func (c Counts) String() string {
	line := fmt.Sprintf("%d pass, %d fail, %d not claimed, %d %q, %d inconclusive, %d skipped",
		c.Pass, c.Fail, c.NotClaimed, c.Unclaimed, Unclaimed, c.Inconclusive, c.Skipped)
	switch {
	case c.Deviation == 1:
		line += ", 1 deviation"
	case c.Deviation > 1:
		line += fmt.Sprintf(", %d deviations", c.Deviation)
	}
	return line
}

// Counts counts the results by verdict.
func (r Report) Counts() Counts {
	var c Counts
	for _, x := range r.Results {
		switch x.Verdict {
		case Pass:
			c.Pass++
		case Fail:
			c.Fail++
		case NotClaimed:
			c.NotClaimed++
		case Unclaimed:
			c.Unclaimed++
		case Inconclusive:
			c.Inconclusive++
		case Skipped:
			c.Skipped++
		case Deviation:
			c.Deviation++
		}
	}
	return c
}

// OK reports whether the run went to its end, no rule failed or was inconclusive, and at
// least one passed. It says nothing of UntriedClaims, nor of declared deviations.
func (r Report) OK() bool {
	c := r.Counts()
	return r.Incomplete == "" && c.Fail == 0 && c.Inconclusive == 0 && c.Pass > 0
}

// Result returns the result of the named rule, and false when it did not run.
func (r Report) Result(rule string) (Result, bool) {
	for _, x := range r.Results {
		if x.Rule == rule {
			return x, true
		}
	}
	return Result{}, false
}

// String is the report for people: the verdict, a line per rule, the evidence of failures
// and the reasons of what was not tested, and the counts.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s, TTL %s\n", r.Verdict(), r.Name, r.TTL)
	for _, x := range r.Results {
		fmt.Fprintf(&b, "%-18s %-28s %6.2f s  %s\n", x.Verdict, x.Rule, x.Seconds, x.Statement)
		if x.Verdict != Pass && x.Evidence != "" {
			fmt.Fprintf(&b, "    %s\n", strings.ReplaceAll(x.Evidence, "\n", "\n    "))
		}
	}
	fmt.Fprintf(&b, "%s in %.1f s (seed %d)\n", r.Counts(), r.Seconds, r.Seed)
	return b.String()
}
