package main

import (
	"io"
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
	begun := make(chan struct{})
	one := &pages{out: begun}
	done := make(chan error, 1)
	go func() { done <- run(t.Context(), url, 50*time.Millisecond, one) }()
	<-begun

	var other strings.Builder
	require.NoError(t, run(t.Context(), url, 0, &other))
	require.NoError(t, <-done)
	assert.Contains(t, other.String(), `nothing to do: the report is being written by "nightly report"`)
	assert.Contains(t, one.String(), ": page 5\n")

	require.NoError(t, run(t.Context(), url, 0, io.Discard), "the key is free again")
}
