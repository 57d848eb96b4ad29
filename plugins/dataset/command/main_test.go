// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/device"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/slot"
	"github.com/outrider-dev/outrider/plugins/dataset/volume"
)

const mib = 1 << 20

// If the variable roleVar is set, the test binary runs as the plugin, and kills itself at the step that killAt names.
const (
	roleVar = "TEST_ROLE"
	killAt  = "TEST_KILL_AT"
)

func TestMain(m *testing.M) {
	if os.Getenv(roleVar) == "" {
		zfsfusetest.Main(m)
	}
	at = func(step string) {
		if step == os.Getenv(killAt) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	device.Main(device.Plugin[slot.Config]{
		Name: "dataset", New: slot.New, Roles: []func() bool{volume.Role}, Commands: All(),
	})
}

// node is a Nomad node with a class.
type node struct {
	t    testing.TB
	id   string
	pool zfsfuse.Pool
	dir  string // has the operator's file, and Nomad's directory of volumes
	env  []string

	process bool // run each command in its own process, which takes longer
}

// cases are tests that share one pool, by name.
type cases map[string]func(*testing.T, *node)

// run runs the cases, each with its own node.
func (all cases) run(t *testing.T) {
	t.Helper()
	pool := zfsfusetest.New(t)
	for name, run := range all {
		t.Run(name, func(t *testing.T) {
			run(t, newNode(t, pool))
		})
	}
}

const options = `allow = ["clone_from", "uid"]
  min_capacity = "16MiB"  default_capacity = "64MiB"  max_capacity = "2GiB"  snapshot_reserve = 400`

// newNode returns a node with a class "fast", whose root is a new dataset of the pool.
func newNode(t testing.TB, pool zfsfuse.Pool) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "node")
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, os.RemoveAll(dir)) })
	must.NoError(t, os.Chmod(dir, 0o711))
	n := &node{t: t, id: uuid.NewString(), pool: pool, dir: dir}
	must.NoError(t, os.Mkdir(filepath.Join(dir, "volumes"), 0o755))
	n.pool.Root += "/" + n.id[:8]
	must.NoError(t, exec.Command(pool.Program, "create", "-o", "mountpoint=none", n.pool.Root).Run())
	n.write(options)
	t.Cleanup(func() { zfsfusetest.UnmountBelow(t, dir) })
	return n
}

// write writes the operator's file. It has one class, "fast", with the options in the parameter class.
func (n *node) write(class string) {
	n.t.Helper()
	text := fmt.Sprintf("zfs = %q\nclass \"fast\" {\n  root = %q\n  %s\n}\n", n.pool.Program, n.pool.Root, class)
	must.NoError(n.t, os.WriteFile(n.file(), []byte(text), 0o644))
}

func (n *node) file() string { return filepath.Join(n.dir, "dataset.hcl") }

func (n *node) engine() *engine.Engine {
	n.t.Helper()
	e := engine.Open(n.pool.Program, n.pool.Root)
	return e
}

// output is the output and exit code of a command.
type output struct {
	stdout, stderr string
	code           int
}

// run runs a command, in its own process if n.process is set or n.env has variables.
func (n *node) run(args ...string) output {
	n.t.Helper()
	args = append(args, "-file", n.file())
	var out, stderr bytes.Buffer
	if n.process || len(n.env) > 0 {
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Env = append(append(os.Environ(), roleVar+"=plugin"), n.env...)
		cmd.Stdout, cmd.Stderr = &out, &stderr
		_ = cmd.Run()
		return output{out.String(), stderr.String(), cmd.ProcessState.ExitCode()}
	}
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == args[0] })
	must.NonNegative(n.t, i)
	err := commands[i].in(n.t.Context(), &session{out: &out, err: &stderr}, args[1:])
	if err != nil {
		fmt.Fprintln(&stderr, err)
		return output{out.String(), stderr.String(), 1}
	}
	return output{out.String(), stderr.String(), 0}
}

// does runs a command that must succeed.
func (n *node) does(args ...string) output {
	n.t.Helper()
	got := n.run(args...)
	must.Zero(n.t, got.code, must.Sprintf("%s: %s", strings.Join(args, " "), got.stderr))
	return got
}

// answers runs a command with -json and decodes its output into value.
func (n *node) answers(value any, args ...string) {
	n.t.Helper()
	must.NoError(n.t, json.Unmarshal([]byte(n.does(append(args, "-json")...).stdout), value))
}

// refuses runs a command that must fail with one line, and change nothing.
func (n *node) refuses(want string, args ...string) {
	n.t.Helper()
	n.unchanged(func() { n.fails(want, args...) })
}

// fails runs a command that must fail with one line.
func (n *node) fails(want string, args ...string) {
	n.t.Helper()
	got := n.run(args...)
	must.One(n.t, got.code, must.Sprint(got.stdout, got.stderr))
	must.StrContains(n.t, got.stderr, want)
	must.EqOp(n.t, 1, strings.Count(got.stderr, "\n"), must.Sprint(got.stderr))
}

// unchanged checks that commands change nothing.
func (n *node) unchanged(commands func()) {
	n.t.Helper()
	before := n.all()
	commands()
	must.Eq(n.t, before, n.all())
}

