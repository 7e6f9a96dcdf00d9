// Package wire is what the lock on one Redis server and the one on a majority of them
// have in common: scripts and commands as they are sent, replies and errors as they are
// read, the settings of servers and of URLs.
package wire
