package wire

import (
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// NotAllowed reports that the server does not allow a command.
func NotAllowed(err error) bool {
	return goredis.HasErrorPrefix(err, "NOPERM") || goredis.HasErrorPrefix(err, "unknown command") ||
		goredis.HasErrorPrefix(err, "ERR unknown command")
}

// InfoFields are what the server said of itself in answer to INFO.
func InfoFields(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// ScanCount is how many Redis keys the server looks at in one SCAN, which blocks
// it meanwhile: well below a millisecond.
const ScanCount = 500

// Globbed quotes what SCAN's patterns treat in a special way.
func Globbed(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
