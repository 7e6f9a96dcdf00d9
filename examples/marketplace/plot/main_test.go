package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const two = `| sellers x buyers | way | listed | bought | retries | mean wait |
|---|---|--:|--:|--:|--:|
| 1x1 | WATCH | 9 | 1422 | 9945 | 2.1 ms |
| 1x1 | lock | 9 | 0 | 0 | 0.3 ms |
| 5x5 | WATCH | 9 | 204 | 5888 | 14.7 ms |
| 5x5 | lock | 9 | 3575 | 0 | 0.8 ms |
`

func TestDraw(t *testing.T) {
	t.Parallel()
	got, err := read(strings.NewReader(two))
	if err != nil {
		t.Fatal(err)
	}
	if got.bought["lock"][1] != 3575 {
		t.Errorf("the last line was read as %v", got.bought["lock"])
	}
	file := filepath.Join(t.TempDir(), "plot.svg")
	if err := got.draw(file); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"WATCH", "lock", "1x1", "5x5", "Items bought"} {
		if !strings.Contains(string(svg), ">"+name+"<") {
			t.Errorf("the plot does not say %q", name)
		}
	}
}

func TestNoTable(t *testing.T) {
	t.Parallel()
	if _, err := read(strings.NewReader("no table\n")); err == nil {
		t.Error("nothing was drawn, and there is no error")
	}
	if _, err := read(strings.NewReader(two[:strings.LastIndex(two[:len(two)-1], "\n")+1])); err == nil {
		t.Error("a line is missing, and there is no error")
	}
}
