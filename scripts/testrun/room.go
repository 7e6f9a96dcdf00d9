package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// room lets test programs begin. Some run at a time in any case, more of them only while the
// processors have time to spare: packages that wait run beside packages that compute, however
// fast the machine is. Two programs of one package ask the same servers, and run one after the
// other.
type room struct {
	least, most int
	load        func() load

	mu      sync.Mutex
	running map[place]bool
	waiting []*guest // in the order in which they came
	loads   []load   // since the last program began, for lookback at most
}

// guest is a test program that waits to begin.
type guest struct {
	place place
	begin func() // not blocking
}

const (
	lookback = 2 * time.Second        // for so long, processors must have had time to spare
	spare    = 0.35                   // of the processors' time
	looks    = 250 * time.Millisecond // between two looks
)

func newRoom(most int, load func() load) *room {
	return &room{least: min(2, most), most: most, load: load, running: map[place]bool{}}
}

func (r *room) enter(g *guest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, g)
}

func (r *room) leave(p place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, p)
}

// look lets those begin for whom there is room.
func (r *room) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loads = append(r.loads, r.load())
	for len(r.running) < r.least || len(r.running) < r.most && r.idles() {
		i := slices.IndexFunc(r.waiting, func(g *guest) bool { return !r.isRunning(g.place.pkg) })
		if i < 0 {
			return
		}
		g := r.waiting[i]
		r.waiting = slices.Delete(r.waiting, i, i+1)
		r.running[g.place] = true
		r.loads = nil // what it adds is not seen yet
		g.begin()
	}
}

func (r *room) isRunning(pkg string) bool {
	for p := range r.running {
		if p.pkg == pkg {
			return true
		}
	}
	return false
}

// idles reports whether the processors had time to spare.
func (r *room) idles() bool {
	for len(r.loads) > 2 && r.loads[len(r.loads)-1].at.Sub(r.loads[1].at) >= lookback {
		r.loads = r.loads[1:]
	}
	if len(r.loads) == 0 {
		return false
	}
	from, to := r.loads[0], r.loads[len(r.loads)-1]
	return to.at.Sub(from.at) >= lookback && float64(to.idle-from.idle) >= spare*float64(to.all-from.all) && to.all > from.all
}

// load is what the processors have done since the machine began, in ticks. Work that gives way
// to other work (nice) counts as idle.
type load struct {
	at        time.Time
	idle, all uint64
}

// loadOfLinux is zero on other systems, where nothing tells that there is time to spare.
func loadOfLinux() load {
	l := load{at: time.Now()}
	text, _ := os.ReadFile("/proc/stat")
	first, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(first) {
		var ticks uint64
		if i == 0 || i > 8 { // its name, and what is counted twice
			continue
		}
		_, _ = fmt.Sscan(field, &ticks)
		l.all += ticks
		if i == 2 || i == 4 { // nice and idle
			l.idle += ticks
		}
	}
	return l
}

// door is where test programs ask whether they may begin.
type door struct {
	room   *room
	at     net.Listener
	dir    string
	closed chan struct{}
}

// open opens the door of the room; began is told of each program that begins.
func (r *room) open(began func(place)) (*door, error) {
	dir, err := os.MkdirTemp("", "testrun")
	if err != nil {
		return nil, err
	}
	at, err := net.Listen("unix", filepath.Join(dir, "door"))
	if err != nil {
		return nil, err
	}
	d := &door{r, at, dir, make(chan struct{})}
	go func() {
		for {
			conn, err := at.Accept()
			if err != nil {
				return
			}
			go d.ask(conn, began)
		}
	}()
	go d.watch()
	return d, nil
}

func (d *door) ask(conn net.Conn, began func(place)) {
	var p place
	line, err := bufio.NewReader(conn).ReadString('\n')
	if _, scanErr := fmt.Sscan(line, &p.run, &p.pkg); err != nil || scanErr != nil {
		_ = conn.Close()
		return
	}
	d.room.enter(&guest{p, func() {
		go func() {
			began(p)
			_ = conn.Close()
		}()
	}})
}

// watch looks at the room until the door is closed.
func (d *door) watch() {
	tick := time.NewTicker(looks)
	defer tick.Stop()
	for {
		d.room.look()
		select {
		case <-tick.C:
		case <-d.closed:
			return
		}
	}
}

func (d *door) close() {
	close(d.closed)
	_ = d.at.Close()
	_ = os.RemoveAll(d.dir)
}

// knock is what go test -exec is told to run test programs with.
func (d *door) knock(run int) (string, error) {
	self, err := os.Executable()
	return fmt.Sprintf("%s -begin %s %d", self, d.at.Addr(), run), err
}

// begin waits until there is room and becomes the test program. args are the address of the
// door, the run, and the program with its arguments.
func begin(args []string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	root := dir
	for root != filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		root = filepath.Dir(root)
	}
	pkg, err := filepath.Rel(root, dir)
	if err != nil {
		return err
	}
	conn, err := net.Dial("unix", args[0])
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(conn, args[1], filepath.ToSlash(pkg)); err != nil {
		return err
	}
	_, _ = conn.Read(make([]byte, 1)) // it ends when there is room, and when nobody is there to ask
	_ = conn.Close()
	return syscall.Exec(args[2], args[2:], os.Environ())
}
