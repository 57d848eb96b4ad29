// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestLimits_CPUHardLimitIsTheTasksShareOfTheNode(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t, nil)
	if a.share == "" {
		t.Skip("tasks get no cgroup here")
	}
	script := strings.ReplaceAll(`
while IFS=: read -r _ names path; do
  case ",$names," in
  *,cpu,*) cat CPU$path/cpu.cfs_quota_us ;;
  ,,) cat ROOT$path/cpu.max 2>/dev/null ;;
  esac
done </proc/self/cgroup`, "CPU", a.cgroup.Mounts["cpu"])
	script = strings.ReplaceAll(script, "ROOT", a.cgroup.Root)
	quarter := func(c *drivers.TaskConfig) { c.Resources.LinuxResources.PercentTicks = 0.25 }
	for options, want := range map[string]string{
		"cpu_hard_limit = true": strconv.Itoa(runtime.NumCPU() * 25_000), "": "-1",
	} {
		out, _ := a.result(a.shell(script, options, quarter))
		quota := strings.Replace(strings.Fields(out)[0], "max", "-1", 1)
		test.Eq(t, want, quota, test.Sprintf("%q: %s", options, out))
	}
}

// aDisk returns the path of a disk of this machine, and its "major:minor".
func aDisk(t *testing.T) (path, number string) {
	t.Helper()
	disks, _ := filepath.Glob("/sys/block/*")
	for _, disk := range disks {
		path = "/dev/" + filepath.Base(disk)
		b, err := os.ReadFile(filepath.Join(disk, "dev"))
		_, missing := os.Stat(path)
		if err == nil && missing == nil {
			return path, strings.TrimSpace(string(b))
		}
	}
	t.Skip("needs a disk in /dev")
	return "", ""
}

func TestLimits_IOMaxAppliesToTheDisk(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t, nil)
	group := cgroup.Plan(a.cgroup, filepath.Join(a.share, "x.scope"), "x", "web", cgroup.IO)
	if a.share == "" || !group.Has(cgroup.IO) {
		t.Skip("tasks get no cgroup for I/O here")
	}
	disk, number := aDisk(t)
	script := strings.NewReplacer("BLKIO", a.cgroup.Mounts["blkio"], "ROOT", a.cgroup.Root).Replace(`
while IFS=: read -r _ names path; do
  case ",$names," in
  *,blkio,*) cat BLKIO$path/blkio.throttle.read_bps_device BLKIO$path/blkio.throttle.write_iops_device ;;
  ,,) cat ROOT$path/io.max 2>/dev/null ;;
  esac
done </proc/self/cgroup`)
	want := number + " 1048576\n" + number + " 20\n"
	if a.cgroup.Mode == cgroup.V2 {
		want = number + " rbps=1048576 wbps=max riops=max wiops=20\n"
	}
	cfg := a.shell(script, fmt.Sprintf("io_max {\ndevice = %q\nrbps = \"1MiB\"\nwiops = 20\n}", disk))
	out, _ := a.result(cfg)
	test.Eq(t, want, out)
	left, _ := filepath.Glob(filepath.Join(a.cgroup.Mounts["blkio"], "*", cfg.AllocID+"*"))
	test.SliceEmpty(t, left, test.Sprint("left behind"))
}

func TestLimits_IOMaxRefusesPathsThatAreNotDisks(t *testing.T) {
	disk, number := aDisk(t)
	link := filepath.Join("/dev/shm", fmt.Sprintf("outrider-%d", os.Getpid()))
	must.NoError(t, os.Symlink(disk, link))
	defer os.Remove(link)
	block := func(device string) IOMax { return IOMax{Device: device, RIOPS: 1} }
	for name, row := range map[string]struct {
		blocks  []IOMax
		refused string
	}{
		"a disk":                      {[]IOMax{block(disk)}, ""},
		"another path of the disk":    {[]IOMax{block("/dev/../dev/./" + filepath.Base(disk))}, ""},
		"twice":                       {[]IOMax{block(disk), block(disk + "/")}, "are the same disk"},
		"no limit":                    {[]IOMax{{Device: disk}}, "has no limit"},
		"not in /dev":                 {[]IOMax{block("/tmp/x")}, "not a path below /dev"},
		"relative":                    {[]IOMax{block("dev/x")}, "not a path below /dev"},
		"out of /dev":                 {[]IOMax{block("/dev/../etc/passwd")}, "not a path below /dev"},
		"/dev":                        {[]IOMax{block("/dev/")}, "not a path below /dev"},
		"missing":                     {[]IOMax{block("/dev/no-such-disk")}, "no such file"},
		"a character device":          {[]IOMax{block("/dev/null")}, "not a block device"},
		"a directory":                 {[]IOMax{block("/dev/pts")}, "cross-device link"},
		"a link that a task has made": {[]IOMax{block(link)}, "cross-device link"},
		"a link to an absolute path":  {[]IOMax{block("/dev/fd/0")}, "cross-device link"},
		"a file that a task has made": {[]IOMax{block(link + "/x")}, "cross-device link"},
		"a path below a disk":         {[]IOMax{block(disk + "/x")}, "not a directory"},
		"empty":                       {[]IOMax{block("")}, "not a path below /dev"},
	} {
		var l cgroup.Limits
		err := limitIO(&l, TaskOptions{IOWeight: defaultIOWeight, IOMax: row.blocks})
		if row.refused != "" {
			test.ErrorContains(t, err, row.refused, test.Sprint(name))
			continue
		}
		must.NoError(t, err, must.Sprint(name))
		test.Eq(t, cgroup.Limits{IOMax: []cgroup.IOMax{{Disk: number, ReadIOPS: 1}}}, l, test.Sprint(name))
	}
}

func TestLimits_IOMaxRefusesAPartition(t *testing.T) {
	testsupport.NeedRoot(t)
	dir, err := os.MkdirTemp("/dev", "outrider-test-")
	must.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must.NoError(t, unix.Mknod(dir+"/disk1", unix.S_IFBLK|0o600, int(unix.Mkdev(259, 7))))
	_, err = diskOf(dir + "/disk1")
	must.NoError(t, err)

	real := blockDevices
	t.Cleanup(func() { blockDevices = real })
	blockDevices = t.TempDir()
	must.NoError(t, os.MkdirAll(filepath.Join(blockDevices, "259:7", "partition"), 0o755))
	_, err = diskOf(dir + "/disk1")
	test.ErrorContains(t, err, "is a partition")
}

func TestLimits_OfTheJobAreEnforcedOrRefused(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t, nil)
	if a.share == "" {
		t.Skip("tasks get no cgroup here")
	}
	for _, options := range []string{"pids_limit = 50", "cpu_hard_limit = true"} {
		cfg := a.shell("exit 0", options)
		lost := filepath.Join(filepath.Dir(filepath.Dir(a.share)), "outrider-lost", filepath.Base(a.share))
		if a.cgroup.Mode == cgroup.V2 {
			lost = filepath.Join(a.share, "lost.scope")
		}
		cfg.Resources.LinuxResources.CpusetCgroupPath = lost // as if Nomad failed to make it
		_, _, err := a.StartTask(cfg)
		test.ErrorContains(t, err, "cgroup is unavailable", test.Sprint(options))
		a.destroy(cfg.ID)
	}
}
