// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

func TestStart_GivesTheContainerWhatTheSpecHas(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		ctx, c, r, dir := t.Context(), e.connect(t), object(t, e), t.TempDir()
		must.NoError(t, os.WriteFile(filepath.Join(dir, "host"), []byte("from the host\n"), 0o644))
		s := shell("id -u; pwd; cat /mnt/host; touch /mnt/x; echo $TOKEN; while :; do sleep 0.05; done")
		s.User, s.Env["TOKEN"] = "1234:1234", "hush"
		s.Ports = map[string]int{"http": 8080, "admin": 8081}
		s.Resources = endpoint.Resources{CPU: 0.5, Memory: 64 << 20, Pids: 50}
		s.Container.WorkDir = endpoint.DirLocal
		s.Container.Mounts = []endpoint.ContainerMount{{Type: "bind", Source: dir, Target: "/mnt", ReadOnly: true}}
		l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free, most likely
		must.NoError(t, err)
		port := l.Addr().(*net.TCPAddr).Port
		must.NoError(t, l.Close())
		s.Container.Publish = map[string]int{"admin": port, "http": 0}
		got := start(t, c, r, s)
		must.Eq(t, port, got.Ports["admin"])
		must.Positive(t, got.Ports["http"])
		must.NotEq(t, port, got.Ports["http"])

		in, err := e.api.ContainerInspect(ctx, r.Name, client.ContainerInspectOptions{})
		must.NoError(t, err)
		host := in.Container.HostConfig
		must.Eq(t, 64<<20, host.Memory)
		must.Eq(t, 50, *host.PidsLimit)
		must.True(t, host.NanoCPUs == 5e8 || host.CPUQuota*2 == host.CPUPeriod)
		must.False(t, host.AutoRemove)
		must.False(t, host.RestartPolicy.IsAlways() || host.RestartPolicy.IsOnFailure())
		must.Eq(t, r.Name, in.Container.Config.Labels["dev.outrider.object"])

		// what others see of a container is no secret
		for _, container := range []string{r.Name, r.Name + ".e1"} {
			in, err := e.api.ContainerInspect(ctx, container, client.ContainerInspectOptions{})
			must.NoError(t, err)
			labels, err := json.Marshal(in.Container.Config.Labels)
			must.NoError(t, err)
			must.False(t, bytes.Contains(labels, []byte("hush")))
		}
		_, err = c.Stop(ctx, got.Ref(), "SIGKILL", 0, "stopped")
		must.NoError(t, err)
		must.Eq(t, "1234\n/local\nfrom the host\nhush\n", output(t, c, r.Name, "stdout", endpoint.Place{}, 0))
		must.StrContains(t, output(t, c, r.Name, "stderr", endpoint.Place{}, 0), "Read-only")
		must.NoError(t, c.Remove(ctx, got.Ref()))
	})
}

func TestStart_TellsWhatIsWrong(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		for want, change := range map[string]func(s *endpoint.Spec){
			`image "localhost/none" is not on the engine`: func(s *endpoint.Spec) {
				s.Container.Image, s.Container.Pull = "localhost/none", "never"
			},
			`failed to pull image "127.0.0.1:1/none"`: func(s *endpoint.Spec) { s.Container.Image = "127.0.0.1:1/none" },
			`invalid reference`:                       func(s *endpoint.Spec) { s.Container.Image = "No Image" },
			`bind source path does not exist`: func(s *endpoint.Spec) {
				s.Container.Mounts = []endpoint.ContainerMount{{Type: "bind", Source: t.TempDir() + "/no", Target: "/x"}}
			},
			`nobody-here`: func(s *endpoint.Spec) { s.User = "nobody-here" },
			`no-network`:  func(s *endpoint.Spec) { s.Container.Network = "no-network" },
		} {
			t.Run(want, func(t *testing.T) {
				if e.name == "podman" && strings.HasPrefix(want, "bind") {
					return // it makes the directory
				}
				ctx, c, r := t.Context(), e.connect(t), object(t, e)
				s, ref := shell("true"), endpoint.Ref{Name: r.Name, Epoch: 1}
				change(s)
				must.NoError(t, c.Create(ctx, r))
				err := c.Prepare(ctx, ref, s, func(string) {})
				if err == nil {
					_, err = c.Start(ctx, ref, s)
				}
				must.Error(t, err)
				must.StrContains(t, err.Error(), want)
				must.False(t, strings.Contains(err.Error(), "\n"))
				must.False(t, unreachable(err), must.Sprint(err))
				got, err := c.Get(ctx, r.Name)
				must.NoError(t, err)
				must.Eq(t, endpoint.Starting, got.State, must.Sprint(fmt.Sprintf("%+v", got)))
				must.NoError(t, c.Remove(ctx, ref))
			})
		}
	})
}
