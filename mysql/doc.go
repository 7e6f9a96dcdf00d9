// Package mysqllock keeps locks in MySQL or MariaDB, in two forms: a table of
// leases ([NewTable]) and row locks of the server. It registers the URL scheme
// mysql and uses github.com/go-sql-driver/mysql.
//
//	import _ "github.com/mortiselock/lock/mysql"
//
//	locker, err := lock.Open(ctx, "mysql://user:password@localhost:3306/app", nil)           // the table
//	locker, err := lock.Open(ctx, "mysql://user:password@localhost:3306/app?mode=row", nil)  // row locks
//
// # The table
//
// A key is one row, which is created when the key is first used and kept when it
// is released. Each step is one statement by primary key, and no connection is held
// between the steps. All times are the server's UTC_TIMESTAMP(6), so that neither
// the clock of the client nor the time zone of a session matters.
//
// Each statement decides by itself, and reports what it decided through
// LAST_INSERT_ID(expr), which the server returns with the answer to an UPDATE. Row
// counts are never looked at, so that clientFoundRows may be on or off. Values are
// written into the statements as numbers and as hexadecimal literals: there is
// nothing to prepare, and neither interpolateParams nor the character set of the
// connection matters.
//
// The table stores hashes of acquisition ids and of owners, so that reading it does
// not let anybody release a lock.
//
// # Row locks
//
// A key is one row too, kept until a clean-up, and the server locks it for a
// transaction (SELECT ... FOR UPDATE) on a connection that belongs to the hold. A
// heartbeat on that connection renews; wait_timeout is the TTL, so that the server
// ends the session of a client that has died. Waiting is done by the server. [InTx]
// works in the transaction of the lock.
//
// # Fencing tokens
//
// A token of the table is the larger of the row's last token plus one and the
// server's clock in microseconds, written by the statement that grants. Tokens stay
// below 2^53. A token of a row lock is the same, in a second table, committed on a
// connection of its own while the row is locked: what is raised in the transaction of
// the hold would be rolled back with it and given again.
//
// # What is promised
//
// One writable server decides. The table excludes until the holder's deadline as
// long as that server keeps what it has committed and its wall clock is not set
// forward. [lock.Client.Guarantees] lists every assumption.
package mysqllock
