// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package image finds or makes the lab's container image: Debian with the programs that tasks and people expect in it.
// Nomad and the plugins are not part of it; they are copied into each container.
package image

import (
	"archive/tar"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"github.com/outrider-dev/outrider/lab/internal/cache"
)

//go:embed Dockerfile
var dockerfile string

const (
	// Name is the image that Build makes, once for a machine.
	Name = "outrider-lab:bookworm"

	// File is where it comes from.
	File = "lab/image/Dockerfile"

	upstream = "debian:bookworm-slim"
	stage    = "lab"
)

// Ensure returns an image that exists. An empty ref is Name, which is built if it is not there; any other is pulled.
// progress is called with the state of long steps, and may be nil.
func Ensure(ctx context.Context, ref string, progress func(format string, args ...any)) (image string, err error) {
	err = withMaker(ctx, progress, func(m maker) error {
		image, err = m.ensure(ref)
		return err
	})
	return image, err
}

// Build builds Name by the Dockerfile, or of Debian's packages if no registry answers, even if there is one. It
// returns what it was made from.
func Build(ctx context.Context, progress func(format string, args ...any)) (origin string, err error) {
	err = withMaker(ctx, progress, func(m maker) error {
		origin, err = m.build()
		return err
	})
	return origin, err
}

// Exists reports whether there is an image that Build made.
func Exists(ctx context.Context) bool {
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return false
	}
	defer docker.Close()
	return has(ctx, docker, Name)
}

// Remove removes the image that Build made, and not the one that it was made from.
func Remove(ctx context.Context) error {
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return fmt.Errorf("failed to reach Docker: %w", err)
	}
	defer docker.Close()
	if _, err := docker.ImageRemove(ctx, Name, client.ImageRemoveOptions{}); err != nil {
		return fmt.Errorf("failed to remove image %s: %w", Name, err)
	}
	return nil
}

// maker holds the ways to get an image, for tests to replace.
type maker struct {
	has       func(ref string) bool
	pull      func(ref string) error
	extend    func() error // the Dockerfile's stage to Name
	bootstrap func() error // packages alone to Name
	progress  func(format string, args ...any)
}

func withMaker(ctx context.Context, progress func(string, ...any), do func(maker) error) error {
	if progress == nil {
		progress = func(string, ...any) {}
	}
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return fmt.Errorf("failed to reach Docker: %w", err)
	}
	defer docker.Close()
	dir, err := cache.Dir()
	if err != nil {
		return err
	}
	// two labs must not make the same image at once
	unlock, err := cache.Lock(ctx, filepath.Join(dir, "image.lock"), func() {
		progress("waiting for another process that makes the lab's image")
	})
	if err != nil {
		return err
	}
	defer unlock()
	return do(maker{
		has:  func(ref string) bool { return has(ctx, docker, ref) },
		pull: func(ref string) error { return pull(ctx, docker, ref) },
		extend: func() error {
			return replace(ctx, docker, func() error { return extend(ctx, docker, Name, client.ImageBuildOptions{}) })
		},
		bootstrap: func() error { return replace(ctx, docker, func() error { return bootstrap(ctx, docker) }) },
		progress:  progress,
	})
}

func (m maker) ensure(ref string) (string, error) {
	switch {
	case ref != "" && !m.has(ref):
		m.progress("pulling %s", ref)
		if err := m.pull(ref); err != nil {
			return "", fmt.Errorf("failed to pull the image %s: %w", ref, err)
		}
		return ref, nil
	case ref != "":
		return ref, nil
	case m.has(Name):
		return Name, nil
	}
	if _, err := m.build(); err != nil {
		return "", fmt.Errorf("failed to get a container image (lab:up -image=REF takes one that has the packages of %s): %w",
			File, err)
	}
	return Name, nil
}

func (m maker) build() (origin string, err error) {
	var pullErr error
	if !m.has(upstream) {
		m.progress("pulling %s", upstream)
		pullErr = m.pull(upstream)
	}
	if pullErr == nil {
		m.progress("building %s by %s", Name, File)
		return File + " and " + upstream, m.extend()
	}
	m.progress("making %s from Debian packages, about a minute, since no registry answers (%v)", Name, pullErr)
	if err := m.bootstrap(); err != nil {
		return "", errors.Join(pullErr, err)
	}
	return "Debian packages, since no registry answers", nil
}

