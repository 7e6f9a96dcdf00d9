package conformance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
)

// promise is something that users of a lock rely on, with what tests it: rules of
// the suite, and tests elsewhere of what a suite for every lock cannot bring about.
type promise struct {
	text  string
	rules string
	tests []string // "file: Test"
}

var promises = []promise{
	{"A free key is granted, and under contention everybody gets a turn.", "HandsOut Progress ProgressUnderFaults ManyWaiters", nil},
	{"Two holders are never valid at once.", "Exclusive ExclusiveWithinLocker ExclusiveAcrossProcesses ConcurrentTries Linearizable LinearizableUnderFaults", nil},
	{"Also not when leases run out and many notice.", "ExclusiveAcrossTakeover", nil},
	{"Keys are independent of each other, and every byte counts.", "IndependentKeys KeysAccepted KeysRefused OwnerRefused LabelRefused", []string{
		"backend/key_fuzz_test.go: FuzzValidateKey", "redis/keys_fuzz_test.go: FuzzNames", "backend/file/paths_fuzz_test.go: FuzzPlaceOf",
	}},
	{"A try is refused at once, tells of the holder, and leaves nothing.", "TryIsImmediate HeldDetails RefusalLeavesNothing", nil},
	{"A grant that is returned is good for a while yet.", "GrantIsUsable GrantWithinValidity", nil},
	{"Deadlines count from before the request, and never from its answer.", "DeadlineFromSend ValidityHonest", []string{"trouble_test.go: TestDeadlineIsCountedFromBeforeTheRequest"}},
	{"Nobody else is granted the key before the holder's deadline.", "ServerOutlivesD HoldersTTLCounts ExpiryIsPerHold", nil},
	{"A lease lasts for its own TTL, and what cannot be kept is refused.", "EveryTTLLasts TTLRange TTLGrain UnsupportedIsRefused", nil},
	{"The key of a dead holder is free within TTL and takeover lag, wherever it died.", "CrashFrees CrashFreesProcess CrashAtAnyMoment CrashBetweenSteps", []string{"backend/file/process_test.go: TestKilledAnywhere"}},
	{"A lease renews itself for as long as it is wanted, and no longer.", "RenewKeeps RenewByHand WithoutRenewalEnds MaxHoldEnds HoldOutlivesAcquireCtx WaitOutlastsTTL", nil},
	{"A lease that is over is not renewed back to life, and renews nobody else's.", "RenewNeverResurrects RenewNotOthers RenewByID RenewAfterRelease BatchRenewMixed", nil},
	{"Renewals that fail for a while are no loss; those without an answer count for nothing.", "RenewTransient RenewUnknown ShortPauseIsNoLoss", nil},
	{"Many renewals are worth one TTL, and none shortens a lease.", "RenewBounded RenewIdempotentCount", nil},
	{"A holder that is cut off, stopped or robbed is told, before anybody else is granted the key.", "LostByDeadline LostWhenCutOff LostBeforeTakeover LostBeforeTakeoverAcrossProcesses LostOnRemoval PauseIsNoticed", nil},
	{"A loss is told once, with its cause, and stays; a release is no loss.", "ReleaseIsNoLoss LossEndsUse CauseIsStable ReleaseReportsLoss", nil},
	{"Time during which the machine is suspended counts, and the wall clock does not.", "", []string{
		"clock_test.go: TestSuspendCountsTowardsTheDeadline", "backend/clock_wall_test.go: TestWallClockThatIsSetBackLengthensNothing", "mysql/table_faults_test.go: TestSessionsOfUsers",
	}},
	{"When a release has returned, the key is free.", "ReleaseFrees ReleaseDetached ReleaseBesideRenewal", nil},
	{"A release ends its own hold only, however late, however often.", "ReleaseOwnOnly ReleaseOldLeaseSameClient ReleaseByID ReleaseTwice ReleaseAtExpiry ReleaseDelayed", nil},
	{"A release without an answer is told as such, repeated, and harms nobody.", "ReleaseUnknown HandOverUnknown", nil},
	{"After its release nothing is sent for a lease.", "ReleaseStopsRenewal ReleaseEndsRequests", []string{"trouble_test.go: TestNothingIsSentAfterARelease"}},
	{"Cancelled at any moment, a call returns soon and leaves nothing.", "CancelBeforeSend CancelledSendsNothing CancelDuring CancelMidRequest CancelHarmsNobody CallsAreBounded", nil},
	{"A grant that comes after its caller was told an error ends by itself.", "LateGrant", nil},
	{"A request that arrives twice counts once, and an acquisition is not refused because of itself.", "OwnGrantRecognised TryIdempotent", []string{"reentry_test.go: TestLostReplyDoesNotKeepTheOwnersOtherWaitersOut"}},
	{"Errors tell apart what callers must tell apart, and keep what the server said; some end a wait.", "ErrorsAreTyped BackendErrors UnavailableIsTold PermanentStops", nil},
	{"No error tells a secret.", "NoSecretsInErrors", nil},
	{"n acquisitions of one owner need n releases, whatever gets lost.", "ReentrantCount ReentrantModel ReentrantFault ReentrantOwnLeases ReentrantLimit HoldCount", nil},
	{"Only the same explicit owner enters again, and does not wait for itself.", "ReentrantExplicit ReentrantOtherLocker ReentrantOverWaiters", nil},
	{"Entering again never shortens a hold, and a lost hold is not entered.", "ReentrantExtends ReentrantAfterLoss", nil},
	{"Tokens grow from grant to grant, across release, expiry, takeover, removal and crash.", "TokenIncreases TokenInGrantOrder TokenInTakeoverOrder TokenSurvivesRelease", nil},
	{"A token is exact in every language, and the same for the whole hold.", "TokenFits TokenStable ReentrantSameToken", nil},
	{"A resource that checks tokens never takes a late write.", "FencedRegister", nil},
	{"A guarded write takes effect while the lease is held, and never later.", "GuardedWriteWhileHeld GuardedWriteNeverLate", nil},
	{"A waiter gets the key soon after its release, even if every signal is lost.", "WaiterWakes WaiterPolls WatchBeforeReturn", nil},
	{"Who gives up, or dies, delays nobody; and nobody is granted a key for a session that has ended.", "WaiterGivesUp WaiterDeathHarmless WaiterKilledHarmless WaiterSessionCheck QueueWithdraw QueueAbandoned", nil},
	{"Waiting costs the server little, whatever the number of waiters.", "NoHerd WaitIsCalm WatchEndsWithContext", nil},
	{"Waiters are served in the order that is promised.", "WaiterOrderLocal FairOrder QueueOrder TryBesideWaiters HandOverIsOneStep", nil},
	{"Close ends everything in bounded time, and nothing is left.", "CloseEndsHolds CloseEndsWaits CloseTwice NoLeak LeaseConcurrent", nil},
	{"Connections go back to their pool as they came.", "PoolClean", []string{"mysql/rowlock_connection_test.go: TestRowSessionVariables"}},
	{"A hold that is bound to a connection is not continued on another.", "", []string{"mysql/rowlock_connection_test.go: TestRowLostWithItsConnection"}},
	{"What belongs to others is left alone.", "", []string{
		"redis/errors_test.go: TestForeignDataIsNamedAndLeftAlone", "etcd/open_test.go: TestForeignKeysAreLeftAlone", "mysql/table_record_test.go: TestForeignRow", "zookeeper/recipe_test.go: TestForeignChildrenAreIgnored",
	}},
	{"Deadlocks and forgotten scripts of the server are not seen.", "", []string{"mysql/table_faults_test.go: TestDeadlockIsNotSeen", "redis/errors_test.go: TestScriptsForgottenByTheServer"}},
	{"A majority of servers is needed, confirmed in time.", "", []string{"redis/redlock_quorum_test.go: TestRedlockQuorumExact", "redis/redlock_faults_test.go: TestRedlockMajorityDown"}},
	{"Operators see what is so, and end only what they have seen.", "InspectShows ListShowsHeldKeys ForceReleaseByToken RevokeByToken", nil},
	{"The guarantees are complete and always the same.", "GuaranteesAreStable", nil},
}

