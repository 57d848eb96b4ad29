package agent

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// mounts returns the mount points at and below dir, the last mounted first.
func mounts(dir string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("failed to read the mounts: %w", err)
	}
	return mountsBelow(string(b), dir), nil
}

// mountsBelow reads mountinfo text, proc_pid_mountinfo(5): field 5 is the mount
// point, with \040 for a space and the like.
func mountsBelow(mountinfo, dir string) []string {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var found []string
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		if point := unescape.Replace(f[4]); point == dir || strings.HasPrefix(point, dir+"/") {
			found = append([]string{point}, found...)
		}
	}
	return found
}

// unmountBelow detaches every mount at and below dir: Nomad's secrets and private
// directories of tasks are tmpfs.
func unmountBelow(dir string) error {
	points, err := mounts(dir)
	if err != nil {
		return err
	}
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("failed to unmount %s: %w", p, err)
		}
	}
	return nil
}
