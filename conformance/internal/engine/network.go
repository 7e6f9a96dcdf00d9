package engine

import (
	"context"
	"fmt"
	"strings"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/proxy"
)

// Network lies between one client and the servers, with a proxy before each of them.
type Network struct {
	env     *Env
	who     string
	key     string // what happens in it is shown with the calls on this key
	proxies []*proxy.Proxy
}

// Behind opens a Locker that reaches its servers through a network of its own. What
// happens there is shown with the calls on the key.
func (e *Env) Behind(key string) (*Client, *Network) {
	if e.Proxy == nil {
		e.Skipf("needs Config.Proxy, to disturb the network between a Locker and its server")
	}
	n := &Network{env: e, who: "a client", key: key}
	var addrs []string
	for _, server := range strings.Split(e.Proxy.Server, ",") {
		p, err := proxy.New("127.0.0.1:0", strings.TrimSpace(server))
		if err != nil {
			n.close()
			e.TooSlowf("", "no proxy could be started before the server: %v", err)
		}
		n.proxies = append(n.proxies, p)
		addrs = append(addrs, p.Addr())
	}
	e.mu.Lock()
	e.networks = append(e.networks, n)
	e.mu.Unlock()
	addr := strings.Join(addrs, ",")
	c := e.LockerFrom(func(ctx context.Context) (lock.Locker, error) {
		l, err := e.Proxy.Open(ctx, addr)
		if err == nil && l == nil {
			err = fmt.Errorf("conformance: Config.Proxy.Open returned neither a Locker nor an error")
		}
		return l, err
	})
	n.who = c.Who
	// A request makes its connections, and shows that they lead through the network.
	first := e.Key("%s-first", strings.ReplaceAll(c.Who, " ", "-"))
	h, err := c.TryFor(e.Ctx, first, e.TTL)
	if err != nil && n.sum((*proxy.Proxy).Unreached) > 0 {
		e.TooSlowf(first, "this machine could not connect to %s for the network of %s", e.Proxy.Server, c.Who)
	} else if err != nil {
		e.UnexpectedFatal(first, err, "TryAcquire on a free key returned %s; expected a lease", Outcome(err))
	}
	h.MustRelease()
	c.harmed.Store(true) // from here on
	if n.sum((*proxy.Proxy).Accepted) == 0 {
		e.ProofAt(-1, "", "a Locker of Config.Proxy.Open was granted a key without a connection to %s, the address that it was given", addr)
		panic(Abort{})
	}
	return c, n
}

func (n *Network) each(what string, f func(p *proxy.Proxy)) {
	for _, p := range n.proxies {
		f(p)
	}
	n.env.Log.Note("network", n.key, what+" "+n.who)
}

func (n *Network) sum(f func(p *proxy.Proxy) int) (total int) {
	for _, p := range n.proxies {
		total += f(p)
	}
	return total
}

// Cut ends all connections. New ones can be made.
func (n *Network) Cut() { n.each("cut the connections of", (*proxy.Proxy).Cut) }

// Down ends all connections, and every new one, until Heal.
func (n *Network) Down() { n.each("is down for", (*proxy.Proxy).Down) }

// Refused ends all connections, and has every new one refused, until Heal.
func (n *Network) Refused() {
	n.each("is not to be reached by", func(p *proxy.Proxy) { p.Refuse(); p.Cut() })
}

// Sever is Cut or Down while the key of the network is held. A hold of a lock that is
// nothing but a connection may end then, as if an operator had removed it.
func (n *Network) Sever(f func(*Network)) {
	if n.env.Claimed.Expiry == backend.ClockConnection {
		n.env.mu.Lock()
		n.env.removed[n.key] = append(n.env.removed[n.key], n.env.Log.Now())
		n.env.mu.Unlock()
	}
	f(n)
}

// Silent holds back what is sent in both directions, until Heal.
func (n *Network) Silent() {
	n.each("holds back everything of", func(p *proxy.Proxy) { p.Freeze() })
}

// Deaf holds back what the servers send, until Heal.
func (n *Network) Deaf() {
	n.each("holds back all answers to", func(p *proxy.Proxy) { p.Freeze(proxy.ToClient) })
}

// Heal ends all faults and forgets those that are still to come. What was held back
// goes on.
func (n *Network) Heal() { n.each("is healed for", heal) }

func heal(p *proxy.Proxy) {
	_ = p.Accept() // fails only when somebody else has taken the port, who is then what refuses
	p.Spare()
	p.Up()
	p.Resume()
}

// Loss is how a request fails on its way. The server does not see the end of the connection.
type Loss struct {
	Request bool // it does not reach the server; otherwise its answer is lost
	Stays   bool // no connection can be made any more, until Heal
}

// Losses are all there are.
var Losses = []Loss{{}, {Request: true}, {Stays: true}, {Request: true, Stays: true}}

// String says it in the evidence, and in keys.
func (l Loss) String() string {
	what := "answer"
	if l.Request {
		what = "request"
	}
	if l.Stays {
		what += "-and-all-after"
	}
	return what
}

// Lose has the i-th request from now on, counted from 1, fail on its way, together with
// its connection. With several servers it is the i-th to each.
func (n *Network) Lose(i int, l Loss) {
	n.each(fmt.Sprintf("is to lose the %s %d of", l, i), func(p *proxy.Proxy) {
		p.LoseUnseen()
		if l.Stays {
			p.DownWithLoss()
		}
		if l.Request {
			p.DropRequest(i)
		} else {
			p.DropReplyTo(i)
		}
	})
}

// Lost is how many requests and answers were lost so far.
func (n *Network) Lost() int { return n.sum((*proxy.Proxy).Lost) }

func (n *Network) close() {
	for _, p := range n.proxies {
		p.Close()
	}
}
