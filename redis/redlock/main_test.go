package redlock

import (
	"testing"

	"github.com/mortiselock/lock/redis/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m, childConformance) }

const ttl = redistest.TTL
