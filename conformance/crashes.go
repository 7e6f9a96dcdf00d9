package conformance

import "time"

// crashFreesProcess kills a process that holds two keys: one that others keep
// asking for, and one that another waits for.
func crashFreesProcess(e *env, ps *processes) {
	rounds := e.rounds(3*e.ttl, 1, 10)
	b := e.locker()
	for round := range rounds {
		p := ps.start(1)[0]
		if round == 0 {
			p.sameStore(b)
		}
		polled, waited := e.key("polled-%d", round), e.key("waited-%d", round)
		holds := []*farHold{p.mustTry(polled, e.ttl, false), p.mustTry(waited, e.ttl, false)}
		e.pause(e.ttl + e.ttl/4 + e.randomly(e.ttl/3)) // only renewals keep it now
		for _, h := range holds {
			h.mustLive("it is renewed automatically")
			b.mustRefuse(h.key, "its holder, in another process, renews it")
		}
		w := b.acquiring(waited)
		e.settle()
		p.kill()
		const why = "the process of its holder was killed"
		e.together(
			func() { _ = b.wins(polled, e.takeover(e.ttl), e.ttl/50, why).release(e.ctx) },
			func() {
				_ = w.mustGet(e, waited, e.takeover(e.ttl), why+", and its TTL was "+e.ttl.String()).release(e.ctx)
			},
		)
		w.wait()
		for _, key := range []string{polled, waited} {
			if e.tokens() {
				e.checkTokens(key, true)
			}
		}
	}
	e.notef("%d processes killed while they held leases", rounds)
}

// crashAtAnyMoment kills a process that acquires and releases three keys without
// a pause, with some time inside, and with more.
func crashAtAnyMoment(e *env, ps *processes) {
	rounds := e.rounds(e.ttl*3/2, 3, 30)
	b := e.locker()
	work := []time.Duration{0, e.ttl / 100, e.ttl / 10}
	keys := make([]string, len(work))
	for k := range keys {
		keys[k] = e.key("%d", k)
	}
	next := ps.start(1)[0]
	for round := range rounds {
		p := next
		begun := make([]func() (answer, bool), len(keys))
		for k, key := range keys {
			begun[k] = p.cycling(command{Key: key, TTL: e.ttl, Limit: time.Hour, Work: work[k]})
		}
		// The next one starts meanwhile, so that this one runs for a while.
		e.together(
			func() {
				if round+1 < rounds {
					next = ps.start(1)[0]
				}
			},
			func() { e.pause(50*time.Millisecond + e.randomly(100*time.Millisecond)) },
		)
		e.pause(e.randomly(10 * time.Millisecond))
		p.kill()
		for k, wait := range begun {
			if a, killed := wait(); killed {
				e.judgeCycle(keys[k], p, a)
			}
		}
		if e.failed() {
			return
		}
		e.each(len(keys), func(k int) {
			_ = b.wins(keys[k], e.takeover(e.ttl), e.ttl/50, "its holder, or one that asked for it, was killed").release(e.ctx)
		})
	}
	grants := 0
	for _, key := range keys {
		if e.tokens() {
			e.checkTokens(key, false)
		}
		grants += e.grantsOf(key)
	}
	if grants <= rounds*len(keys) {
		e.notef("inconclusive: each process was killed before it was granted anything")
	}
	e.notef("%d processes killed, %d grants", rounds, grants)
}

// grantsOf is how many grants of the key were recorded.
func (e *env) grantsOf(key string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, r := range e.records {
		if r.key == key {
			n++
		}
	}
	return n
}
