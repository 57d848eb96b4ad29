// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/client/taskenv"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// payload is what a start sends to an endpoint.
type payload struct {
	spec  *endpoint.Spec // without anything of this node
	hash  string         // of it and of local/
	files string         // the digest of local/
	dirs  taskDirs
}

// newPayload returns what a task sends, from its configuration as the job has it. agent is the agent's environment.
func newPayload(ctx context.Context, want *Task, c *drivers.TaskConfig, agent []string) (*payload, error) {
	p := &payload{dirs: taskDirs{AllocDir: c.AllocDir, Task: c.Name}, spec: localize(want.Spec, c)}
	p.spec.Env, p.spec.VolatileEnv = environment(p.spec, want.Address, agent)
	var err error
	if p.files, err = p.dirs.digest(ctx); err != nil {
		return nil, err
	}
	p.hash, err = hashOf(p.spec, p.files, c)
	return p, err
}

// hashOf returns two hashes with a hyphen between them: that of the program and the files together, whose beginning
// is part of an object's name, and that of the program alone. They are the same for every allocation and node that
// runs the same.
func hashOf(s *endpoint.Spec, files string, c *drivers.TaskConfig) (string, error) {
	stable := *s
	stable.Env, stable.VolatileEnv = maps.Clone(s.Env), nil
	for _, name := range s.VolatileEnv {
		delete(stable.Env, name)
	}
	b, err := json.Marshal(stable)
	if err != nil {
		return "", fmt.Errorf("failed to encode specification: %w", err)
	}
	text := string(b)
	for id, word := range map[string]string{c.AllocID: "${alloc}", c.NodeID: "${node}"} {
		if len(id) == uuidLength { // interpolated in arguments or the environment
			text = strings.ReplaceAll(text, id, word)
		}
	}
	program := sha256.Sum256([]byte(text))
	both := sha256.Sum256([]byte(text + files))
	return hex.EncodeToString(both[:16]) + "-" + hex.EncodeToString(program[:16]), nil
}

// programOf is the part of a hash without the files.
func programOf(hash string) string {
	_, program, _ := strings.Cut(hash, "-")
	return program
}

const uuidLength = 36

// localize returns a specification in which the Dir words stand for the allocation's directories.
func localize(s *endpoint.Spec, c *drivers.TaskConfig) *endpoint.Spec {
	dirs := nodeDirs(c)
	l := *s
	l.Env = map[string]string{}
	for name, value := range s.Env {
		l.Env[name] = dirs.replace(value)
	}
	if s.Process != nil {
		p := *s.Process
		p.Command, p.Args, p.WorkDir = dirs.replace(p.Command), dirs.all(p.Args), dirs.replace(p.WorkDir)
		l.Process = &p
	}
	if s.Container != nil {
		p := *s.Container
		p.Entrypoint, p.Command, p.WorkDir = dirs.all(p.Entrypoint), dirs.all(p.Command), dirs.replace(p.WorkDir)
		p.Mounts = slices.Clone(p.Mounts)
		for i := range p.Mounts {
			p.Mounts[i].Source, p.Mounts[i].Target = dirs.replace(p.Mounts[i].Source), dirs.replace(p.Mounts[i].Target)
		}
		l.Container = &p
	}
	return &l
}

// dirWords are pairs of a directory on this node and the word for it, a directory before those above it.
type dirWords [][2]string

// nodeDirs are those of the allocation.
func nodeDirs(c *drivers.TaskConfig) dirWords {
	task := path.Join(c.AllocDir, c.Name)
	return dirWords{
		{path.Join(task, "local"), endpoint.DirLocal},
		{path.Join(task, "secrets"), endpoint.DirSecrets},
		{path.Join(task, "alloc"), endpoint.DirAlloc},
		{task, endpoint.DirTask},
		{path.Join(c.AllocDir, "alloc"), endpoint.DirAlloc},
	}
}

func (d dirWords) all(list []string) []string {
	list = slices.Clone(list)
	for i := range list {
		list[i] = d.replace(list[i])
	}
	return list
}

