package report_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"html"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/report"
)

func sample() conformance.Report {
	return conformance.Report{
		Name: "a <lock>", TTL: time.Second, Seed: 7, Started: time.Unix(0, 0), Seconds: 12.6,
		Guarantees: backend.Guarantees{Token: backend.TokenCounter, GuardedWrite: true, Assumptions: []string{"Clocks & rates are alike."}},
		Results: []conformance.Result{
			{Rule: "Exclusive", Subject: "exclusion", Statement: "One at a time.", Verdict: conformance.Pass, Seconds: 0.02},
			{Rule: "ReleaseOwnOnly", Subject: "release", Statement: "Only one's own | hold.", Verdict: conformance.Fail, Evidence: "at 1 s: <script>alert(1)</script>\n```\nmore", Seconds: 1.34},
			{Rule: "GuardedWriteWhileHeld", Subject: "guarded writes", Statement: "Guarded.", Verdict: conformance.Skipped, Evidence: "needs Config.Guarded"},
		},
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	r := sample()
	assert.Equal(t, "1 rule was broken: ReleaseOwnOnly.", r.Verdict())
	r.Results[1].Verdict = conformance.Pass
	assert.Equal(t, "The claim GuardedWrite was not tried (needs Config.Guarded). Every other claim was kept. Not tried for want of Config.Guarded: GuardedWriteWhileHeld.", r.Verdict())
	for _, reason := range []string{"the backend does not implement backend.Queuer", "needs two TTLs, and only 15s can be had"} {
		r.Results[2].Evidence = reason
		assert.Empty(t, r.Untried(), reason)
		assert.Equal(t, "Every claim that could be tried was kept.", r.Verdict())
	}
	for i := range r.Results {
		r.Results[i].Verdict = conformance.Fail
	}
	assert.Equal(t, "3 rules were broken; look at Exclusive first.", r.Verdict())
	r.Guarantees.Reach = backend.ReachNetwork
	r.Results = append(r.Results[1:], conformance.Result{Rule: "ExclusiveAcrossProcesses", Verdict: conformance.Fail})
	assert.Equal(t, `3 rules were broken; look at ExclusiveAcrossProcesses first (of a lock that claims Reach).`, r.Verdict(), "that two hold the key comes first")
	for i := range r.Results {
		r.Results[i].Verdict = conformance.Skipped
	}
	assert.Equal(t, "Nothing was proved: no rule could be tried.", r.Verdict())
}

// A claim that was not tried is not a pass, and every form of the report says so.
func TestUntriedClaims(t *testing.T) {
	t.Parallel()
	r := sample()
	r.Results = append(r.Results[:1], conformance.Result{
		Rule: "ExclusiveAcrossProcesses", Subject: "processes", Statement: "Processes exclude each other.",
		Verdict: conformance.Skipped, Evidence: "no child processes: needs Config.Child",
	})
	r.Guarantees.Reach = backend.ReachProcess
	assert.Empty(t, r.UntriedClaims())
	r.Guarantees.Reach = ""
	assert.Empty(t, r.UntriedClaims())
	r.Guarantees.Reach = backend.ReachNetwork
	assert.Equal(t, []conformance.UntriedClaim{{Claim: "Reach", Value: "network", Reason: "no child processes: needs Config.Child"}}, r.UntriedClaims())
	const said = `The claim Reach "network" was not tried (no child processes: needs Config.Child). Every other claim was kept. Not tried for want of Config.Child: ExclusiveAcrossProcesses.`
	assert.Equal(t, said, r.Verdict())
	assert.True(t, strings.HasPrefix(r.String(), said), r.String())
	var page, text bytes.Buffer
	require.NoError(t, report.HTML(&page, r))
	assert.Contains(t, page.String(), html.EscapeString(said))
	assert.Contains(t, page.String(), "network (claimed, not tried)")
	require.NoError(t, report.Markdown(&text, r))
	assert.Contains(t, text.String(), said)
	data, err := json.Marshal(r)
	require.NoError(t, err)
	assert.Contains(t, string(data), `"untried_claims":[{"claim":"Reach","value":"network","reason":"no child processes: needs Config.Child"}]`)
	r.Results[1].Verdict = conformance.Pass
	assert.Empty(t, r.UntriedClaims())

	r = sample()
	assert.Len(t, r.UntriedClaims(), 1)
	r.Guarantees.GuardedWrite = false
	assert.Empty(t, r.UntriedClaims(), "it is not claimed")
}

// A declared deviation is shown with its reason, and is neither a pass nor a failure.
func TestDeviation(t *testing.T) {
	t.Parallel()
	r := sample()
	r.Results[1].Verdict, r.Results[1].Evidence = conformance.Deviation, "its caller looks\nseen when it was tried: at 1 s: gone"
	assert.True(t, r.OK())
	assert.Contains(t, r.Verdict(), "Declared deviations: ReleaseOwnOnly.")
	assert.Equal(t, conformance.Counts{Pass: 1, Skipped: 1, Deviation: 1}, r.Counts())
	assert.Contains(t, r.Counts().String(), "1 skipped, 1 deviation")
	var page, text bytes.Buffer
	require.NoError(t, report.HTML(&page, r))
	assert.Contains(t, page.String(), "<small>its caller looks</small>")
	assert.Contains(t, page.String(), `<b class="off">1</b>deviation`)
	require.NoError(t, report.Markdown(&text, r))
	assert.Contains(t, text.String(), "| deviation | ReleaseOwnOnly | Only one's own \\| hold. *(its caller looks)* |")
}

// What is declared and kept is told apart, and so is what a finished Locker can't have.
func TestVerdictOfAFinishedLocker(t *testing.T) {
	t.Parallel()
	r := sample()
	r.Results[1].Verdict, r.Results[1].Evidence = conformance.Deviation, "its caller looks\nit was kept when it was tried"
	for _, rule := range []string{"TryIdempotent", "RenewByID"} {
		r.Results = append(r.Results, conformance.Result{Rule: rule, Verdict: conformance.Skipped, Evidence: "needs Config.OpenBackend"})
	}
	assert.NotContains(t, r.Verdict(), "Declared deviations")
	assert.Contains(t, r.Verdict(), "Declared, and kept all the same: ReleaseOwnOnly.")
	assert.Contains(t, r.Verdict(), "2 rules for backends were not tried, for want of Config.OpenBackend.")
}

// What could not be decided is neither a pass nor a broken rule.
func TestInconclusive(t *testing.T) {
	t.Parallel()
	r := sample()
	r.Results[0].Verdict, r.Results[0].Evidence = conformance.Inconclusive, "a request was held up for 3s"
	assert.Equal(t, "1 rule was broken: ReleaseOwnOnly. Inconclusive, for the reason that is given with each: Exclusive.", r.Verdict())
	r.Results[0].Evidence = "given up after 11.5s, since another rule had failed. Calls that had not returned: none"
	assert.Equal(t, "1 rule was broken: ReleaseOwnOnly. 1 more was given up then.", r.Verdict())
	r.Results[0].Evidence = "a request was held up for 3s"
	r.Results[1].Verdict = conformance.Pass
	assert.Contains(t, r.Verdict(), "No rule was broken, but this machine or the server was too slow for a verdict on: Exclusive.")
	assert.False(t, r.OK())
	var page, text bytes.Buffer
	require.NoError(t, report.HTML(&page, r))
	assert.Contains(t, page.String(), `<p class="verdict bad">No rule was broken, but`)
	assert.Contains(t, page.String(), "<small>a request was held up for 3s</small>")
	assert.Contains(t, page.String(), `<b class="open">1</b>inconclusive`)
	require.NoError(t, report.Markdown(&text, r))
	assert.Contains(t, text.String(), "| inconclusive | Exclusive |")
}

// A run that was ended early is never told as one that found nothing.
func TestIncomplete(t *testing.T) {
	t.Parallel()
	r := sample()
	r.Incomplete = "the <server> stopped answering"
	assert.Equal(t, "Incomplete: the <server> stopped answering. Before that: 1 rule was broken: ReleaseOwnOnly.", r.Verdict())
	r.Results[1].Verdict = conformance.Pass
	const want = "Incomplete: the &lt;server> stopped answering. What was not tried by then says nothing."
	assert.False(t, r.OK())
	assert.True(t, strings.HasPrefix(r.String(), "Incomplete: the <server> stopped answering. What was not tried by then says nothing.\n"), r.String())
	var page, text bytes.Buffer
	require.NoError(t, report.HTML(&page, r))
	assert.Contains(t, page.String(), `<p class="verdict bad">`+strings.ReplaceAll(want, ">", "&gt;")+"</p>")
	require.NoError(t, report.Markdown(&text, r))
	assert.Contains(t, text.String(), "**"+want+"**")
	for _, out := range []string{page.String(), text.String(), r.String()} {
		assert.NotContains(t, out, "was kept")
	}
}

func TestHTML(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, report.HTML(&out, sample()))
	page := out.String()
	for _, want := range []string{"a &lt;lock&gt;", "1 rule was broken: ReleaseOwnOnly.", "ReleaseOwnOnly", "&lt;script&gt;", "Clocks &amp; rates", "Guarded writes", "<small>needs Config.Guarded</small>"} {
		assert.Contains(t, page, want)
	}
	assert.Equal(t, len(sample().Results), strings.Count(page, `"></i>`), "squares in the overview")
	assert.Contains(t, page, `<i class="bg-fail" title="ReleaseOwnOnly: fail"></i>`)
	assert.Contains(t, page, "<section class=\"bad\"><h3>Release <small>0 of 1</small></h3>")
	assert.Contains(t, page, `<span class="time">1.3 s</span>`)
	assert.Contains(t, page, `<span class="time">20 ms</span>`)
	assert.Contains(t, page, "<dt>Fencing token</dt><dd>counter</dd>")
	for _, outside := range []string{"<script", "src=", "href=", "url(", "@import", "http:", "https:"} {
		assert.NotContains(t, page, outside, "the page is not self-contained, or was injected")
	}
	// Every element that is opened is closed.
	d := xml.NewDecoder(strings.NewReader(page[strings.Index(page, "<body>"):strings.Index(page, "</html>")]))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
}

