// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/internal/poll"
	"github.com/outrider-dev/outrider/lab/internal/remotehost"
)

// The ways to run a task elsewhere.
const (
	remote  = "remote"
	sshWarm = "raw_exec, ssh"      // over a connection that is there (ControlMaster)
	sshCold = "raw_exec, cold ssh" // with a connection of its own, as without any setting
)

const box = "box" // name of the endpoint

// The parts of the comparison.
const (
	partStart  = "remote-start"
	partMemory = "remote-memory"
	partLogs   = "remote-logs"
	partNode   = "remote-node"
	partDocker = "remote-docker"
)

var remoteParts = []string{partStart, partMemory, partLogs, partNode, partDocker}

// remoteBench compares remote with a program that raw_exec runs to the same end.
type remoteBench struct {
	*bench
	results   // of its own table
	elsewhere // what is compared
	wanted    func(part string) bool
	dir       string
	binary    string
	host      remotehost.Host
	known     string   // file with the host's key
	ssh       []string // the program with its options
}

// elsewhere is how a program is run on the host or in its engine.
type elsewhere struct {
	block  string                             // endpoint block of the plugin's configuration
	config func(argv []string) map[string]any // config of a task of remote
	byHand func(argv []string) []string       // command line for raw_exec
	after  func(context.Context) error        // ends what a stopped job of raw_exec has left behind
}

func (b *bench) measureRemote(ctx context.Context) (err error) {
	r := &remoteBench{bench: b, dir: filepath.Join(b.dir, "remote"), results: results{left: remote, right: sshWarm}}
	b.remotes = append(b.remotes, &r.results)
	if err := b.step(func() error { return r.prepare(ctx) }, "Building %s, and making a host", remote); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.end()) }()
	r.elsewhere = r.onHost(r.ssh)
	r.wanted = func(part string) bool { return b.wants(remote, part) }
	if err := r.compare(ctx); err != nil {
		return err
	}
	if r.wanted(partNode) && b.remoteDrains > 0 {
		if err := b.step(func() error { return r.handOver(ctx) }, "Nodes are drained, and one is lost"); err != nil {
			return err
		}
	}
	if r.wanted(partDocker) {
		return r.measureDocker(ctx)
	}
	return nil
}

// compare measures starts, memory and output.
func (b *remoteBench) compare(ctx context.Context) error {
	if b.wanted(partStart) {
		err := b.step(func() error { return b.starts(ctx) }, "%d starts of %s and of %s", b.remoteStarts, b.left, b.right)
		if err != nil {
			return err
		}
	}
	if b.wanted(partMemory) || b.wanted(partLogs) {
		return b.jobs(ctx)
	}
	return nil
}

// onHost is how ssh runs a program.
func (b *remoteBench) onHost(ssh []string) elsewhere {
	return elsewhere{
		block: b.host.Block,
		config: func(argv []string) map[string]any {
			return map[string]any{"endpoint": box, "command": argv[0], "args": argv[1:]}
		},
		byHand: func(argv []string) []string {
			all := append(slices.Clone(ssh), b.host.Option("user")+"@"+b.host.Option("host"))
			for _, arg := range argv {
				all = append(all, "'"+arg+"'") // for the shell there
			}
			return all
		},
		after: func(context.Context) error { return nil },
	}
}

// prepare starts the host, and a connection of ssh to it.
func (b *remoteBench) prepare(ctx context.Context) error {
	root, err := build.Root(".")
	if err != nil {
		return err
	}
	paths, err := build.Builder{Root: root}.All(ctx, remote)
	if err != nil {
		return err
	}
	b.binary = paths[0]
	program, err := exec.LookPath("ssh")
	if err != nil {
		return fmt.Errorf("the other side of the comparison is ssh (Debian: openssh-client): %w", err)
	}
	// the host's user reaches what is timed in here
	if err := errors.Join(os.Chmod(b.bench.dir, 0o711), os.Mkdir(b.dir, 0o755)); err != nil {
		return err
	}
	if b.host, err = remotehost.Start(ctx, b.binary, filepath.Join(b.dir, "host"), box); err != nil {
		return fmt.Errorf("failed to make a host: %w", err)
	}
	b.known = filepath.Join(b.dir, "known_hosts")
	line := fmt.Sprintf("[%s]:%s %s\n", b.host.Option("host"), b.host.Option("port"), b.host.Option("host_keys"))
	if err := os.WriteFile(b.known, []byte(line), 0o644); err != nil {
		return err
	}
	b.ssh = []string{program, "-F", "none", "-i", b.host.Option("key_file"), "-p", b.host.Option("port"),
		"-o", "UserKnownHostsFile=" + b.known, "-o", "BatchMode=yes", "-o", "LogLevel=ERROR",
		"-o", "ControlPath=" + filepath.Join(b.dir, "%r")}
	return b.connect(ctx, b.host.Option("user"))
}

