package filelock

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mortiselock/lock/backend"
)

const expiryClock = backend.ClockHost

var clockAssumptions = []string{
	"All processes see the same CLOCK_BOOTTIME; a time namespace that shifts it is refused at open.",
}

const (
	bootIDFile    = "/proc/sys/kernel/random/boot_id"
	timeOffsets   = "/proc/self/timens_offsets"
	boottimeEntry = "boottime"
)

// openBootClock reads CLOCK_BOOTTIME and what names the run of the kernel. Without a
// name there is no telling whether a record is from before a reboot, and a process
// that guesses would disagree with those that know, so it is an error.
func openBootClock() (bootClock, error) {
	if err := unshifted(timeOffsets); err != nil {
		return bootClock{}, err
	}
	run, err := thisRun(bootIDFile, kernelID())
	if err != nil {
		return bootClock{}, err
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return bootClock{}, fmt.Errorf("%w: filelock: cannot read CLOCK_BOOTTIME: %v; allow clock_gettime in the sandbox", backend.ErrPermanent, err)
	}
	return bootClock{run: run, now: boottime}, nil
}

func boottime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return ts.Nano()
}

// thisRun names the run of the kernel by its boot id, which the host and every
// container see, unless something is mounted over it: systemd-nspawn, LXC and others
// give each container one of its own. Then the kernel's other id must do.
func thisRun(bootID, kernel string) (runID, error) {
	id, genuine, err := readProc(bootID)
	id = strings.TrimSpace(id)
	switch {
	case err != nil || id == "":
		return runID{}, fmt.Errorf("%w: filelock: cannot read the boot id from %s: %v; mount /proc", backend.ErrPermanent, bootID, err)
	case genuine:
		return runID{Boot: id, Kernel: kernel}, nil
	case kernel != "":
		return runID{Kernel: kernel}, nil
	}
	return runID{}, fmt.Errorf("%w: filelock: something is mounted over %s, as in containers of systemd-nspawn and LXC, and nothing else tells this process whether the machine was rebooted since a record was written, so that it would take those of other containers for old ones; unmount it in the container, or allow memfd_create there (with Linux 5.13 or later), or use a backend with a server",
		backend.ErrPermanent, bootID)
}

// readProc reads a small file of procfs. genuine says that it is that of the kernel, and
// not another one that is mounted over it.
func readProc(path string) (text string, genuine bool, err error) {
	// procfs has no link there; one in its place may lead to another file of procfs.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return "", false, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return "", false, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	if uint32(st.Type) != unix.PROC_SUPER_MAGIC {
		return string(data), false, nil
	}
	// Another file of procfs may be mounted over it. Before Linux 5.8 that is not seen.
	var stx unix.Statx_t
	err = unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &stx)
	return string(data), err != nil || stx.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0, nil
}

// kernelID is the id of the file system inside the kernel that holds the memory files of
// all processes, whichever namespaces they are in. The kernel draws it at random when it
// starts. It is empty where the kernel is too old to have one (before 5.13), and where
// a sandbox does not allow to ask.
func kernelID() string {
	fd, err := unix.MemfdCreate("filelock", unix.MFD_CLOEXEC)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil || st.Fsid.Val[0] == 0 || st.Fsid.Val[1] == 0 {
		return "" // or a device number, which says nothing
	}
	return fmt.Sprintf("%08x%08x", uint32(st.Fsid.Val[0]), uint32(st.Fsid.Val[1]))
}

// unshifted refuses a process whose boot clock is not that of others. The file is
// missing where the kernel has no time namespaces.
func unshifted(offsets string) error {
	text, genuine, err := readProc(offsets)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%w: filelock: cannot read %s, which says whether the boot clock is shifted here: %v; let the process read it", backend.ErrPermanent, offsets, err)
	case !genuine:
		return fmt.Errorf("%w: filelock: something is mounted over %s, so that it can't be seen whether the boot clock is shifted here; unmount it", backend.ErrPermanent, offsets)
	case shiftedBoottime(text):
		return fmt.Errorf("%w: filelock: this process is in a time namespace that shifts the boot clock, so it would disagree with others about when a lease ends; run it outside",
			backend.ErrPermanent)
	}
	return nil
}

// shiftedBoottime reads lines such as "boottime 1728000 0" (time_namespaces(7)).
func shiftedBoottime(offsets string) bool {
	for line := range strings.Lines(offsets) {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] == boottimeEntry && (f[1] != "0" || f[2] != "0") {
			return true
		}
	}
	return false
}

