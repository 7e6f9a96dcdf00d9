package flawed

import (
	"context"
	"strings"

	"github.com/mortiselock/lock/backend"
)

var z185 = Lock{
	ID: "Z185", Title: "what is told of the holder, with commas",
	Summary: "A label with a comma is cut there, and those who are refused are told of somebody else.",
	Seen:    "Label, host and pid in one text, as label,host,pid.",
	Instead: "JSON, or a field for each.",
	File:    "label_in_list.go", Over: Memory,
	Rule: "HeldDetails",
	On:   onMemory(func(m primitives) backend.Backend { return labelInList{m} }),
}

// labelInList keeps a label up to its first comma.
//
//	A: holds "disk" with the label "backup, weekly"
//	B: refused, since "backup" holds it
//
// Caught by HeldDetails, which has labels with all that such texts are made of.
type labelInList struct{ primitives }

// Try implements backend.Backend.
func (l labelInList) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	req.Holder.Label, _, _ = strings.Cut(req.Holder.Label, ",")
	return l.primitives.Try(ctx, req)
}
