// Package redistest is what the tests of the locks on one Redis server and on a majority
// of them have in common. Only tests may import it.
package redistest
