package main

import (
	"slices"

	"github.com/mortiselock/lock/conformance/flawed"
	"github.com/mortiselock/lock/conformance/flawed/redlockflawed"
)

// step is a section of the page.
type step struct {
	title string
	play  func(*scene)
	// file is that of the flawed lock with the same mistake; the last step has none.
	file string
}

var steps = []step{
	{"1. SETNX", step1, "setnx_only.go"},
	{"2. EXPIRE after it", step2, "setnx_then_expire.go"},
	{"3. SET NX PX", step3, "del_without_owner.go"},
	{"4. An owner: GET, compare, DEL", step4, "get_compare_del.go"},
	{"5. WATCH and MULTI", step5, "watch_on_other_connection.go"},
	{"6. Lua", step6, "release_always_succeeds.go"},
	{"7. GETSET with time stamps", step7, "getset_takeover.go"},
	{"8. Keep-alive", step8, "renew_without_owner.go"},
	{"9. Reentrancy", step9, "reentrant_by_process.go"},
	{"10. Redlock", step10, "half_is_enough.go"},
	{"11. A token", step11, "token_before_grant.go"},
	{"12. A guarded write", step12, "token_deleted_with_lock.go"},
	{"13. The same here", step13, ""},
}

// scriptNames are how the scripts are printed.
var scriptNames = map[string]string{
	compareAndDel: "compareAndDel", takeAndCount: "takeAndCount", guardedWrite: "guardedWrite",
}

// flawedLock returns the lock of the collection that has the step's mistake.
func (s step) flawedLock() flawed.Lock {
	all := slices.Concat(flawed.All(), redlockflawed.All())
	return all[slices.IndexFunc(all, func(l flawed.Lock) bool { return l.File == s.file })]
}
