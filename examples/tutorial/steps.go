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
	// harm is what the code itself prints that must not be; of the last step, that must.
	harm string
}

var steps = []step{
	{"1. SETNX", step1, "setnx_only.go",
		`b: PTTL .* -> -1\n`},
	{"2. EXPIRE after it", step2, "setnx_then_expire.go",
		`b: PTTL .* -> -1\n`},
	{"3. SET NX PX", step3, "del_without_owner.go",
		`b: SET .* -> true\na: DEL .* -> 1\nc: SET .* -> true\n`},
	{"4. An owner: GET, compare, DEL", step4, "get_compare_del.go",
		`b: SET .* -> true\na: DEL .* -> 1\nc: SET .* -> true\n`},
	{"5. WATCH and MULTI", step5, "watch_on_other_connection.go",
		`b: SET .* -> true\na: MULTI, DEL .*, EXEC -> 1\na's release says: <nil>\nc: SET .* -> true\n`},
	{"6. Lua", step6, "release_always_succeeds.go",
		`a: EVAL compareAndDel .* -> 0\na's release says: <nil>\n`},
	{"7. GETSET with time stamps", step7, "getset_takeover.go",
		`a has the lock: true\n(.*\n)*b has the lock: true\n`},
	{"8. Keep-alive", step8, "renew_without_owner.go",
		`a may go on: true\n`},
	{"9. Reentrancy", step9, "reentrant_by_process.go",
		`request 1 may work: true\nrequest 2 may work: true\n`},
	{"10. Redlock", step10, "half_is_enough.go",
		`b has the lock: true\n(.*\n)*a has the lock: true\n`},
	{"11. A token", step11, "token_before_grant.go",
		`the first holder's token: 2\n(.*\n)*the second holder's token: 1\n`},
	{"12. A guarded write", step12, "token_deleted_with_lock.go",
		`b: EVAL guardedWrite .* new -> 1\na: EVAL guardedWrite .* old -> 1\n`},
	{"13. The same here", step13, "",
		`b's write: 1\na's write: 0\n`},
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
