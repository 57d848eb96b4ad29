// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package image finds or makes the lab's container image: Debian with the programs that tasks and people expect in it.
// Nomad and the plugins are not part of it; they are copied into each container.
package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

const (
	// Name is the image that Ensure makes, once for a machine.
	Name = "outrider-lab:bookworm"

	upstream = "debian:bookworm-slim"
	packages = "bash ca-certificates iproute2 mount procps python3 python3-venv"
)

// Ensure returns an image that exists: LAB_BASE_IMAGE if it is set, otherwise Name, which is made from Debian's image,
// or from Debian's packages if no registry answers. progress is called with the state of long steps, and may be nil.
func Ensure(ctx context.Context, progress func(format string, args ...any)) (string, error) {
	if progress == nil {
		progress = func(string, ...any) {}
	}
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return "", fmt.Errorf("failed to reach Docker: %w", err)
	}
	defer docker.Close()
	m := maker{
		has:       func(ref string) bool { return has(ctx, docker, ref) },
		pull:      func(ref string) error { return pull(ctx, docker, ref) },
		extend:    func() error { return extend(ctx, docker) },
		bootstrap: func() error { return bootstrap(ctx, docker) },
		progress:  progress,
	}
	return m.ensure(os.Getenv("LAB_BASE_IMAGE"))
}

// Exists reports whether there is an image that Ensure made.
func Exists(ctx context.Context) bool {
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return false
	}
	defer docker.Close()
	return has(ctx, docker, Name)
}

// Remove removes the image that Ensure made, and not the one that it was made from.
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
	extend    func() error // upstream and packages to Name
	bootstrap func() error // packages alone to Name
	progress  func(format string, args ...any)
}

func (m maker) ensure(base string) (string, error) {
	if base != "" {
		if m.has(base) {
			return base, nil
		}
		m.progress("pulling %s", base)
		if err := m.pull(base); err != nil {
			return "", fmt.Errorf("failed to pull LAB_BASE_IMAGE %s: %w", base, err)
		}
		return base, nil
	}
	if m.has(Name) {
		return Name, nil
	}
	var pullErr error
	if !m.has(upstream) {
		m.progress("pulling %s", upstream)
		pullErr = m.pull(upstream)
	}
	if pullErr == nil {
		m.progress("adding packages to %s", upstream)
		if err := m.extend(); err != nil {
			m.progress("no packages added (%v); %s has to do", err, upstream)
			return upstream, nil
		}
		return Name, nil
	}
	m.progress("no image (%v); making one from Debian packages, about half a minute", pullErr)
	if err := m.bootstrap(); err != nil {
		return "", fmt.Errorf("failed to get a container image (set LAB_BASE_IMAGE to one with Debian in it): %w",
			errors.Join(pullErr, err))
	}
	return Name, nil
}

func has(ctx context.Context, docker *testcontainers.DockerClient, ref string) bool {
	_, err := docker.ImageInspect(ctx, ref)
	return err == nil
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

// extend builds Name from upstream.
func extend(ctx context.Context, docker *testcontainers.DockerClient) error {
	dockerfile := "FROM " + upstream + "\nRUN apt-get update && apt-get install -y --no-install-recommends " + packages +
		" && rm -rf /var/lib/apt/lists/*\n"
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
	o := client.ImageBuildOptions{Tags: []string{Name}, Remove: true, ForceRemove: true}
	resp, err := docker.ImageBuild(ctx, &archive, o)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return messages(resp.Body)
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
	include := "--include=" + strings.ReplaceAll(packages, " ", ",")
	cmd := exec.CommandContext(ctx, tool, "--quiet", "--variant=essential", include, "bookworm", "-")
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
