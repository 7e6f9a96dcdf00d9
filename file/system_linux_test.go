package filelock

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mortiselock/lock/backend"
)

func TestShiftedBoottime(t *testing.T) {
	t.Parallel()
	require.False(t, shiftedBoottime("monotonic           0         0\nboottime            0         0\n"))
	require.False(t, shiftedBoottime("monotonic 5 0\nboottime 0 0\n"))
	require.False(t, shiftedBoottime(""))
	require.True(t, shiftedBoottime("monotonic 0 0\nboottime 1728000 0\n"))
	require.True(t, shiftedBoottime("monotonic 0 0\nboottime 0 1\n"))
	require.True(t, shiftedBoottime("boottime -1 0"))
}

func TestBootClock(t *testing.T) {
	t.Parallel()
	a, err := openBootClock()
	require.NoError(t, err)
	b, err := openBootClock()
	require.NoError(t, err)
	require.Equal(t, a.run, b.run)
	require.Len(t, a.run.Boot, 36)
	x := a.now()
	var si unix.Sysinfo_t
	require.NoError(t, unix.Sysinfo(&si))
	require.InDelta(t, float64(si.Uptime), time.Duration(x).Seconds(), 2, "uptime counts suspend")
	require.GreaterOrEqual(t, b.now(), x)
}

func TestNetworkFileSystems(t *testing.T) {
	t.Parallel()
	require.NoError(t, localFileSystem(t.TempDir()))
	require.NoError(t, localFileSystem("/dev/shm"))
	require.ErrorIs(t, localFileSystem("/nowhere at all"), backend.ErrUnavailable)
	require.Equal(t, "NFS", sharedTypes[0x6969])
	require.Equal(t, "CIFS", sharedTypes[0xff534d42])
	err := refuseNetwork("/mnt/locks", "NFS")
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "NFS")
	require.ErrorContains(t, err, "/mnt/locks")
}

func TestTypeOfMount(t *testing.T) {
	t.Parallel()
	const line = `43 22 0:39 / /mnt/x rw,nosuid shared:20 master:1 - fuse.sshfs me@host:/x rw,user_id=0`
	name, ok := typeOfMount(line, "0:39")
	require.True(t, ok)
	require.Equal(t, "fuse.sshfs", name)
	require.False(t, localFUSE[name])
	for _, bad := range []string{"", "43 22", "43 22 0:39", "43 22 0:39 / /x rw - ", "43 22 0:3 / /x rw - ext4 y rw"} {
		_, ok := typeOfMount(bad, "0:39")
		require.False(t, ok, bad)
	}
}

// bootVar names the file that a container has mounted over the boot id.
const bootVar = "FILELOCK_TEST_BOOT"

func init() {
	enter = func(role string) error {
		path := os.Getenv(bootVar)
		if role != inContainer || path == "" {
			return nil
		}
		if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
			return err
		}
		return unix.Mount(path, bootIDFile, "", unix.MS_BIND, "")
	}
}

// container starts a process that holds the key, in namespaces of its own, with another
// file mounted over its boot id if one is named. It returns its first line.
func container(t *testing.T, dir, bootID string, namespaces uintptr) string {
	t.Helper()
	cmd := command(inContainer, dir)
	cmd.Env = append(cmd.Env, bootVar+"="+bootID)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	if err := cmd.Start(); err != nil {
		t.Skip("namespaces are not permitted here: ", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	if strings.Contains(line, syscall.EPERM.Error()) {
		t.Skip("mounts are not permitted here: ", line)
	}
	return strings.TrimSpace(line)
}

// freshID is a file with an id such as the one that systemd-nspawn mounts.
func freshID(t *testing.T) string {
	t.Helper()
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "boot_id")
	require.NoError(t, os.WriteFile(path, id, 0o600))
	return path
}

// TestContainersWithBootIDs: containers that share the directory exclude each other, and
// the host, also if each has a boot id of its own.
func TestContainersWithBootIDs(t *testing.T) {
	t.Parallel()
	if kernelID() == "" {
		t.Skip("this kernel has no other id")
	}
	for name, bootID := range map[string]func(t *testing.T) string{
		"a file of another file system": freshID,
		"a file of procfs":              func(*testing.T) string { return "/proc/sys/kernel/random/uuid" },
		"the same boot id":              func(*testing.T) string { return "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			first := container(t, dir, bootID(t), unix.CLONE_NEWNS|unix.CLONE_NEWPID)
			require.NotContains(t, first, "lock:")
			require.Contains(t, container(t, dir, bootID(t), unix.CLONE_NEWNS|unix.CLONE_NEWPID), "is held by")
			b := newBackend(t, dir)
			_, err := b.Try(t.Context(), request("", time.Second))
			require.ErrorIs(t, err, backend.ErrHeld)
			rec, err := b.Inspect(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, first, fmt.Sprint(rec.Token))
			// And the other way round.
			require.NoError(t, b.ForceRelease(t.Context(), "key", rec.Token))
			mustTry(t, b, request("", time.Hour))
			require.Contains(t, container(t, dir, bootID(t), unix.CLONE_NEWNS), "is held by")
		})
	}
}