// replace replaces the directories in a text, such as --config=/alloc/web/local/c.yml. A path that is
// part of a longer one, before or behind, is another one.
func (d dirWords) replace(text string) string {
	for _, dir := range d {
		var b strings.Builder
		rest := text
		for {
			before, after, found := strings.Cut(rest, dir[0])
			b.WriteString(before)
			if !found {
				break
			}
			done := text[:len(text)-len(after)-len(dir[0])]
			if begins(done) && !continues(after) {
				b.WriteString(dir[1])
			} else {
				b.WriteString(dir[0])
			}
			rest = after
		}
		text = b.String()
	}
	return text
}

// begins reports whether an absolute path may begin behind this text: not in another path, but behind the
// letters of an option, as in -I/usr/include.
func begins(before string) bool {
	word := strings.TrimRightFunc(before, isNameRune)
	return word == before || before[len(word)] == '-' && !strings.HasSuffix(word, "/")
}

func continues(after string) bool { return strings.IndexFunc(after, isNameRune) == 0 }

func isNameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-~+@%", r) ||
		r > 127
}

// nodeOnly are variables of Nomad's that have no meaning on an endpoint: limits and sockets of the node.
var nodeOnly = []string{
	taskenv.CpuLimit, taskenv.CpuCores, taskenv.MemLimit, taskenv.MemMaxLimit, taskenv.CgroupParent, taskenv.UnixAddr,
}

// volatile are names and prefixes of variables that differ between allocations or nodes.
var volatile = regexp.MustCompile(`^(NOMAD_(ALLOC_ID|SHORT_ALLOC_ID|DC|TOKEN(_.*)?)|VAULT_TOKEN|CONSUL_(HTTP_)?TOKEN|` +
	`NOMAD_(ADDR|IP|PORT|ALLOC_(ADDR|IP|PORT|INTERFACE)|(HOST|UPSTREAM)_(ADDR|IP|PORT))_.*)$`)

// environment returns the variables of a task on its endpoint, and the names of those that may differ between
// nodes. Nomad adds the agent's own variables for drivers without images: a variable with the agent's value is
// removed, even if the job set it to that value, which can't be told. So any variable that the agent has, too,
// may differ. Those about ports are set for the endpoint, whose ports are reached at address.
func environment(s *endpoint.Spec, address string, agent []string) (env map[string]string, differ []string) {
	env = maps.Clone(s.Env)
	agents := map[string]bool{}
	for _, variable := range agent {
		name, value, _ := strings.Cut(variable, "=")
		if s.Env[name] == value {
			delete(env, name)
		}
		agents[name] = true
	}
	for _, name := range nodeOnly {
		delete(env, name)
	}
	if s.Resources.Memory > 0 {
		env[taskenv.MemLimit] = strconv.FormatInt(s.Resources.Memory>>20, 10)
	}
	set := func(prefix, label, value string) {
		name := prefix + badInName.ReplaceAllString(label, "_")
		if env[name] = value; value == "" {
			delete(env, name)
		}
	}
	for label, port := range s.Ports {
		host := strconv.Itoa(port) // by which it is reached
		if s.Container != nil {
			host = ""
			if p := s.Container.Publish[label]; p > 0 {
				host = strconv.Itoa(p)
			}
		}
		where := ""
		if host != "" && address != "" {
			where = net.JoinHostPort(address, host)
		}
		set(taskenv.PortPrefix, label, strconv.Itoa(port))
		set(taskenv.AllocPortPrefix, label, strconv.Itoa(port))
		set(taskenv.HostPortPrefix, label, host)
		for _, prefix := range []string{taskenv.IpPrefix, taskenv.HostIpPrefix} {
			set(prefix, label, address)
		}
		for _, prefix := range []string{taskenv.AddrPrefix, taskenv.HostAddrPrefix} {
			set(prefix, label, where)
		}
	}
	for name := range env {
		if agents[name] || volatile.MatchString(name) {
			differ = append(differ, name)
		}
	}
	slices.Sort(differ)
	return env, differ
}

// badInName is what Nomad replaces in the name of a variable.
var badInName = regexp.MustCompile(`[^A-Za-z0-9_]`)