func has(ctx context.Context, docker *testcontainers.DockerClient, ref string) bool {
	_, err := docker.ImageInspect(ctx, ref)
	return err == nil
}

// replace makes Name, and removes the image that had the name before, unless it has another or a container uses it.
func replace(ctx context.Context, docker *testcontainers.DockerClient, build func() error) error {
	old, missing := docker.ImageInspect(ctx, Name)
	if err := build(); err != nil || missing != nil {
		return err
	}
	if left, err := docker.ImageInspect(ctx, old.ID); err == nil && len(left.RepoTags) == 0 {
		_, _ = docker.ImageRemove(ctx, old.ID, client.ImageRemoveOptions{})
	}
	return nil
}

// pull waits 15 s for the first answer of a registry, and then without a limit.
func pull(ctx context.Context, docker *testcontainers.DockerClient, ref string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	patience := time.AfterFunc(15*time.Second, cancel)
	resp, err := docker.ImagePull(ctx, ref, client.ImagePullOptions{})
	if err != nil {
		return err
	}
	defer resp.Close()
	patience.Stop()
	return messages(resp)
}

// extend builds the Dockerfile's stage.
func extend(ctx context.Context, docker *testcontainers.DockerClient, tag string, o client.ImageBuildOptions) error {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err := errors.Join(
		w.WriteHeader(&tar.Header{Name: "Dockerfile", Mode: 0o644, Size: int64(len(dockerfile))}),
		func() error { _, err := io.WriteString(w, dockerfile); return err }(),
		w.Close(),
	)
	if err != nil {
		return err
	}
	o.Tags, o.Target, o.Remove, o.ForceRemove = []string{tag}, stage, true, true
	resp, err := docker.ImageBuild(ctx, &archive, o)
	if err == nil {
		defer resp.Body.Close()
		err = messages(resp.Body)
	}
	if err != nil {
		return fmt.Errorf("failed to build by %s: %w", File, err)
	}
	return nil
}

var installed = regexp.MustCompile(
	`AS ` + stage + `\nRUN [^&]*&& apt-get install -y --no-install-recommends([^&]*)&&`)

// packages are those that the Dockerfile installs in the lab's stage.
func packages() []string {
	m := installed.FindStringSubmatch(dockerfile)
	if m == nil {
		return nil
	}
	return strings.Fields(strings.ReplaceAll(m[1], "\\\n", " "))
}

// bootstrap makes Name from Debian's packages. It needs root and mmdebstrap.
func bootstrap(ctx context.Context, docker *testcontainers.DockerClient) error {
	if os.Geteuid() != 0 {
		return errors.New("making one from Debian packages takes root")
	}
	tool, err := exec.LookPath("mmdebstrap")
	if err != nil {
		return fmt.Errorf("making one from Debian packages takes mmdebstrap (apt-get install mmdebstrap): %w", err)
	}
	include := "--include=" + strings.Join(packages(), ",")
	// with apt, as in Debian's own image
	cmd := exec.CommandContext(ctx, tool, "--quiet", "--variant=apt", include, "bookworm", "-")
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	archive, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	source := client.ImageImportSource{Source: archive, SourceName: "-"}
	resp, err := docker.ImageImport(ctx, source, Name, client.ImageImportOptions{
		Changes: []string{"ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	})
	if err == nil {
		err = messages(resp)
		resp.Close()
	}
	if werr := cmd.Wait(); werr != nil {
		// Docker has imported a part, which must not look like an image
		_, rerr := docker.ImageRemove(ctx, Name, client.ImageRemoveOptions{Force: true})
		return errors.Join(err, fmt.Errorf("mmdebstrap: %w\n%s", werr, errOut.String()), rerr)
	}
	return err
}

// messages reads the daemon's stream to its end, and returns the error that is in it.
func messages(r io.Reader) error {
	for d := json.NewDecoder(r); ; {
		var m struct{ Error string }
		switch err := d.Decode(&m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("failed to read what Docker says: %w", err)
		case m.Error != "":
			return errors.New(m.Error)
		}
	}
}
