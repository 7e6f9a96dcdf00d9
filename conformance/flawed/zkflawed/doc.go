// Package zkflawed has locks on ZooKeeper as people write them, each with one mistake,
// and a test that requires the conformance suite to catch every one by the rule that
// is named for it. They are made of a lock that has none of the mistakes, on which the
// suite passes. None of it is for use.
package zkflawed
