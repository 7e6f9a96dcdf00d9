package mysqllock

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock/backend"
)

func openRow(context.Context, urlSettings) (backend.Backend, error) {
	return nil, fmt.Errorf("mysqllock: %w: mode=row", backend.ErrUnsupported)
}
