package filelock

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

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
