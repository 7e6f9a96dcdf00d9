package servertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// zookeeperTick is the unit of the server's times: a session lasts 2 to 80 of
// them, so 1 s to 40 s.
const zookeeperTick = 500 * time.Millisecond

// ZooKeeper returns a ZooKeeper server for this test only, which is stopped at
// the test's cleanup. Its data survives Kill and Restart with data. Arguments
// (WithArgs) are lines of zoo.cfg that override those set here ("tickTime=200"),
// or, when they start with "-", flags of the Java machine. It has no users. A
// server from the environment is not private: other tests may be using it, so
// paths must be unique, and tests that disturb the server ask for WithControl.
// If there is no server the test is skipped, or fails under LOCK_TEST_REQUIRE.
func ZooKeeper(t TB, opts ...Option) *Server {
	t.Helper()
	return private(t, systemFinder(), zookeeperKind, opts)
}

// SharedZooKeeper returns the ZooKeeper server that all tests of this test
// binary share. It starts on first use and runs until Main returns or StopShared
// is called. Tests on it use unique paths; they can't kill, freeze or restart it.
// Safe for parallel tests. If there is no server the test is skipped, or fails
// under LOCK_TEST_REQUIRE.
func SharedZooKeeper(t TB) *Server {
	t.Helper()
	return shared.get(t, systemFinder(), zookeeperKind)
}

// ZooKeeperCluster is ZooKeeper for n members of one ensemble. Each can be
// killed, frozen and restarted by itself. Restart and Resume of a member return
// when it serves, for which more than half of the members must be up. Which one
// leads is told by the four-letter word srvr.
func ZooKeeperCluster(t TB, n int, opts ...Option) []*Server {
	t.Helper()
	return cluster(t, systemFinder(), zookeeperKind, n, opts)
}

// WithTick sets ZooKeeper's tickTime: a session lasts 2 to 80 ticks.
func WithTick(tick time.Duration) Option {
	return WithArgs(zookeeperTimes(tick)...)
}

func zookeeperTimes(tick time.Duration) []string {
	return []string{
		fmt.Sprintf("tickTime=%d", tick.Milliseconds()),
		fmt.Sprintf("maxSessionTimeout=%d", 80*tick.Milliseconds()),
	}
}

const (
	zookeeperJar    = "/usr/share/java/zookeeper.jar" // its manifest names its class path
	zookeeperLogJar = "/usr/share/java/slf4j-simple.jar"
	zookeeperConfig = "zoo.cfg"
)

var zookeeperKind = register(&kind{
	name:          "zookeeper",
	title:         "ZooKeeper",
	env:           "LOCK_TEST_ZOOKEEPER",
	program:       zookeeperProgram,
	install:       "apt-get install zookeeper default-jre-headless",
	image:         "zookeeper:3.9",
	ownImage:      "mortise-test/zookeeper:3.9",
	containerPort: 2181,
	containerEnv:  zookeeperImageEnv,
	extraPorts:    3, // for the other members, for elections, and for TLS
	speaksTLS:     true,
	refuse:        refusePassword,
	prepare:       prepareZooKeeper,
	command:       zookeeperCommand,
	probe:         probeZooKeeper,
	url:           func(to target) string { return "zk://" + to.addr },
})

func zookeeperProgram(f *finder) (string, error) {
	if _, err := os.Stat(zookeeperJar); err != nil {
		return "", missing("no %s", zookeeperJar)
	}
	java, err := f.lookPath("java")
	if err != nil {
		return "", missing("no java on PATH")
	}
	return java, nil
}

