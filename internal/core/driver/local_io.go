// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
)

// blockDevices has a directory for each block device (sysfs(5)).
var blockDevices = "/sys/dev/block"

// defaultIOWeight is the kernel's default.
const defaultIOWeight = 100

// limitIO adds the options io_weight and io_max to the limits of a task.
func limitIO(l *cgroup.Limits, o TaskOptions) error {
	if o.IOWeight != defaultIOWeight {
		l.IOWeight = uint64(max(0, o.IOWeight))
	}
	seen := map[string]string{}
	for _, m := range o.IOMax {
		disk, err := diskOf(m.Device)
		if err != nil {
			return err
		}
		if other, twice := seen[disk]; twice {
			return fmt.Errorf("io_max: devices %q and %q are the same disk: use one block", other, m.Device)
		}
		seen[disk] = m.Device

		limit := cgroup.IOMax{Disk: disk, ReadBPS: m.RBPS.Bytes(), WriteBPS: m.WBPS.Bytes(),
			ReadIOPS: m.RIOPS, WriteIOPS: m.WIOPS}
		if limit == (cgroup.IOMax{Disk: disk}) {
			return fmt.Errorf("io_max: device %q has no limit: set rbps, wbps, riops or wiops", m.Device)
		}
		l.IOMax = append(l.IOMax, limit)
	}
	return nil
}

// diskOf returns the "major:minor" of a disk. The job's author has chosen the path, so diskOf follows it only within
// the file system of /dev: a task can create nothing there (/dev/shm is another file system), and access never hangs.
func diskOf(path string) (string, error) {
	name, below := strings.CutPrefix(filepath.Clean(path), "/dev/")
	if !below {
		return "", fmt.Errorf("io_max: device %q is not a path below /dev: use for example \"/dev/sda\"", path)
	}
	dev, err := unix.Open("/dev", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("io_max: failed to open /dev: %w", err)
	}
	defer unix.Close(dev)

	const within = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS
	fd, err := unix.Openat2(dev, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: within})
	if err != nil {
		return "", fmt.Errorf("io_max: failed to find device %q in /dev: %w", path, err)
	}
	defer unix.Close(fd)

	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", fmt.Errorf("io_max: failed to find device %q: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return "", fmt.Errorf("io_max: %q is not a block device", path)
	}
	number := fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	_, err = os.Stat(filepath.Join(blockDevices, number, "partition"))
	if err == nil {
		return "", fmt.Errorf("io_max: device %q is a partition, which the kernel can't limit: use its disk", path)
	}
	return number, nil
}
