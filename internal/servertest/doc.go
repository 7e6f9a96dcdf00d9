// Package servertest finds or starts real servers for tests.
//
// A test asks for a server and gets one that answers, or is skipped with a
// text that says what is missing and how to get it:
//
//	server := servertest.Redis(t)           // of its own, stopped at cleanup
//	server := servertest.SharedRedis(t)     // one per test binary
//
//	func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) } // stops the shared ones
//
// Servers are looked for in this order:
//
//  1. an address in the environment (LOCK_TEST_REDIS=host:port);
//  2. a program on this machine, started as a child of the test binary, on a
//     port of its own on 127.0.0.1, in a temporary directory of its own (TMPDIR,
//     else in memory where there is enough, else on the disk);
//  3. a container of the official image, through the Docker engine;
//  4. otherwise the test is skipped.
//
// # Environment
//
//	LOCK_TEST_REDIS           host:port of a Redis server that tests may use
//	LOCK_TEST_REDIS_PASSWORD  its password
//	LOCK_TEST_REDIS_IMAGE     container image instead of redis:7
//	LOCK_TEST_REQUIRE         all, or kinds with commas (redis,etcd): a missing
//	                          server is a failure and not a skip; all,-mysql
//	                          is all but that
//	LOCK_TEST_SOURCE          env, binary or container: look there only, as
//	                          make test-containers does
//
// The first three exist for MARIADB, MYSQL, ETCD and ZOOKEEPER too. A MariaDB or
// MySQL server from the environment has a database and a user named mortise, who
// may do everything in it, and root, both with the password that is given here.
//
// A server from the environment belongs to somebody else. It is never stopped,
// and a test that needs options or control (WithControl) passes over it.
//
// # Nothing stays behind
//
// Servers are stopped at the test's cleanup, shared ones by Main. When the test
// binary is killed, on Linux the kernel kills its servers with it
// (PR_SET_PDEATHSIG). On other systems a killed test binary leaves them running.
// A container is stopped by the Docker engine when it has run a minute longer
// than the test binary's time limit (-timeout; a day if there is none).
// Directories and stopped containers of killed test binaries are removed by a
// later run.
//
// A started program costs one goroutine until it is stopped, a container one or
// two; goleak checks go after the clean-up (see StopAfter).
//
// # Adding a kind of server
//
// One file per kind: a kind value (see redis.go), a constructor and its shared
// form. The search, ports, readiness, faults and clean-up are common to all.
package servertest