// The JSON of a report says what a program wants to know first, and comes back whole.
func TestJSON(t *testing.T) {
	t.Parallel()
	r := sample()
	r.TTL = 1500 * time.Millisecond
	r.Guarantees.MinTTL = 100 * time.Millisecond
	text, err := json.Marshal(r)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(text, &fields))
	assert.Equal(t, false, fields["ok"])
	assert.InDelta(t, 1.5, fields["ttl_seconds"], 0)
	assert.InDelta(t, 12.6, fields["seconds"], 0)
	assert.Equal(t, map[string]any{"pass": 1.0, "fail": 1.0, "skipped": 1.0, "deviation": 0.0, "inconclusive": 0.0, "not_claimed": 0.0, "unclaimed": 0.0}, fields["counts"])
	assert.InDelta(t, 0.1, fields["guarantees"].(map[string]any)["min_ttl_seconds"], 0)
	assert.NotContains(t, fields, "ttl", "a duration without its unit")
	var back conformance.Report
	require.NoError(t, json.Unmarshal(text, &back))
	back.Started = back.Started.Local()
	assert.Equal(t, r, back)
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, report.Markdown(&out, sample()))
	text := out.String()
	for _, want := range []string{
		"# Conformance of a &lt;lock>", "## Broken: ReleaseOwnOnly", "| fail | ReleaseOwnOnly | Only one's own \\| hold. |",
		"| skipped | GuardedWriteWhileHeld | Guarded. *(needs Config.Guarded)* |", "'''\nmore\n```",
	} {
		assert.Contains(t, text, want)
	}
}
