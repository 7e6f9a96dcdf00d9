package redislock

import (
	"bufio"
	"fmt"
	"io"
	"strconv"

	goredis "github.com/redis/go-redis/v9"
)

// appendCommand appends a command as RESP has it: an array of strings.
func appendCommand(b []byte, args []any) []byte {
	b = appendHeader(b, '*', len(args))
	var number [20]byte
	for _, arg := range args {
		switch v := arg.(type) {
		case string:
			b = append(appendHeader(b, '$', len(v)), v...)
		case int:
			b = appendBulk(b, strconv.AppendInt(number[:0], int64(v), 10))
		case int64:
			b = appendBulk(b, strconv.AppendInt(number[:0], v, 10))
		default:
			b = appendBulk(b, fmt.Append(nil, v))
		}
		b = append(b, '\r', '\n')
	}
	return b
}

func appendBulk(b, v []byte) []byte { return append(appendHeader(b, '$', len(v)), v...) }

func appendHeader(b []byte, kind byte, n int) []byte {
	b = strconv.AppendInt(append(b, kind), int64(n), 10)
	return append(b, '\r', '\n')
}

// refusal is an error that the server has answered.
type refusal string

func (r refusal) Error() string { return string(r) }

// RedisError implements goredis.Error.
func (refusal) RedisError() {}

// longestReply bounds what is read for one string, and longestList for one list.
const (
	longestReply = 64 << 20
	longestList  = 1 << 20
)

// readReply reads one reply of RESP2, in the types that go-redis has for it: a string, an
// int64, a []any; goredis.Nil for nothing, and a refusal.
func readReply(r *bufio.Reader) (any, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, malformed(line)
	}
	kind, text := line[0], line[1:len(line)-2]
	switch kind {
	case '+':
		return string(text), nil
	case '-':
		return nil, refusal(text)
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	switch {
	case err != nil:
		return nil, malformed(line)
	case kind == ':':
		return n, nil
	case n == -1 && (kind == '$' || kind == '*'):
		return nil, goredis.Nil
	case kind == '$' && n >= 0 && n <= longestReply:
		return readBulk(r, int(n))
	case kind == '*' && n >= 0 && n <= longestList:
		return readList(r, int(n))
	}
	return nil, malformed(line)
}

func readBulk(r *bufio.Reader, n int) (any, error) {
	b := make([]byte, n+2)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	if b[n] != '\r' || b[n+1] != '\n' {
		return nil, malformed(b[n:])
	}
	return string(b[:n]), nil
}

func readList(r *bufio.Reader, n int) (any, error) {
	list := make([]any, n)
	for i := range list {
		v, err := readReply(r)
		switch {
		case err == goredis.Nil: //nolint:errorlint // as it came
		case isRefusal(err):
			list[i] = err
		case err != nil:
			return nil, err
		default:
			list[i] = v
		}
	}
	return list, nil
}

func isRefusal(err error) bool {
	_, is := err.(refusal) //nolint:errorlint // as it came
	return is
}

// malformed is no error of the network: the connection is closed, and the outcome unknown.
func malformed(b []byte) error {
	return fmt.Errorf("redislock: the server does not speak RESP2: %.40q", b)
}