// all returns the names of all datasets, each with its snapshots.
func (n *node) all() map[string][]string {
	n.t.Helper()
	list, err := n.engine().List(n.t.Context())
	must.NoError(n.t, err)
	all := map[string][]string{}
	for _, d := range list {
		all[d.Name] = []string{}
	}
	text, err := exec.Command(n.pool.Program, "list", "-H", "-r", "-t", "snapshot", "-o", "name", n.pool.Root).Output()
	must.NoError(n.t, err)
	for line := range strings.Lines(string(text)) {
		full, snapshot, _ := strings.Cut(strings.TrimSpace(line), "@")
		name := strings.TrimPrefix(full, n.pool.Root+"/")
		if _, ours := all[name]; ours {
			all[name] = append(all[name], snapshot)
		}
	}
	return all
}

// nomadVolume has the values of a volume that Nomad passes to the plugin.
type nomadVolume struct {
	n                   *node
	id, name, namespace string
	parameters          map[string]string
	path                string
	capacity            int64 // 0: the class's default
}

// create calls the plugin to create a volume.
func (n *node) create(name string, parameters ...string) *nomadVolume {
	n.t.Helper()
	v := &nomadVolume{n: n, id: uuid.NewString(), name: name, namespace: "default",
		parameters: map[string]string{"class": "fast"}}
	for i := 0; i < len(parameters); i += 2 {
		v.parameters[parameters[i]] = parameters[i+1]
	}
	must.NoError(n.t, v.call("create"))
	return v
}

// call calls the plugin with the variables that Nomad sets.
func (v *nomadVolume) call(operation string) error {
	parameters, err := json.Marshal(v.parameters)
	if err != nil {
		return err
	}
	env := map[string]string{
		"DHV_OPERATION": operation, "DHV_VOLUMES_DIR": v.n.dir + "/volumes", "DHV_PLUGIN_DIR": v.n.dir,
		"DHV_NODE_POOL": "default",
		"DHV_NAMESPACE": v.namespace, "DHV_VOLUME_NAME": v.name, "DHV_VOLUME_ID": v.id, "DHV_NODE_ID": v.n.id,
		"DHV_PARAMETERS": string(parameters), "DHV_CAPACITY_MIN_BYTES": fmt.Sprint(v.capacity),
		"DHV_CAPACITY_MAX_BYTES": fmt.Sprint(v.capacity),
	}
	var out, log bytes.Buffer
	code := volume.Answer(func(name string) (string, bool) { value, set := env[name]; return value, set }, &out, &log)
	var answer struct{ Path, Error string }
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		return fmt.Errorf("%w: %q", err, &out)
	}
	if code != 0 {
		return fmt.Errorf("%s: %s", operation, answer.Error)
	}
	v.path = answer.Path
	return nil
}

func (v *nomadVolume) put(name, text string) {
	v.n.t.Helper()
	must.NoError(v.n.t, os.WriteFile(filepath.Join(v.path, name), []byte(text), 0o644))
}

func (v *nomadVolume) has(name, text string) {
	v.n.t.Helper()
	got, err := os.ReadFile(filepath.Join(v.path, name))
	must.NoError(v.n.t, err)
	must.EqOp(v.n.t, text, string(got))
}

// fill writes a file of random bytes.
func (v *nomadVolume) fill(name string, bytes int) {
	v.n.t.Helper()
	content := make([]byte, bytes)
	source := rand.NewChaCha8([32]byte{byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32())})
	_, _ = source.Read(content)
	v.put(name, string(content))
}

// sum returns a checksum of all files with their names, modes and owners.
func (v *nomadVolume) sum() string {
	v.n.t.Helper()
	sum, err := sumOf(v.path)
	must.NoError(v.n.t, err)
	return sum
}

func sumOf(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		fmt.Fprintln(h, name, info.Mode(), info.Sys().(*syscall.Stat_t).Uid)
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			h.Write(content)
		}
		return nil
	})
	return fmt.Sprintf("%x", h.Sum(nil)), err
}

// specification is the input of "nomad volume create".
type specification struct {
	Name       string            `json:"name"`
	Namespace  string            `json:"namespace"`
	Type       string            `json:"type"`
	Plugin     string            `json:"plugin_id"`
	Node       string            `json:"node_id"`
	Min        string            `json:"capacity_min"`
	Max        string            `json:"capacity_max"`
	Capability map[string]string `json:"capability"`
	Parameters map[string]string `json:"parameters"`
}

func read(t testing.TB, text string) (s specification) {
	t.Helper()
	must.NoError(t, json.Unmarshal([]byte(text), &s), must.Sprint(text))
	return s
}

// specified returns the specification that a command must print for a volume of class "fast". The test can't predict
// the node and the key, so they come from printed, the actual output.
func specified(name string, capacity int64, printed specification) specification {
	bytes := fmt.Sprint(capacity)
	return specification{Name: name, Namespace: "default", Type: "host", Plugin: "dataset", Node: printed.Node, Min: bytes,
		Max: bytes, Capability: map[string]string{"access_mode": "single-node-writer", "attachment_mode": "file-system"},
		Parameters: map[string]string{"class": "fast", "adopt": printed.Parameters["adopt"]}}
}

// specified creates a volume from a specification, as Nomad would.
func (n *node) specified(text string) *nomadVolume {
	n.t.Helper()
	s := read(n.t, text)
	must.NotEq(n.t, "", s.Parameters["adopt"])
	return n.create(s.Name, "adopt", s.Parameters["adopt"])
}
