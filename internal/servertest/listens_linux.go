package servertest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// listens reports an error if somebody else than the process certainly listens
// on the port of addr: a server that answers there is not ours. A pid of 0, and
// what /proc does not tell, are no error.
func listens(pid int, addr string) error {
	if pid == 0 {
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	wanted := listeners(port)
	if len(wanted) == 0 {
		return nil
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	descriptors, _ := os.ReadDir(dir)
	if len(descriptors) == 0 {
		return nil
	}
	for _, d := range descriptors {
		if target, err := os.Readlink(filepath.Join(dir, d.Name())); err == nil && wanted[target] {
			return nil
		}
	}
	return fmt.Errorf("%s is served by another process than ours (%d)", addr, pid)
}

// listeners returns the names under which descriptors of sockets that listen on
// the port appear in /proc (proc_pid_net(5)).
func listeners(port string) map[string]bool {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil
	}
	const listening = "0A"
	suffix := fmt.Sprintf(":%04X", n)
	found := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		lines.Scan() // the titles
		// Those that listen come first, and to go through all others takes the kernel long.
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 10 || fields[3] != listening {
				break
			}
			if strings.HasSuffix(fields[1], suffix) {
				found["socket:["+fields[9]+"]"] = true
			}
		}
		_ = f.Close()
	}
	return found
}
