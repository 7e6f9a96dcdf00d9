package filelock

import (
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