// connect makes the connection that ssh has from then on, until the host ends.
func (b *remoteBench) connect(ctx context.Context, user string) error {
	args := append(b.ssh[1:len(b.ssh):len(b.ssh)], "-M", "-N", "-f", user+"@"+b.host.Option("host"))
	if out, err := exec.CommandContext(ctx, b.ssh[0], args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ssh does not connect: %w: %s", err, out)
	}
	return nil
}

// end ends the host, and with it all that runs there and each connection.
func (b *remoteBench) end() error {
	if b.host.Process.PID == 0 {
		return nil
	}
	if err := unix.Kill(b.host.Process.PID, unix.SIGTERM); err != nil {
		return err
	}
	return wait(context.Background(), 20*time.Millisecond, func() (bool, error) { return !b.host.Process.Alive(), nil })
}

// loaded is the plugin's configuration as Nomad's agent reads it from a file. Its api.address is empty, so that the
// plugin does not ask Nomad why a task is stopped.
func (e elsewhere) loaded() (all map[string]any, err error) {
	err = hcl.Decode(&all, "api {\n  address = \"\"\n}\n"+e.block)
	return all, err
}

// starts compares the time until the first instruction on the host, and sees whether many starts
// leave anything in memory or open.
func (b *remoteBench) starts(ctx context.Context) error {
	s, err := newStarter(filepath.Join(b.dir, "start"))
	if err != nil {
		return err
	}
	defer s.times.Close()
	probe := filepath.Join(s.dir, "probe")
	if err := writeProbe(probe); err != nil {
		return err
	}
	options, err := b.loaded()
	if err != nil {
		return err
	}
	driver, err := openPlugin(ctx, b.binary, options)
	if err != nil {
		return err
	}
	defer driver.close()
	raw, err := openRaw(ctx)
	if err != nil {
		return err
	}
	defer raw.close()
	argv := []string{probe, s.fifo}
	byHand := func(e elsewhere) program {
		all := e.byHand(argv)
		return program{config: map[string]any{"command": all[0], "args": all[1:]}}
	}
	start := s.by(ctx, driver, program{config: b.config(argv)})
	ways := []way{{b.left, start}, {b.right, s.by(ctx, raw, byHand(b.elsewhere))}}
	host := b.right == sshWarm // and not an engine there
	if host && b.manyStarts > 0 {
		cold := b.onHost(append(slices.Clone(b.ssh[:len(b.ssh)-1]), "ControlPath=none"))
		ways = append(ways, way{sshCold, s.by(ctx, raw, byHand(cold))})
	}
	times, err := takeTurns(ctx, b.remoteStarts, ways)
	if err != nil {
		return err
	}
	for _, side := range []string{b.left, b.right} {
		for i, took := range times.first[side] {
			b.add(side, float64(took), quantity{"StartTask to first instruction on the host, median", millis, 1, nil},
				quantity{"– 99th percentile", millis, 0, percentile99})
			b.add(side, float64(times.call[side][i]), quantity{"– StartTask itself, median", millis, 0, nil})
		}
	}
	if b.manyStarts == 0 {
		return nil
	}
	if host {
		b.note("With a connection of its own for each start, as ssh has without ControlMaster: median %s; %d starts each.",
			ms(median(times.first[sshCold])), b.remoteStarts)
	}
	return b.flat(ctx, start, host)
}

