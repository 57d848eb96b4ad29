// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/outrider-dev/outrider/lab/agent"
)

const (
	viaCLI = "raw_exec, docker CLI" // over ssh://, over a connection that is there
	image  = "outrider-bench:1"     // has busybox
	label  = "outrider.bench"       // of the CLI's containers
)

// measureDocker compares with the CLI of Docker over ssh://, where a Docker answers on this machine.
func (b *remoteBench) measureDocker(ctx context.Context) (err error) {
	socket, local := strings.CutPrefix(cmp.Or(os.Getenv("DOCKER_HOST"), "unix:///var/run/docker.sock"), "unix://")
	busybox, noBusybox := exec.LookPath("busybox")
	docker, noDocker := exec.LookPath("docker")
	if !local || noBusybox != nil || noDocker != nil || agent.DockerAnswers(ctx) != nil {
		b.note("The CLI of Docker was not compared: no Docker answers on this machine, or busybox is not there.")
		return nil
	}
	d := *b
	d.results = results{left: remote, right: viaCLI}
	d.dir = filepath.Join(b.dir, "engine")
	d.wanted = func(string) bool { return true } // this part is all of it
	d.bench.remotes = append(d.bench.remotes, &d.results)
	if err := os.Mkdir(d.dir, 0o755); err != nil {
		return err
	}
	if err := importImage(ctx, docker, busybox); err != nil {
		return err
	}
	// the CLI runs the first ssh on its PATH
	bin := filepath.Join(b.dir, "bin")
	script := "#!/bin/sh\nexec '" + strings.Join(b.ssh, "' '") + "' \"$@\"\n"
	err = errors.Join(os.Mkdir(bin, 0o755), os.WriteFile(filepath.Join(bin, "ssh"), []byte(script), 0o755))
	if err != nil {
		return err
	}
	host := fmt.Sprintf("ssh://root@%s:%s%s", b.host.Option("host"), b.host.Option("port"), socket)
	command := func(args ...string) []string {
		return append([]string{"/usr/bin/env", "PATH=" + bin + ":/usr/bin:/bin", docker, "-H", host}, args...)
	}
	if err := b.connect(ctx, "root"); err != nil {
		return err
	}
	mount := b.dir + ":" + b.dir
	d.elsewhere = elsewhere{
		block: fmt.Sprintf("endpoint %q {\n  docker {\n    host = %q\n    ssh {\n      key_file  = %q\n"+
			"      host_keys = [%q]\n    }\n  }\n}\n", "engine", host, b.host.Option("key_file"), b.host.Option("host_keys")),
		config: func(argv []string) map[string]any {
			return map[string]any{
				"endpoint": "engine", "image": image, "pull": "never", "entrypoint": argv[:1], "args": argv[1:],
				"mount": []map[string]any{{"source": b.dir, "target": b.dir}},
			}
		},
		byHand: func(argv []string) []string {
			return append(command("run", "--rm", "--pull=never", "--label", label, "-v", mount, "--entrypoint", argv[0], image),
				argv[1:]...)
		},
		after: func(ctx context.Context) error { // a killed CLI leaves its container
			ids, err := exec.CommandContext(ctx, docker, "ps", "-aq", "--filter", "label="+label).Output()
			if err == nil && len(ids) > 0 {
				err = exec.CommandContext(ctx, docker, append([]string{"rm", "-f"}, strings.Fields(string(ids))...)...).Run()
			}
			return err
		},
	}
	defer func() {
		err = errors.Join(err, exec.CommandContext(context.WithoutCancel(ctx), docker, "rmi", "-f", image).Run())
	}()
	return d.compare(ctx)
}

// importImage makes an image of busybox alone.
func importImage(ctx context.Context, docker, busybox string) error {
	program, err := os.ReadFile(busybox)
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	err = w.WriteHeader(&tar.Header{Name: "bin/busybox", Mode: 0o755, Size: int64(len(program))})
	if err == nil {
		_, err = w.Write(program)
	}
	for _, name := range []string{"sh", "sleep", "yes", "head"} {
		link := &tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox"}
		err = errors.Join(err, w.WriteHeader(link))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, docker, "import", "-", image)
	cmd.Stdin = &layer
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("failed to import an image: %w: %s", err, out)
	}
	return nil
}
