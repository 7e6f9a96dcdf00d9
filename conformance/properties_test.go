package conformance_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
)

// property is something that is asked of a lock, with what asks it: rules of the suite,
// and tests elsewhere of what a suite for every lock cannot bring about, such as faults
// of one server. A rule may ask several things.
type property struct {
	name  string
	asked string
	rules string
	tests string // "directory: Test Test; directory: Test"
}

var properties = []property{
	{"Exclusion", "Two leases of different owners are never valid for one key at the same instant.",
		"Exclusive ExclusiveWithinLocker ExclusiveAcrossProcesses ConcurrentTries Linearizable LinearizableUnderFaults ExclusiveThroughFaults", ""},
	{"Exclusion at takeover", "Also when leases run out and many clients notice it at the same moment.",
		"ExclusiveAcrossTakeover", ""},
	{"Keys are independent", "Holding a key neither blocks nor delays another; every byte of a key counts.",
		"IndependentKeys KeysAccepted KeysRefused LongestNames AbilitiesTakeAnyValue", "backend: FuzzValidateKey; file: FuzzPlaceOf; redis: FuzzNames; zookeeper: FuzzKeys"},
	{"A try is immediate", "A try on a held key is refused within a round trip, tells of the holder, and leaves nothing behind.",
		"TryIsImmediate TryBesideWaiters RefusalLeavesNothing HeldDetails", ""},
	{"A grant is of use", "What is returned is valid, with a good part of its TTL left.",
		"GrantWithinValidity GrantIsUsable", ".: TestGrantThatComesTooLateIsNotReturned"},
	{"Deadline from the sending", "A deadline counts from before the request, for grants and renewals, however late the answer comes.",
		"DeadlineFromSend ValidityHonest", ".: TestDeadlineIsCountedFromBeforeTheRequest"},
	{"The server outlives the deadline", "Nobody else is granted the key before its holder's deadline.",
		"ServerOutlivesD HoldersTTLCounts ExpiryIsPerHold", ""},
	{"A crash frees", "When the process of a holder dies, others get the key within the TTL and the takeover lag.",
		"CrashFrees CrashFreesProcess", "file: TestKilledHolder"},
	{"A crash between two steps", "The same wherever in acquiring or releasing the process dies, or the caller gives up.",
		"CrashBetweenSteps CrashAtAnyMoment CutWhileAcquiring", "file: TestKilledAnywhere"},
	{"Renewal keeps", "A lease that is renewed lasts for many TTLs, beside many others.",
		"RenewKeeps RenewByHand ManyLeases", ".: TestAutomaticRenewalKeepsTheHold"},
	{"Renewal ends where it should", "By request a lease is not renewed, or not beyond a maximum; what cannot be had is refused.",
		"WithoutRenewalEnds MaxHoldEnds UnsupportedIsRefused", ".: TestMaxHoldEndsARenewedHold"},
	{"Renewal never resurrects", "A lease that has run out or was released is not renewed, though nobody else has the key.",
		"RenewNeverResurrects RenewAfterRelease RenewByID", "redis: TestRenewNeverShortensAndNeverRecreates"},
	{"Renewal of one's own only", "The renewals of an earlier holder change nothing for the next.",
		"RenewNotOthers BatchRenewMixed", "file: TestOthersAreNotTouched"},
	{"Trouble with renewals", "Renewals that fail for a while, and pauses of the process, are no loss if they end before the deadline.",
		"RenewTransient ShortPauseIsNoLoss ShortSilenceIsNoLoss", ".: TestFailedRenewalsThatRecoverAreNoLoss"},
	{"Renewal without an answer", "It is neither a loss nor a confirmation.",
		"RenewUnknown", "redis: TestLostReplyToRenewAndRelease; mysql/internal/table: TestTableLostRenewal"},
	{"Renewals in quick succession", "All of them succeed, also those that change nothing on the server.",
		"RenewIdempotentCount", "mysql/internal/table: TestRenewalsThatChangeNothing"},
	{"Renewals do not add up", "Any number of renewals is worth one TTL, and none shortens a lease.",
		"RenewBounded", ""},
	{"Loss by the deadline", "Without a confirmed renewal the holder is told by its deadline, with requests hanging, failing, refused, or of a closed client.",
		"LostByDeadline LostWhenCutOff LostWhenUnreachable", ".: TestHangingRenewalsEndTheHoldAtItsDeadline; redis: TestClosedClient; etcd: TestClosedClient TestFrozenServer; mysql/internal/table: TestTablePartition; mysql/internal/row: TestRowPartition"},
	{"Loss before takeover", "The holder is told before anybody else is granted the key, also in another process, and when its own stood still.",
		"LostBeforeTakeover LostBeforeTakeoverAcrossProcesses PauseIsNoticed CutIsKeptOrTold LostWhenUnreachable", "zookeeper: TestProofAgainstALeader TestProofInSteadyState"},
	{"Loss by theft", "A record that is removed or replaced by force is noticed within a renewal period.",
		"LostOnRemoval", "etcd: TestOperatorEndsAHold; mysql/internal/table: TestCausesOfLoss; zookeeper: TestRemovedPlaceIsNotGranted"},
	{"A loss is told once", "It has a cause and stays; a release, also beside a renewal, is no loss.",
		"ReleaseIsNoLoss CauseIsStable DeadlineEnds LossEndsUse ReleaseBesideRenewal ContextEndsFirst", ""},
	{"A look is free", "To look whether a lease has ended sends nothing, and waits for nothing.",
		"LeaseIsLocal SilentLeaseIsRead", "internal/hold: TestFirstLookTellsWhileTheTimerIsStillAtIt"},
	{"A release frees", "When it has returned, the next try is granted.",
		"ReleaseFrees", ""},
	{"A release ends its own hold only", "Releasing a lease that has run out, or ends at that moment, leaves the next holder alone, and says so.",
		"ReleaseOwnOnly ReleaseByID ReleaseAtExpiry ReleaseReportsLoss", ""},
	{"A delayed release", "It does not end what the same client has acquired since.",
		"ReleaseDelayed ReleaseOldLeaseSameClient ReleaseAfterPause", ".: TestDelayedReleaseDoesNotEndTheNextHoldOfTheOwner"},
	{"A second release", "It returns ErrNotHeld and does nothing, also beside the first.",
		"ReleaseTwice ReleaseTwiceSendsNothing LeaseConcurrent", ".: TestOneOfConcurrentReleasesCounts"},
	{"Release without an answer", "The outcome is unknown, a repeat is harmless, and nothing else changes.",
		"ReleaseUnknown HandOverUnknown CutWhileReleasing", "mysql/internal/table: TestTableLostRelease TestTableLostHandOver; mysql/internal/row: TestRowLostRelease"},
	{"A release without its context", "It works when its context has ended, and is bounded when the server hangs.",
		"ReleaseDetached CallsAreBounded SilentCallsEnd", ".: TestReleaseIsBoundedWhenTheServerHangs"},
	{"What hangs hangs alone", "Requests that hang, for some keys or at one server of several, hold up none for the other keys.",
		"HungKeyHoldsUpNoOther", ".: TestAFrozenMemberCostsNoLeaseOfAnother TestManyRenewalsThatHangDoNotFillThePool; redis: TestClusterFrozenMemberCostsNoOtherLease"},
	{"Nothing after the release", "No renewal and no other request is sent for a lease that has ended.",
		"ReleaseStopsRenewal ReleaseEndsRequests", ".: TestNothingIsSentAfterARelease TestRenewEndsWithTheHold"},
	{"The hold outlives the call", "The end of the context that was given to Acquire changes nothing.",
		"HoldOutlivesAcquireCtx EndlessContexts", ""},
	{"Cancelled before the sending", "With a context that has ended nothing is sent.",
		"CancelBeforeSend CancelledSendsNothing NotSentIsTrue EndedContexts", ".: TestRefusedBeforeAnythingIsSent"},
	{"Cancelled meanwhile", "Cancelled at any moment, an acquisition returns soon, leaves nothing, and harms nobody who shares its client.",
		"CancelDuring CancelMidRequest CancelHarmsNobody", ".: TestCancelledTryReturnsAtOnceAndTheLateGrantIsGivenBack; redis: TestEndedInFlightIsUnknownToItsCallerOnly"},
	{"A late grant", "What the server grants after its caller was told an error ends within a TTL, though process and session live on.",
		"LateGrant SilenceWhileAcquiring SilentCallsEnd", "etcd: TestLateRequestHasNoEffect TestFrozenServerAnswersLate; zookeeper: TestLateGrant; mysql/internal/row: TestRowLateToken"},
	{"One's own grant", "An acquisition whose answer was lost, or whose request came twice, is granted once and never refused because of itself.",
		"OwnGrantRecognised TryIdempotent CutIsNoRefusal CutWhileAcquiring", "redis: TestLostReplyToTry TestClientDoesNotRepeatByItself; mysql/internal/table: TestTableLostGrant; mysql/internal/row: TestRowLostGrant; zookeeper: TestLostReplies"},
	{"Errors are typed", "Held, not held, lost, unknown, unavailable, invalid and closed are told apart, and the server's words are kept.",
		"ErrorsAreTyped BackendErrors UnavailableIsTold RefusedIsNotUnknown SilenceIsNotHeld", "redis: TestCodesOfServers; mysql/internal/wire: TestSentinels TestCodesAreOneOrTheOther; mysql/internal/row: TestRowSilenceIsNotHeld"},
	{"No secrets", "Nothing that is shown tells an owner or an acquisition id; labels and owners are checked.",
		"NoSecretsInErrors NoSecretsInLeases NoSecretsShown OwnerRefused LabelRefused", "backend: TestIDsAreDistinctAndSecret TestURLPrintsNoSecret; redis: TestNoSecretIsStoredOrShown; file: TestNothingSecretOnDiskOrInErrors"},
	{"Permanent errors end a wait", "What waiting does not cure is told at once.",
		"PermanentStops", "redis: TestForeignDataIsNamedAndLeftAlone TestMissingPermission TestWrongPassword; mysql/internal/table: TestMissingRights TestTableGoesAway; zookeeper: TestPermissions"},
	{"Holds are counted", "n acquisitions of an owner need n releases; others are refused until the last.",
		"ReentrantCount ReentrantModel ReentrantOwnLeases HoldCount ReentrantLimit", "mysql: TestOneOwnerTwoProcesses; mysql/internal/table: TestManyHoldsOfOneOwner"},
	{"Re-entry is explicit", "Only the same explicit owner enters again, in one process too.",
		"ReentrantExplicit ReentrantOtherLocker OwnerAcrossProcesses", ".: TestReentryByExplicitOwnerOnly"},
	{"Re-entry does not wait", "The holder enters past those who wait for it.",
		"ReentrantOverWaiters", "redis: TestFairOwnerEntersPastTheQueue"},
	{"Re-entry never shortens", "It leaves the holds that exist as long as they are, and does not revive a lost one.",
		"ReentrantExtends ReentrantAfterLoss", ".: TestLossWhileTheOwnerEnters"},
	{"Re-entry in trouble", "Lost requests and answers change the count by no more than they should, and the last release frees.",
		"ReentrantFault ReentrantThroughCut", ".: TestLostReplyDoesNotKeepTheOwnersOtherWaitersOut; mysql/internal/table: TestTableLostSecondHold"},
	{"Tokens grow", "From grant to grant, in the order of the grants.",
		"TokenIncreases TokenInGrantOrder TokenInTakeoverOrder", ""},
	{"Tokens survive", "They grow across release, expiry, removal by an operator, and clean-up.",
		"TokenSurvivesRelease TokenSurvivesIdling TokenSurvivesLastClose", "redis: TestTokensRiseOverEverything; mysql/internal/table: TestCleanupKeepsTokensRising; mysql/internal/row: TestRowTokensSurvive; file: TestTokensRise TestDamagedCounter; zookeeper: TestVanishedParentsAreMadeAgain"},
	{"Tokens survive crashes", "They grow across the death of a holder, and of the server.",
		"CrashFreesProcess CrashAtAnyMoment", "redis: TestTokensRiseOverEverything; redis/redlock: TestRestartedWithData; mysql/internal/table: TestServerDies; etcd: TestRestart; zookeeper: TestRestartKeepsHoldsAndTokens; file: TestTornSlot"},
	{"Tokens fit", "They are exact in every language, and end with an error and not with a repeat.",
		"TokenFits", "redis: TestTokensRunOutAndNeverRepeat; redis/redlock: TestTokensRunOut; mysql/internal/table: TestTokensEnd; mysql/internal/row: TestRowTokensSurvive; file: TestCounterEnds"},
	{"Tokens are stable", "A token is the same for the whole hold, its renewals and its re-entries.",
		"TokenStable ReentrantSameToken", ""},
	{"A fenced register", "A resource that checks tokens never takes a late write, however long holders stand still.",
		"FencedRegister", ""},
	{"Guarded writes", "They take effect while the lease is held, and never later, and hold up nobody else.",
		"GuardedWriteWhileHeld GuardedWriteNeverLate GuardedWriteHoldsUpNobody BatchRenewBesideGuardedWrite", "redis: TestGuardedScript; mysql/internal/table: TestGuardedAgainstTakeover TestBatchBesideALockedRow; mysql/internal/row: TestInTxLoss; etcd: TestGuardedWrite; zookeeper: TestGuarded"},
	{"Waiters wake", "A waiter gets the key soon after its release, also when every signal is lost.",
		"WaiterWakes WakesAtAnyMoment WaiterPolls WatchBeforeReturn WaiterSurvivesCut", "redis: TestDroppedSubscriptionWakesEverybody TestFairLostPushEndsByPoll; etcd: TestCompactionUnderAWatch"},
	{"Waiters wait", "A wait lasts until its grant or its context, whatever time limits the server has.",
		"WaitOutlastsTTL", "mysql/internal/table: TestLockWaitTimeoutIsNotTheEnd; mysql/internal/row: TestRowWaitOutlastsLockWaitTimeout"},
	{"Who gives up or dies is harmless", "It delays nobody behind it by more than its lease.",
		"WaiterGivesUp GaveUpWakesNext WaiterDeathHarmless WaiterKilledHarmless QueueWithdraw WithdrawBesideWait QueueAbandoned", "redis: TestFairDeadWaiterDelaysByTheLifeOfItsPlace"},
	{"A new session is a new fate", "What is acquired after a session has ended is not lost with what lived on it.",
		"NextSessionHolds", "etcd: TestOperatorEndsAHold; zookeeper: TestExpiredSessionLosesItsHolds"},
	{"A waiter has a session", "Whose session or lease ended while it waited is never granted the key.",
		"WaiterSessionCheck", "etcd: TestWaiterWithoutALeaseIsNotGranted; zookeeper: TestExpiredSessionOfAWaiter TestRemovedPlaceIsNotGranted"},
	{"No herd", "What a hand-over costs does not grow with the waiters, one waiter is no burden, and many do not ask in step.",
		"NoHerd NoLockstep WaitIsCalm", "redis: TestCommandsPerHandOver TestFairReleaseWakesOneClient; zookeeper: TestReleaseWakesTwoOfManyWaiters"},
	{"The order of service", "It is the one that is promised.",
		"WaiterOrderLocal FairOrder QueueOrder HandOverIsOneStep", "redis: TestFairServesInTheOrderOfArrival; zookeeper: TestOrderOverTheWrapAround"},
	{"Progress", "A free key is granted; under contention everybody gets it again and again, with requests lost now and then.",
		"HandsOut Progress LeavesATurn ReleaseTells ProgressUnderFaults ManyWaiters TryBesideWaiters", "redis: TestFairTurmoil; redis/redlock: TestTurmoil; etcd: TestStorm; zookeeper: TestStorm"},
	{"Idling changes nothing", "A Locker that was not used for a while works, and has kept what it holds.",
		"IdleLockerWorks", ""},
	{"No leak", "Nothing is left of grants, refusals, cancellations and losses: no goroutine, connection, session, row or key.",
		"NoLeak NothingKept WatchEndsWithContext", "redis: TestCloseEndsWatchesAndLeavesNothing TestFairCancelledWaitsLeaveNothing; mysql/internal/row: TestRowFailuresLeaveNothing TestRowCancelledWaitLeavesNothing; etcd: TestCancelledAcquiresLeaveNothing TestIdleLeaseEnds; zookeeper: TestCancelledAcquiresLeaveNothing; file: TestLeftovers"},
	{"Clean pools", "Connections go back as they came: no variable, transaction or watch is left on them.",
		"PoolClean", "mysql/internal/row: TestRowSessionVariables; redis: TestBrokenConnectionsOfThePool"},
	{"Every TTL", "From a nanosecond to the largest, a TTL is kept, or refused with the limits; none is cut. Without one there is a default.",
		"TTLGrain TTLRange EveryTTLLasts AcquireKeepsTTL Defaults AbilitiesTakeAnyValue", "etcd: TestTTLLimits; zookeeper: TestTTLIsThatOfTheSession; backend: TestCheckTTL"},
	{"Options are of one call", "What one acquisition was given counts for no other of the same Locker.",
		"OptionsOfOneCall", ""},
	{"The wall clock does not matter", "Neither the client's clock nor the time zone of a session moves a deadline.",
		"", "backend: TestWallClockThatIsSetBackLengthensNothing; mysql/internal/table: TestSessionsOfUsers; mysql/internal/row: TestRowSessionsOfUsers; redis: TestFairClockSetBack"},
	{"Suspension counts", "Time during which the machine is suspended counts towards the deadline.",
		"", ".: TestSuspendCountsTowardsTheDeadline; file: TestShiftedBoottime TestReboot TestContainersWithBootIDs"},
	{"An exact majority", "Of several servers, more than half of all must confirm in time; errors and silence are no votes.",
		"", "redis/redlock: TestQuorumExact TestErrorsAreNoVotes TestMajorityDown TestTokensModel"},
	{"A majority leaves nothing", "After a failed or cancelled acquisition no server keeps the key.",
		"", "redis/redlock: TestCancelled TestLateReleaseOfAnAttempt TestRefusals"},
	{"A majority is fast", "A server that is silent or slow delays nothing.",
		"", "redis/redlock: TestFrozenNode TestSilentNode TestSlowNode"},
	{"A majority renews", "A renewal that a minority confirms moves no deadline, and keys that were made anew do not count.",
		"", "redis/redlock: TestExtend TestRestartedEmpty TestLostByAMajority"},
	{"Forgotten scripts", "That the server has forgotten its scripts is not seen.",
		"", "redis: TestScriptsForgottenByTheServer TestBatchAfterTheServerForgotTheScript TestTogetherAfterTheServerForgotTheScript"},
	{"Deadlocks", "Deadlocks and lock wait timeouts of a database reach no caller; a hold that they end is lost.",
		"", "mysql/internal/table: TestLockWaitTimeoutIsNotTheEnd TestNewKeysDontDeadlock; mysql/internal/row: TestRowNewKeys TestInTxDeadlock"},
	{"No hold on another connection", "What is bound to a connection or session is never continued on another.",
		"", "mysql/internal/row: TestRowLostWithItsConnection TestRowSwappedConnection; zookeeper: TestNodeOfAnotherSessionIsNotAdopted TestExpiredSessionLosesItsHolds"},
	{"What belongs to others", "Foreign keys, rows and nodes near a lock's own neither break it nor are touched.",
		"", "redis: TestForeignDataIsNamedAndLeftAlone TestCounterOfAnotherFormIsLeftAlone; etcd: TestForeignKeysAreLeftAlone; mysql/internal/table: TestForeignRow; zookeeper: TestForeignChildrenAreIgnored; file: TestDirectoryInTheWay"},
	{"Close", "It ends holds with the cause closed, and waits, in bounded time, with a server that hangs too.",
		"CloseEndsHolds CloseEndsWaits CloseTwice CloseUnreachable CallsAreBounded SilentCallsEnd", ".: TestCloseIsBoundedWhenTheServerHangs; redis: TestCloseWhileTheServerHangs; zookeeper: TestCloseWithoutServer"},
	{"One file", "No sequence of calls locks two files at once; a file that others remove is a loss, and one that is left behind blocks nobody.",
		"", "file: TestEightProcesses TestReplacedGuard TestGuardsAreNeverRemoved TestRemovedRecordIsALoss TestLeftovers TestChildDoesNotKeepTheGuard"},
	{"Operators", "They see what is so, and end only what they have seen.",
		"InspectShows HolderIsShown HolderAcrossProcesses LookingChangesNothing ListShowsHeldKeys ForceReleaseByToken RevokeByToken ForgetLeavesOthers CleanupByAge RaisedFloorCounts LastTokenCoversAll", "cmd/lockctl: TestInspect TestList TestUnlock TestForget TestALookMakesNoDirectory; file: TestALookChangesNothing TestRootLooks"},
	{"Guarantees", "They are complete and always the same.",
		"GuaranteesAreStable", "cmd/lockctl: TestPromisesNameRulesThatExist"},
}