// flat starts a task again and again. It fails if the plugin grows, or what runs for it on the host (for an engine
// nothing of ours does).
func (b *remoteBench) flat(ctx context.Context, start func() (first, call time.Duration, err error), host bool) error {
	var former footprints
	early := b.manyStarts / 5
	for i := range b.manyStarts {
		if i == early {
			var err error
			if former, err = b.footprints(ctx); err != nil {
				return err
			}
		}
		if _, _, err := start(); err != nil {
			return fmt.Errorf("start %d: %w", i, err)
		}
	}
	now, err := b.footprints(ctx)
	if err != nil {
		return err
	}
	b.note("After %d starts: %s. After %d: %s.", early+b.remoteStarts, former, b.manyStarts+b.remoteStarts, now)
	if !host {
		former.host, now.host = former.plugin, former.plugin
	}
	return now.grownFrom(former)
}

// footprints are what the plugin, and what runs for it on the host, have in memory and open.
type footprints struct{ plugin, host footprint }

type footprint struct{ processes, rss, descriptors int } // rss in kB

// slackRSS is how much more memory is no leak, in kB. The plugin retains the exits of the last 1,000 tasks that were
// destroyed, of 3.7 kB each: 3 MB for the 800 starts between the two points. The rest is garbage: before it collects,
// Go lets a heap of some MB grow to twice its size. sshhost's TestEngine_StaysFlat... compares the live heap.
const slackRSS = 8 << 10

// grownFrom is an error if there is more than there was.
func (f footprints) grownFrom(former footprints) (err error) {
	for name, pair := range map[string][2]footprint{"plugin": {former.plugin, f.plugin}, "host": {former.host, f.host}} {
		was, is := pair[0], pair[1]
		if was.processes == 0 || is.processes > was.processes || is.descriptors > was.descriptors ||
			is.rss > was.rss+slackRSS {
			err = errors.Join(err, fmt.Errorf("starts leave something behind: %s: %s, and then %s", name, was, is))
		}
	}
	return err
}

func (f footprints) String() string { return fmt.Sprintf("plugin: %s; host: %s", f.plugin, f.host) }

func (f footprint) String() string {
	return fmt.Sprintf("%d processes, %d kB, %d descriptors", f.processes, f.rss, f.descriptors)
}

func (f *footprint) add(st task.Stat) {
	files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", st.PID)) // or it has just ended
	f.processes++
	f.rss += int(st.RSS) * os.Getpagesize() / 1024
	f.descriptors += len(files)
}

func (b *remoteBench) footprints(ctx context.Context) (f footprints, err error) {
	if err := poll.Sleep(ctx, settle); err != nil {
		return f, err
	}
	all, err := task.Processes()
	if err != nil {
		return f, err
	}
	onHost := map[int]bool{b.host.Process.PID: true}
	for _, st := range task.Descendants(all, b.host.Process.PID) {
		onHost[st.PID] = true
		switch name := filepath.Base(command(st.PID)); {
		case strings.HasPrefix(name, "outrider-shim"), strings.HasPrefix(name, "outrider-supervisor"):
			f.host.add(st)
		}
	}
	for _, st := range task.Descendants(all, os.Getpid()) {
		if command(st.PID) == b.binary && !onHost[st.PID] {
			f.plugin.add(st)
		}
	}
	return f, nil
}

// command is the first word of a process's command line.
func command(pid int) string {
	args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	name, _, _ := strings.Cut(string(args), "\x00")
	return name
}

// remoteCluster is a cluster whose jobs run elsewhere.
type remoteCluster struct {
	*cluster
	of *remoteBench
}

// on is a job of one of the sides.
func (c *remoteCluster) on(side string, count int, argv ...string) *api.Job {
	if side != remote {
		return c.job(raw, count, c.of.byHand(argv))
	}
	job := c.job(remote, count, argv)
	job.TaskGroups[0].Tasks[0].Config = c.of.config(argv)
	return job
}

// plugin is the plugin as an agent has it.
func (b *remoteBench) plugin() agent.Plugin {
	const api = "api {\n  address = \"http://127.0.0.1:${http_port}\"\n}\n"
	return agent.Plugin{Binary: b.binary, Config: api + b.block}
}