// sharedTypes are the f_type values of statfs(2) of file systems that several
// machines can mount at a time.
var sharedTypes = map[uint32]string{
	unix.NFS_SUPER_MAGIC:   "NFS",
	unix.SMB_SUPER_MAGIC:   "SMB",
	unix.SMB2_SUPER_MAGIC:  "SMB",
	unix.CIFS_SUPER_MAGIC:  "CIFS",
	unix.NCP_SUPER_MAGIC:   "NCP",
	unix.AFS_SUPER_MAGIC:   "AFS",
	unix.AFS_FS_MAGIC:      "AFS",
	unix.CODA_SUPER_MAGIC:  "Coda",
	unix.CEPH_SUPER_MAGIC:  "Ceph",
	unix.V9FS_MAGIC:        "9P",
	unix.OCFS2_SUPER_MAGIC: "OCFS2",
	0x01161970:             "GFS2",
	0x0bd00bd0:             "Lustre",
	0x19830326:             "BeeGFS",
	0x20030528:             "OrangeFS",
	0x47504653:             "GPFS",
	0x786f4256:             "VirtualBox shared folder",
	0xbacbacbc:             "VMware shared folder",
}

// localFUSE are the FUSE file systems that are known to be local. Any other may
// be sshfs, GlusterFS, an object store or a folder of the host of a virtual
// machine.
var localFUSE = map[string]bool{
	"fuseblk":             true, // on a block device, such as NTFS
	"fuse.fuse-overlayfs": true, // the root of a container without privileges
}

// localFileSystem refuses directories that other machines may share.
func localFileSystem(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return failed("looking at the file system of the lock directory", &os.PathError{Op: "statfs", Path: dir, Err: err})
	}
	kind := uint32(st.Type)
	if name, ok := sharedTypes[kind]; ok {
		return refuseNetwork(dir, name)
	}
	if kind != unix.FUSE_SUPER_MAGIC {
		return nil
	}
	name, err := mountType(dir)
	if err != nil {
		return failed("looking at the file system of the lock directory", err)
	}
	if !localFUSE[name] {
		return refuseNetwork(dir, name)
	}
	return nil
}

// mountType is the file system type that /proc/self/mountinfo has for the device
// of the directory.
func mountType(dir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	device := fmt.Sprintf("%d:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)))
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if name, ok := typeOfMount(lines.Text(), device); ok {
			return name, nil
		}
	}
	return "FUSE", errors.Join(lines.Err())
}

// typeOfMount reads a line of mountinfo (proc(5)): the device is the third field,
// the type the first after a lone hyphen.
func typeOfMount(line, device string) (string, bool) {
	before, after, ok := strings.Cut(line, " - ")
	fields, rest := strings.Fields(before), strings.Fields(after)
	if !ok || len(fields) < 3 || fields[2] != device || len(rest) == 0 {
		return "", false
	}
	return rest[0], true
}

// knowsWaiters: the system has locks of bytes that belong to an open file description.
const knowsWaiters = true

const noFollow = unix.O_NOFOLLOW | unix.O_NONBLOCK

func lockOf(kind int16, at int64) *unix.Flock_t {
	return &unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: at, Len: 1}
}

func shareByte(f *os.File, at int64) error {
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, lockOf(unix.F_RDLCK, at))
}

func freeByte(f *os.File, at int64) error {
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, lockOf(unix.F_UNLCK, at))
}

// sharedByOthers is how many of n bytes others have locked, or -1 when that can't be known.
func sharedByOthers(f *os.File, at, n int64) int {
	if n <= 0 {
		return 0
	}
	l := lockOf(unix.F_WRLCK, at)
	l.Len = n
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, l); err != nil {
		return -1
	}
	if l.Type == unix.F_UNLCK {
		return 0
	}
	// It is any of them, and may reach beyond.
	from, to := max(l.Start, at), min(l.Start+l.Len, at+n)
	before, behind := sharedByOthers(f, at, from-at), sharedByOthers(f, to, at+n-to)
	if before < 0 || behind < 0 {
		return -1
	}
	return before + int(to-from) + behind
}

// isLinked reports whether the file still has a name.
func isLinked(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Nlink > 0
}

// syncData writes the content to disk, and of the metadata only what is needed to
// read it.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}
