package main

// process counts how often its goroutines have entered.
type process struct {
	*client
	entered int
}

func (p *process) enter() bool {
	if p.entered == 0 && !take(p.client) {
		return false
	}
	p.entered++
	return true
}

func step9(s *scene) {
	p := &process{client: s.client("a")}
	s.say("request 1 may work:", p.enter())
	s.say("request 2 may work:", p.enter())
}