// testsOf lists the tests of a property as pairs of a file and a test in it. A test
// that does not exist has no file.
func testsOf(t *testing.T, p property) (out [][2]string) {
	t.Helper()
	for _, part := range strings.FieldsFunc(p.tests, func(r rune) bool { return r == ';' }) {
		dir, names, ok := strings.Cut(strings.TrimSpace(part), ": ")
		require.True(t, ok, "%s: %q", p.name, part)
		files, err := filepath.Glob(filepath.Join("..", dir, "*_test.go"))
		require.NoError(t, err)
		for _, name := range strings.Fields(names) {
			declared := regexp.MustCompile(`(?m)^func ` + name + `\(\w+ \*testing\.[TF]\)`)
			i := slices.IndexFunc(files, func(file string) bool {
				source, err := os.ReadFile(file)
				return err == nil && declared.Match(source)
			})
			if assert.GreaterOrEqual(t, i, 0, "%s: %s has no test %s", p.name, dir, name) {
				out = append(out, [2]string{filepath.ToSlash(files[i]), name})
			}
		}
	}
	return out
}

// TestProperties requires that each property is asked by a rule or a test that exists,
// and that each rule asks for a property.
func TestProperties(t *testing.T) {
	t.Parallel()
	var known []string
	for _, r := range conformance.Rules() {
		known = append(known, r.Name)
	}
	asking := map[string]bool{}
	names := map[string]bool{}
	for _, p := range properties {
		assert.False(t, names[p.name], "%s is listed twice", p.name)
		names[p.name] = true
		rules := strings.Fields(p.rules)
		assert.NotZero(t, len(rules)+len(testsOf(t, p)), "nothing asks for %q", p.name)
		for _, rule := range rules {
			assert.Contains(t, known, rule, p.name)
			asking[rule] = true
		}
	}
	idle := slices.DeleteFunc(known, func(rule string) bool { return asking[rule] })
	assert.Empty(t, idle, "rules that ask for no property: name each in properties_test.go, at what it asks for, or at a new property")
}

// testedElsewhere lists what no rule asks.
func testedElsewhere() string {
	var b strings.Builder
	b.WriteString("### What no rule asks\n\n")
	b.WriteString("What takes a particular server, its faults, or a clock is asked by [tests of this\n" +
		"project](../conformance/properties_test.go):\n\n")
	for _, p := range properties {
		if p.rules == "" {
			b.WriteString("- " + strings.ToLower(p.name[:1]) + p.name[1:] + "\n")
		}
	}
	return b.String() + "\n"
}
