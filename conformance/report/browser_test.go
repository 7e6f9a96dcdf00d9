package report_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/report"
)

// browsers are the names under which Chromium is installed.
var browsers = []string{"chromium", "chromium-browser", "google-chrome", "chrome-headless-shell"}

// shownBy is the document as a browser has understood the page.
func shownBy(t *testing.T, browser string, r conformance.Report) string {
	t.Helper()
	dir := t.TempDir()
	page := filepath.Join(dir, "report.html")
	file, err := os.Create(page)
	require.NoError(t, err)
	require.NoError(t, report.HTML(file, r))
	require.NoError(t, file.Close())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var errs bytes.Buffer
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir="+filepath.Join(dir, "profile"), "--dump-dom", "file://"+page)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, errs.String())
	return string(out)
}

// The page means to a browser what it means to those who wrote it.
func TestBrowserShowsTheReport(t *testing.T) {
	t.Parallel()
	browser := ""
	for _, name := range browsers {
		if path, err := exec.LookPath(name); err == nil && browser == "" {
			browser = path
		}
	}
	if browser == "" {
		t.Skipf("no browser: none of %s is installed", strings.Join(browsers, ", "))
	}
	passing, incomplete := sample(), sample()
	passing.Results[1].Verdict = conformance.Pass
	incomplete.Incomplete = "the server stopped answering"
	for name, c := range map[string]struct {
		report  conformance.Report
		verdict string
		broken  int
	}{
		"passing":    {passing, `<p class="verdict">The claim GuardedWrite was not tried (needs Config.Guarded). Every other claim was kept. Not tried for want of Config.Guarded: GuardedWriteWhileHeld.</p>`, 0},
		"failing":    {sample(), `<p class="verdict bad">1 rule was broken: ReleaseOwnOnly.</p>`, 1},
		"incomplete": {incomplete, `<p class="verdict bad">Incomplete: the server stopped answering. Before that: 1 rule was broken: ReleaseOwnOnly.</p>`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dom := shownBy(t, browser, c.report)
			assert.Contains(t, dom, "<title>Conformance of a &lt;lock&gt;</title>")
			assert.Contains(t, dom, "<h1>a &lt;lock&gt;</h1>")
			assert.Contains(t, dom, c.verdict)
			assert.Equal(t, len(c.report.Results), strings.Count(dom, `"></i>`), "squares in the overview")
			assert.Equal(t, c.broken, strings.Count(dom, `<section class="broken">`))
			assert.Equal(t, c.broken, strings.Count(dom, `<section class="bad">`))
			assert.NotContains(t, dom, "<script", "evidence has become a part of the page")
			assert.Contains(t, dom, "A pass means that this run", "the page was not read to its end")
		})
	}
}