func prepareZooKeeper(_ context.Context, l launch) error {
	data := filepath.Join(l.dir, "zk")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	lines := append(zookeeperTimes(zookeeperTick),
		"dataDir="+data,
		"clientPort="+strconv.Itoa(l.port),
		"clientPortAddress="+l.host,
		"maxClientCnxns=0",
		"initLimit=20",
		"syncLimit=5",
		"admin.enableServer=false",
		"4lw.commands.whitelist=srvr,cons,dump,wchs,wchp,wchc,mntr,ruok,conf",
	)
	if len(l.members) > 1 {
		for i, m := range l.members {
			lines = append(lines, fmt.Sprintf("server.%d=%s:%d:%d", i+1, l.host, m.extra[0], m.extra[1]))
		}
		if err := os.WriteFile(filepath.Join(data, "myid"), []byte(strconv.Itoa(l.member+1)+"\n"), 0o600); err != nil {
			return err
		}
	}
	if l.tls != nil {
		secure, err := zookeeperTLS(l)
		if err != nil {
			return err
		}
		lines = append(lines, secure...)
	}
	_, settings := zookeeperArgs(l)
	lines = append(lines, settings...)
	return os.WriteFile(filepath.Join(l.dir, zookeeperConfig), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// zookeeperTLS puts certificate and key into one file, as ZooKeeper wants them, and
// returns the lines of zoo.cfg about it. Clients must show a certificate, as is its
// default.
func zookeeperTLS(l launch) ([]string, error) {
	var store []byte
	for _, path := range []string{l.tls.Key, l.tls.Cert} {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		store = append(store, text...)
	}
	path := filepath.Join(l.dir, "store.pem")
	return []string{
		"secureClientPort=" + strconv.Itoa(l.members[l.member].tls()),
		"secureClientPortAddress=" + l.host,
		"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
		"ssl.keyStore.location=" + path,
		"ssl.trustStore.location=" + l.tls.CA,
	}, os.WriteFile(path, store, 0o600)
}

// zookeeperArgs tells flags of the Java machine from lines of zoo.cfg.
func zookeeperArgs(l launch) (flags, settings []string) {
	for _, a := range l.args {
		if strings.HasPrefix(a, "-") {
			flags = append(flags, a)
		} else {
			settings = append(settings, a)
		}
	}
	return flags, settings
}

func zookeeperCommand(l launch) []string {
	if l.binary == "" {
		return nil
	}
	args := append([]string{
		l.binary,
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-Dorg.slf4j.simpleLogger.showDateTime=true",
		// It complains of every probe, and what matters goes under.
		"-Dorg.slf4j.simpleLogger.log.org.apache.zookeeper.server.NIOServerCnxn=error",
	}, zookeeperFlags(l.config)...)
	classes := []string{zookeeperJar, zookeeperLogJar}
	if l.tls != nil {
		// The manifest leaves out what Netty needs for TLS.
		classes = append(classes, "/usr/share/java/netty-codec.jar", "/usr/share/java/netty-resolver.jar")
	}
	return append(args,
		"-cp", strings.Join(classes, string(os.PathListSeparator)),
		"org.apache.zookeeper.server.quorum.QuorumPeerMain",
		filepath.Join(l.dir, zookeeperConfig),
	)
}

// zookeeperFlags are those of a Java machine that starts quickly and stays small.
func zookeeperFlags(c config) []string {
	all := []string{
		"-Xmx128m",
		"-XX:+UseSerialGC",
		"-XX:TieredStopAtLevel=1",
		"-Xshare:auto",
		"-XX:-UsePerfData",
		"-Djava.awt.headless=true",
		"-Dzookeeper.preAllocSize=1024",
		"-Dzookeeper.cnxTimeout=1000",
	}
	if !c.persistence {
		all = append(all, "-Dzookeeper.forceSync=no")
	}
	flags, _ := zookeeperArgs(launch{config: c})
	return append(all, flags...)
}

// zookeeperImageEnv is the environment of the official image.
func zookeeperImageEnv(c config) []string {
	_, settings := zookeeperArgs(launch{config: c})
	lines := append([]string{
		"maxSessionTimeout=" + strconv.FormatInt(80*zookeeperTick.Milliseconds(), 10),
	}, settings...)
	return []string{
		"ZOO_TICK_TIME=" + strconv.FormatInt(zookeeperTick.Milliseconds(), 10),
		"ZOO_MAX_CLIENT_CNXNS=0",
		"ZOO_4LW_COMMANDS_WHITELIST=srvr,cons,dump,wchs,wchp,wchc,mntr,ruok,conf",
		"ZOO_ADMINSERVER_ENABLED=false",
		"ZOO_CFG_EXTRA=" + strings.Join(lines, "\n"),
		"JVMFLAGS=" + strings.Join(zookeeperFlags(c), " "),
	}
}

// probeZooKeeper asks with the four-letter word srvr, which opens no session.
func probeZooKeeper(ctx context.Context, to target) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to.addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if end, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(end); err != nil {
			return "", err
		}
	}
	if _, err := conn.Write([]byte("srvr")); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(conn, 64<<10))
	if err != nil {
		return "", err
	}
	if !bytes.Contains(text, []byte("Mode: ")) {
		return "", fmt.Errorf("ZooKeeper does not serve yet: %s", bytes.TrimSpace(text))
	}
	first, _, _ := strings.Cut(string(text), "\n")
	version, ok := strings.CutPrefix(first, "Zookeeper version: ")
	if !ok {
		return "", permanent(errors.New("what answers is not ZooKeeper"))
	}
	version, _, _ = strings.Cut(version, "-")
	return version, nil
}
