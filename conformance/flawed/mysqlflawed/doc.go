// Package mysqlflawed is a collection of lock tables in MySQL or MariaDB as people
// write them: each is broken by one mistake, and each mistake is one short file to
// read. It goes with package flawed, whose locks need no MySQL.
//
// The test of the package runs the conformance suite on every lock over a real
// server, and requires that the rule named for the mistake fails and that the lock
// without the mistake passes. None of it is for use.
package mysqlflawed
