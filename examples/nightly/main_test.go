package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pages passes on what is written, and tells when the first page is out.
type pages struct {
	strings.Builder
	first sync.Once
	out   chan struct{}
}

func (p *pages) Write(b []byte) (int, error) {
	defer p.first.Do(func() { close(p.out) })
	return p.Builder.Write(b)
}

func TestOneCopyWorksAndTheOtherSaysSo(t *testing.T) {
	t.Parallel()
	const url = "mem:nightly"
	report := filepath.Join(t.TempDir(), "report.txt")
	begun := make(chan struct{})
	one := &pages{out: begun}
	done := make(chan error, 1)
	go func() { done <- run(t.Context(), url, report, 50*time.Millisecond, one) }()
	<-begun

	var other strings.Builder
	require.NoError(t, run(t.Context(), url, report, 0, &other))
	require.NoError(t, <-done)
	assert.Contains(t, other.String(), `nothing to do: the report is being written by "nightly report"`)
	assert.Contains(t, one.String(), ": page 5\n")

	text, err := os.ReadFile(report)
	require.NoError(t, err)
	assert.Contains(t, string(text), "page 5\n")

	var late strings.Builder
	require.NoError(t, run(t.Context(), url, report, 0, &late))
	assert.Contains(t, late.String(), "nothing to do: "+report+" is there", "the key is free again, and the work is done")
}
