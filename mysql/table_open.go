package mysqllock

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock/backend"
)

func openTable(context.Context, urlSettings) (backend.Backend, error) {
	return nil, fmt.Errorf("mysqllock: %w: mode=table", backend.ErrUnsupported)
}
