package wait

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The key is left to others for a little longer than they usually take from one release
// to the next, whose signal then comes first; but not for long, if they have gone.
func TestCourtesyOutlastsAnotherClientsTurn(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, c := range map[string]struct{ took, apart, want time.Duration }{
		"nothing is known":           {0, 0, 2 * ms},
		"a slow server":              {10 * ms, 0, 42 * ms},
		"a very slow server":         {time.Second, 0, 250 * ms},
		"short turns":                {ms / 4, 8 * ms, 12 * ms},
		"turns shorter than answers": {ms, ms, 6 * ms},
		"long turns":                 {ms / 4, time.Minute, 25 * ms},
	} {
		assert.Equal(t, c.want, (&traffic{took: c.took, apart: c.apart}).courtesy(), name)
	}
}
