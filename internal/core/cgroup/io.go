// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"errors"
	"path/filepath"
	"strconv"
	"strings"
)

// IO is the name of the I/O controller for [Plan] and [Group.Has]. In the kernel it is io on v2 and blkio on v1.
const IO = "io"

// blkio is the v1 hierarchy of [IO].
const blkio = "blkio"

// IOMax limits the use of one disk. A limit of 0 is not set.
type IOMax struct {
	// Disk is the "major:minor" of a whole disk: the kernel does not accept a partition.
	Disk string `json:"disk"`

	ReadBPS   int64 `json:"read_bps,omitempty"` // bytes per second
	WriteBPS  int64 `json:"write_bps,omitempty"`
	ReadIOPS  int64 `json:"read_iops,omitempty"` // operations per second
	WriteIOPS int64 `json:"write_iops,omitempty"`
}

// Optional returns the optional controllers that the limits need, for [Plan].
func (l Limits) Optional() []string {
	if l.IOWeight == 0 && len(l.IOMax) == 0 {
		return nil
	}
	return []string{IO}
}

// limitIO writes IOWeight and IOMax.
func (g Group) limitIO(l Limits) error {
	if !g.Has(IO) {
		return nil
	}
	if l.IOWeight != 0 {
		if err := g.setIOWeight(l.IOWeight); err != nil {
			return err
		}
	}
	for _, m := range l.IOMax {
		if err := g.setIOMax(m); err != nil {
			return err
		}
	}
	return nil
}

// setIOWeight writes the weight for io.cost and the weight for the BFQ scheduler. A kernel may have only one of the two
// files; if both are missing, setIOWeight returns an error.
func (g Group) setIOWeight(weight uint64) error {
	files := map[string]uint64{"io.weight": weight, "io.bfq.weight": bfqWeight(weight)}
	dir := g.Path
	if g.Mode == V1 {
		files = map[string]uint64{"blkio.bfq.weight": bfqWeight(weight)}
		dir = g.V1[blkio]
	}

	written := false
	for file, value := range files {
		err := writeFile(filepath.Join(dir, file), strconv.FormatUint(value, 10))
		if IsMissing(err) {
			continue
		}
		if err != nil {
			return err
		}
		written = true
	}
	if !written {
		return errors.New("the kernel does not support I/O weights: they need the BFQ scheduler, or io.cost with cgroup v2")
	}
	return nil
}

// bfqWeight converts a weight of 1 to 10000 to BFQ's range of 1 to 1000, as systemd does. Both ranges have the default
// 100.
func bfqWeight(weight uint64) uint64 {
	if weight <= 100 {
		return weight
	}
	return 100 + (weight-100)*(1000-100)/(10000-100)
}

func (g Group) setIOMax(m IOMax) error {
	line := m.Disk
	for _, row := range []struct {
		fileV1, keyV2 string
		value         int64
	}{
		{"blkio.throttle.read_bps_device", "rbps", m.ReadBPS},
		{"blkio.throttle.write_bps_device", "wbps", m.WriteBPS},
		{"blkio.throttle.read_iops_device", "riops", m.ReadIOPS},
		{"blkio.throttle.write_iops_device", "wiops", m.WriteIOPS},
	} {
		if row.value == 0 {
			continue
		}
		value := strconv.FormatInt(row.value, 10)
		if g.Mode == V2 {
			line += " " + row.keyV2 + "=" + value
			continue
		}
		if err := writeFile(filepath.Join(g.V1[blkio], row.fileV1), m.Disk+" "+value); err != nil {
			return err
		}
	}
	if g.Mode == V1 || !strings.Contains(line, "=") {
		return nil
	}
	return writeFile(filepath.Join(g.Path, "io.max"), line)
}