// TestPromises requires that every rule is in the table, and that what it names
// exists.
func TestPromises(t *testing.T) {
	t.Parallel()
	var known []string
	for _, r := range conformance.Rules() {
		known = append(known, r.Name)
	}
	listed := map[string]bool{}
	for _, p := range promises {
		assert.NotEmpty(t, p.rules+strings.Join(p.tests, ""), p.text)
		for _, rule := range strings.Fields(p.rules) {
			assert.Contains(t, known, rule, p.text)
			assert.False(t, listed[rule], "%s is listed twice", rule)
			listed[rule] = true
		}
		for _, test := range p.tests {
			file, name, _ := strings.Cut(test, ": ")
			source, err := os.ReadFile(filepath.Join("..", file))
			require.NoError(t, err, p.text)
			assert.Contains(t, string(source), "func "+name+"(", file)
		}
	}
	missing := slices.DeleteFunc(known, func(rule string) bool { return listed[rule] })
	assert.Empty(t, missing, "rules that belong to a promise of the table in promises_test.go")
}

func promiseTable() string {
	var b strings.Builder
	b.WriteString("\n| Promise | Rules | Tests of what one lock cannot show |\n|---|---|---|\n")
	for _, p := range promises {
		var tests []string
		for _, test := range p.tests {
			file, name, _ := strings.Cut(test, ": ")
			tests = append(tests, fmt.Sprintf("[%s](../%s)", name, file))
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", p.text, strings.Join(strings.Fields(p.rules), ", "), strings.Join(tests, ", "))
	}
	return b.String() + "\n"
}
