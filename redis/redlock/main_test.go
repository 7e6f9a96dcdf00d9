package redlock

import (
	"testing"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m, func() { conformance.Child(childConformance) }) }

const ttl = redistest.TTL