// jobs compares memory and the throughput of logs, in jobs of an agent.
func (b *remoteBench) jobs(ctx context.Context) (err error) {
	started, err := b.startAgent(ctx, filepath.Join(b.dir, "agent"), "", b.plugin())
	if err != nil {
		return err
	}
	c := &remoteCluster{started, b}
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	sides := []string{b.left, b.right}
	if b.wanted(partMemory) {
		for _, side := range sides {
			err := b.step(func() error { return c.memory(ctx, side) }, "%s: jobs of 1 and %d tasks", side, b.remoteTasks)
			if err != nil {
				return err
			}
		}
	}
	if b.wanted(partLogs) {
		for _, side := range slices.Repeat(sides, b.remoteRounds) {
			err := b.step(func() error { return c.logs(ctx, side) }, "%s: %d MB of output", side, b.remoteMB)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *remoteCluster) memory(ctx context.Context, side string) error {
	var u [2]usage
	for i, count := range []int{1, c.remoteTasks} {
		job := c.on(side, count, c.sleeper()...)
		took, err := c.start(ctx, job)
		if err != nil {
			return err
		}
		if i == 1 {
			c.of.add(side, float64(took), quantity{fmt.Sprintf("job of %d tasks, until all run", count), millis, 0, nil})
		}
		if u[i], _, err = c.read(ctx, job.TaskGroups[0].Tasks[0].Driver); err != nil {
			return err
		}
		if err := errors.Join(c.stop(ctx, job), c.of.after(ctx)); err != nil {
			return err
		}
	}
	c.of.add(side, float64(u[1][pss]-u[0][pss])/float64(c.remoteTasks-1),
		quantity{"memory a task on the node (PSS)", kB, 20, nil})
	return nil
}

// logs measures how fast a task's output gets into the files of its allocation.
func (c *remoteCluster) logs(ctx context.Context, side string) error {
	line := strings.Repeat("0123456789", 10)
	n := int64(c.remoteMB) << 20 / int64(len(line)+1)
	total := n * int64(len(line)+1) // whole lines: Docker holds back the beginning of a line until its end
	script := fmt.Sprintf("sleep 2; yes %s | head -n %d; exec sleep %s", line, n, c.marker)
	job := c.on(side, 1, "/bin/sh", "-c", script)
	t := job.TaskGroups[0].Tasks[0]
	t.LogConfig = &api.LogConfig{MaxFiles: new(2), MaxFileSizeMB: new(2 * c.remoteMB)}
	job.TaskGroups[0].EphemeralDisk = &api.EphemeralDisk{SizeMB: new(5 * c.remoteMB)}
	if side == remote {
		t.SetConfig("logs", []map[string]any{{"max_files": 2, "max_file_size": 2 * c.remoteMB}})
	}
	if _, _, err := c.agent.Client().Jobs().Register(job, nil); err != nil {
		return fmt.Errorf("failed to submit job %s: %w", *job.ID, err)
	}
	a, err := c.next(ctx, job, "")
	if err != nil {
		return err
	}
	files := filepath.Join(c.agent.DataDir(), "alloc", a.ID, "alloc", "logs", "task.stdout.*")
	var begin time.Time
	err = wait(ctx, 10*time.Millisecond, func() (bool, error) { // seldom: both cores are busy
		size, err := logged(files)
		if size > 0 && begin.IsZero() {
			begin = time.Now()
		}
		return size >= total, err
	})
	if err != nil {
		return fmt.Errorf("the output of job %s is not all there: %w", *job.ID, err)
	}
	c.of.add(side, float64(time.Since(begin)),
		quantity{fmt.Sprintf("%d MB of output, until in the allocation's files", c.remoteMB), millis, 0.8, nil})
	return errors.Join(c.stop(ctx, job), c.of.after(ctx))
}

// logged is the size of the files.
func logged(pattern string) (size int64, err error) {
	files, err := filepath.Glob(pattern)
	for _, file := range files {
		info, serr := os.Stat(file)
		if serr != nil {
			return 0, serr
		}
		size += info.Size()
	}
	return size, err
}
