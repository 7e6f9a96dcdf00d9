package engine

import "github.com/mortiselock/lock/backend"

// Claim is a part of the guarantees that switches rules on.
type Claim struct {
	Name string
	Made func(s *Settings) bool
}

// The claims that rules rest on.
var (
	ClaimTokens = Claim{"Token", func(s *Settings) bool {
		return s.Claimed.Token != "" && s.Claimed.Token != backend.TokenNone
	}}
	ClaimReentrancy = Claim{"Reentrancy", func(s *Settings) bool {
		return s.Claimed.Reentrancy != "" && s.Claimed.Reentrancy != backend.ReentrancyNone
	}}
	ClaimServerHolds = Claim{"Reentrancy: server", func(s *Settings) bool {
		return s.Claimed.Reentrancy == backend.ReentrancyServer
	}}
	ClaimFair           = Claim{"Fair", func(s *Settings) bool { return s.Claimed.Fair }}
	ClaimManualRenewal  = Claim{"ManualRenewal", func(s *Settings) bool { return s.Claimed.ManualRenewal }}
	ClaimWithoutRenewal = Claim{"WithoutRenewal", func(s *Settings) bool { return s.Claimed.WithoutRenewal }}
	ClaimLossSignal     = Claim{"LossSignal", func(s *Settings) bool { return s.Claimed.LossSignal }}
	ClaimDeadline       = Claim{"Deadline", func(s *Settings) bool { return s.Claimed.Deadline }}
	ClaimDetails        = Claim{"HolderDetails", func(s *Settings) bool { return s.Claimed.HolderDetails }}
	ClaimGuardedWrite   = Claim{"GuardedWrite", func(s *Settings) bool { return s.Claimed.GuardedWrite }}
	// A lock that states its guarantees itself knows this package's Locker, whose
	// documentation promises the order. Adapters are not held to it.
	ClaimLocalOrder = Claim{"the order promised by lock.Locker", func(s *Settings) bool { return s.Says || s.Claimed.Fair }}
)
