package push

import (
	"testing"

	"github.com/mortiselock/lock/redis/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m, func() {}) }
