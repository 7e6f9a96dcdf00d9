// Package flawed is a collection of broken locks. Each is a lock as people write
// it, has one mistake, and names the rule of the conformance suite that must
// catch it. The collection shows what goes wrong and why, and it tests the suite:
// a suite that lets one of these locks pass proves nothing about other locks.
//
// Never use them for anything else.
//
// A lock's file holds the mistake and nothing but it; its comment tells how two
// clients come to grief, step by step. Everything around the mistake is healthy:
// the locks over Redis are made of a small correct lock, and the locks over memory of
// memlock; both pass the suite ([Healthy]). Where a mistake is a race, the lock
// dawdles at its weak point, as a slow network, a garbage collection or a busy
// machine would make it do sooner or later.
package flawed
