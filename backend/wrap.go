package backend

import "reflect"

// Wrapper is implemented by backends that change some of what another backend does, such
// as one that counts requests. See [As] for what that means for its abilities. A wrapper
// that changes keys or holds implements every ability, or is no Wrapper: what it leaves out
// goes to the inner backend as it is.
type Wrapper interface {
	Backend
	// Unwrap returns the inner backend, always the same one.
	Unwrap() Backend
}

// As returns what implements the ability T of the backend, which is one of the optional
// interfaces of this package or a concrete type, and whether there is any. It is how the lock
// package and its tools look for abilities, in place of a type assertion.
//
// A backend has the abilities whose methods it has. A [Wrapper] has those of the inner
// backend, no more and no less: with its own method where it has one, else with that of the
// inner backend. There are two exceptions. To register a [LossNotifier] asks nothing of the
// server: a Wrapper may have it on its own. And a Wrapper is [Interruptible] or [Immediate] only by
// its own method.
//
// A method that returns [ErrUnsupported] declines, as driver.ErrSkip does: the lock package goes
// on as if the backend had no such ability.
func As[T any](b Backend) (T, bool) {
	own, has := b.(T)
	w, wraps := b.(Wrapper)
	ability := reflect.TypeFor[T]()
	if !wraps || ability == reflect.TypeFor[Interruptible]() || ability == reflect.TypeFor[Immediate]() {
		return own, has
	}
	inner, ok := As[T](w.Unwrap())
	if has && (ok || ability.Kind() != reflect.Interface || ability == reflect.TypeFor[LossNotifier]()) {
		return own, true
	}
	return inner, ok
}
