package row

import "context"

// Room is how many more connections the server takes now, for those who are about to
// open many, such as lockctl check.
func (b *Backend) Room(ctx context.Context) (int, error) {
	var most, mine, used int
	var name string
	if err := b.control.QueryRowContext(ctx, "SELECT @@max_connections, @@max_user_connections").Scan(&most, &mine); err != nil {
		return 0, err
	}
	if err := b.control.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Threads_connected'").Scan(&name, &used); err != nil {
		return 0, err
	}
	free := most - used
	if mine > 0 {
		free = min(free, mine)
	}
	return max(free, 0), nil
}