// TestRunID: which names of a run of the kernel are believed, and what follows.
func TestRunID(t *testing.T) {
	t.Parallel()
	mounted := freshID(t)
	_, err := thisRun(mounted, "")
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "memfd_create")
	run, err := thisRun(mounted, "kernel")
	require.NoError(t, err)
	require.Equal(t, runID{Kernel: "kernel"}, run)
	link := filepath.Join(t.TempDir(), "boot_id")
	require.NoError(t, os.Symlink("/proc/sys/kernel/random/uuid", link))
	_, err = thisRun(link, "kernel")
	require.ErrorIs(t, err, backend.ErrPermanent)
	_, err = thisRun("/nowhere", "kernel")
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "/proc")
	run, err = thisRun(bootIDFile, "kernel")
	require.NoError(t, err)
	require.Equal(t, "kernel", run.Kernel)
	require.Len(t, run.Boot, 36)
	first := kernelID()
	require.Equal(t, first, kernelID())

	for _, c := range []struct {
		a, b runID
		same bool
	}{
		{runID{"a", "k"}, runID{"a", "k"}, true},
		{runID{"a", "k"}, runID{"b", "k"}, false}, // the boot id, where both have seen that of the kernel
		{runID{"a", "k"}, runID{"", "k"}, true},
		{runID{"a", "k"}, runID{"", "l"}, false},
		{runID{"", "k"}, runID{"", "l"}, false},
		{runID{"a", ""}, runID{"b", "k"}, false},
		{runID{"a", ""}, runID{"", "k"}, true}, // can't be told
	} {
		require.Equal(t, c.same, c.a.is(c.b), "%v %v", c.a, c.b)
		require.Equal(t, c.same, c.b.is(c.a), "%v %v", c.b, c.a)
	}
}

// TestRunThatCannotBeCompared: a record is respected by those who can't tell whether it
// is from before a reboot, until it runs out.
func TestRunThatCannotBeCompared(t *testing.T) {
	t.Parallel()
	b := newBackend(t, t.TempDir())
	var boot fakeBoot
	boot.set(b)
	b.boot.run = runID{Kernel: "kernel"}
	mustTry(t, b, request("", time.Hour))
	b.boot.run = runID{Boot: "boot"}
	_, err := b.Try(t.Context(), request("", time.Second))
	require.ErrorIs(t, err, backend.ErrHeld)
	boot.pass(time.Hour)
	mustTry(t, b, request("", time.Second))
}

// TestTimeNamespace: a process whose boot clock is shifted is refused.
func TestTimeNamespace(t *testing.T) {
	t.Parallel()
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(unshare, "--time", "--boottime", "1000", "--fork", "--kill-child", os.Args[0])
	cmd.Env = command(inContainer, t.TempDir()).Env
	out, err := cmd.CombinedOutput()
	if strings.HasPrefix(string(out), "unshare:") {
		t.Skip("time namespaces are not permitted here: ", string(out))
	}
	require.Error(t, err)
	require.Contains(t, string(out), backend.ErrPermanent.Error())
	require.Contains(t, string(out), "time namespace")

	mounted := freshID(t)
	require.ErrorIs(t, unshifted(mounted), backend.ErrPermanent)
	require.NoError(t, unshifted("/proc/self/nothing"))
	require.NoError(t, unshifted(timeOffsets))
}
