// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// The directories of a task in its container. They are in its writable layer, which goes with it: what is put into a
// container that was not started yet is not seen in a tmpfs there (Docker).
var words = strings.NewReplacer(
	endpoint.DirTask+"/", "/", endpoint.DirTask, "/",
	endpoint.DirLocal, "/local", endpoint.DirSecrets, "/secrets", endpoint.DirAlloc, "/alloc",
)

// CheckMount returns an error where what is put into a container would be put into a mount, and so change the host.
func CheckMount(target string) error {
	switch path.Clean(words.Replace(target)) {
	case "/", "/local", "/secrets", "/alloc", "/alloc/data":
		return fmt.Errorf("target %q holds a directory that the task's files are copied to (/local, /secrets, /alloc/data): "+
			"mount it elsewhere", target)
	}
	return nil
}

func replaced(all []string) []string {
	out := slices.Clone(all)
	for i, s := range out {
		out[i] = words.Replace(s)
	}
	return out
}

// createBox creates the container of the program. What the engine warns of is told, such as limits that it drops.
func (e *Endpoint) createBox(ctx context.Context, c *claim, s *endpoint.Spec, progress func(string)) error {
	o, err := e.options(c, s)
	if err != nil {
		return err
	}
	r, err := e.api.ContainerCreate(ctx, *o)
	for _, w := range r.Warnings {
		progress("Warning: " + w)
	}
	return taken(err)
}

// options are those of the container of the program. Environment and arguments are no labels: whoever may list
// containers sees these.
func (e *Endpoint) options(c *claim, s *endpoint.Spec) (*client.ContainerCreateOptions, error) {
	under, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	ports, err := json.Marshal(s.Ports)
	if err != nil {
		return nil, err
	}
	config := &container.Config{
		Image: s.Container.Image, Entrypoint: replaced(s.Container.Entrypoint), Cmd: replaced(s.Container.Command),
		WorkingDir: words.Replace(s.Container.WorkDir), User: s.User,
		Labels: map[string]string{
			labelPlugin: labelValue, labelObject: c.Name, labelTask: c.Key.String(),
			labelBox: string(under), labelPorts: string(ports),
		},
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		config.Env = append(config.Env, name+"="+words.Replace(s.Env[name]))
	}
	host := &container.HostConfig{
		NetworkMode:   container.NetworkMode(s.Container.Network),
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		LogConfig:     e.logConfig(s),
		Resources: container.Resources{
			NanoCPUs: int64(s.Resources.CPU * 1e9), Memory: s.Resources.Memory, MemorySwap: s.Resources.Memory,
		},
	}
	if s.Resources.Pids > 0 {
		host.PidsLimit = &s.Resources.Pids
	}
	for _, m := range s.Container.Mounts {
		if err := CheckMount(m.Target); err != nil {
			return nil, fmt.Errorf("mount: %w", err)
		}
		host.Mounts = append(host.Mounts, mount.Mount{
			Type: mount.Type(m.Type), Source: m.Source, Target: words.Replace(m.Target), ReadOnly: m.ReadOnly,
		})
	}
	if mode := host.NetworkMode; !mode.IsHost() && !mode.IsNone() && !mode.IsContainer() {
		config.ExposedPorts, host.PortBindings = network.PortSet{}, network.PortMap{}
		for label, port := range s.Ports {
			p, err := network.ParsePort(fmt.Sprintf("%d/tcp", port))
			if err != nil {
				return nil, fmt.Errorf("port %q: %w", label, err)
			}
			bound := "" // the engine picks one
			if n := s.Container.Publish[label]; n > 0 {
				bound = strconv.Itoa(n)
			}
			config.ExposedPorts[p] = struct{}{}
			host.PortBindings[p] = []network.PortBinding{{HostIP: netip.IPv4Unspecified(), HostPort: bound}}
		}
	}
	return &client.ContainerCreateOptions{Name: c.Name, Config: config, HostConfig: host}, nil
}

// logConfig asks for a log that can be read, whatever the engine's default is. Podman takes it for its own k8s-file.
func (e *Endpoint) logConfig(s *endpoint.Spec) container.LogConfig {
	c := container.LogConfig{Type: "json-file", Config: map[string]string{}}
	files, size := s.MaxFiles, s.MaxSize
	if e.clock.podman.Load() {
		files, size = 1, size*int64(max(1, files)) // it has one, and empties it when it is full
	}
	if size > 0 {
		c.Config["max-size"] = strconv.FormatInt(size, 10)
		if files > 1 {
			c.Config["max-file"] = strconv.Itoa(files)
		}
	}
	return c
}
