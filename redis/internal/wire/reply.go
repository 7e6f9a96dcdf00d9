package wire

import (
	"strconv"
	"time"
)

// List is a reply of several values. Values of another type read as zero, and
// as -100 where they stand for the outcome.
type List []any

// ListOf is the reply as a list, which is empty if it is another value.
func ListOf(reply any) List {
	l, _ := reply.([]any)
	return l
}

// Int is a value that stands for the outcome, or is a number.
func (l List) Int(i int) int {
	if i < len(l) {
		if v, ok := l[i].(int64); ok {
			return int(v)
		}
	}
	return -100
}

// String is a value that is a text.
func (l List) String(i int) string {
	if i < len(l) {
		s, _ := l[i].(string)
		return s
	}
	return ""
}

// Millis is a time that is written as a number of milliseconds.
func (l List) Millis(i int) time.Duration {
	ms, _ := strconv.ParseInt(l.String(i), 10, 64)
	return max(0, time.Duration(ms)*time.Millisecond)
}
