package redislock

import (
	"bufio"
	"io"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestAppendCommand(t *testing.T) {
	t.Parallel()
	got := appendCommand(nil, []any{"evalsha", "", 2, int64(-15000), true, "a\r\nb"})
	require.Equal(t, "*6\r\n$7\r\nevalsha\r\n$0\r\n\r\n$1\r\n2\r\n$6\r\n-15000\r\n$4\r\ntrue\r\n$4\r\na\r\nb\r\n", string(got))
}

func TestReadReply(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]any{
		"+PONG\r\n":                      "PONG",
		":0\r\n":                         int64(0),
		":-12\r\n":                       int64(-12),
		"$0\r\n\r\n":                     "",
		"$4\r\na\r\nb\r\n":               "a\r\nb",
		"*0\r\n":                         []any{},
		"*3\r\n:1\r\n$-1\r\n$1\r\nx\r\n": []any{int64(1), nil, "x"},
		"*2\r\n*1\r\n:1\r\n-ERR no\r\n":  []any{[]any{int64(1)}, refusal("ERR no")},
	} {
		got, err := readReply(bufio.NewReader(strings.NewReader(text)))
		require.NoError(t, err, "%q", text)
		require.Equal(t, want, got, "%q", text)
	}
	for text, want := range map[string]error{
		"$-1\r\n":            goredis.Nil,
		"*-1\r\n":            goredis.Nil,
		"-NOSCRIPT gone\r\n": refusal("NOSCRIPT gone"),
		"":                   io.EOF,
		"+PO":                io.EOF,
		"$4\r\nab":           io.ErrUnexpectedEOF,
		"*2\r\n:1\r\n":       io.EOF,
	} {
		_, err := readReply(bufio.NewReader(strings.NewReader(text)))
		require.Equal(t, want, err, "%q", text)
	}
	for _, text := range []string{"\r\n", "PONG\r\n", ":x\r\n", "$1\r\nxyz\r\n", "$99999999999\r\n", "*-2\r\n", "+PONG\n", "%1\r\n+a\r\n+b\r\n", "_\r\n"} {
		_, err := readReply(bufio.NewReader(strings.NewReader(text)))
		require.ErrorContains(t, err, "RESP2", "%q", text)
	}
}

// go-redis, and what is built on it here, knows the server's errors by these.
func TestRefusalIsAnErrorOfTheServer(t *testing.T) {
	t.Parallel()
	require.Implements(t, (*goredis.Error)(nil), refusal(""))
	require.True(t, goredis.IsReadOnlyError(refusal("READONLY You can't write against a read only replica.")))
	require.True(t, goredis.IsReadOnlyError(refusal("ERR Error running script (call to f_1): @user_script:3: -READONLY You can't write against a read only replica.")))
	require.True(t, goredis.HasErrorPrefix(refusal("NOSCRIPT No matching script."), "NOSCRIPT"))
	require.True(t, goredis.IsMaxClientsError(refusal("ERR max number of clients reached")))
}
