// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package image finds or makes the lab's container image: Debian with the programs that tasks and people expect in it.
// Nomad and the plugins are not part of it; they are copied into each container.
package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"github.com/outrider-dev/outrider/lab/internal/cache"
)

//go:embed Dockerfile
var files embed.FS

const (
	// Name is the image that Build makes, once for a machine.
	Name = "outrider-lab:bookworm"

	// File is where it comes from.
	File = "lab/image/Dockerfile"

	stage = "lab"
)

// Ensure returns an image that exists. An empty ref is Name, which is built if it is not there; any other is pulled.
// progress is called with the state of long steps, and may be nil.
func Ensure(ctx context.Context, ref string, progress func(format string, args ...any)) (string, error) {
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return "", fmt.Errorf("failed to reach Docker: %w", err)
	}
	defer docker.Close()
	if progress == nil {
		progress = func(string, ...any) {}
	}
	image := cmp.Or(ref, Name)
	if has(ctx, docker, image) {
		return image, nil
	}
	if ref != "" {
		progress("pulling %s", ref)
		if err := pull(ctx, docker, ref); err != nil {
			return "", fmt.Errorf("failed to pull the image %s: %w", ref, err)
		}
		return ref, nil
	}
	if err := Build(ctx, progress); err != nil {
		return "", fmt.Errorf("failed to get a container image (lab:up -image=REF takes one that has the packages of %s): %w",
			File, err)
	}
	return Name, nil
}

// Build builds Name by the Dockerfile, even if there is one, and removes the image that had the name before, unless it
// has another or a container uses it.
func Build(ctx context.Context, progress func(format string, args ...any)) error {
	docker, err := testcontainers.NewDockerProvider()
	if err != nil {
		return fmt.Errorf("failed to reach Docker: %w", err)
	}
	defer docker.Close()
	dir, err := cache.Dir()
	if err != nil {
		return err
	}
	// two labs must not make the same image at once; the second finds its parts in Docker's cache
	unlock, err := cache.Lock(ctx, filepath.Join(dir, "image.lock"), func() {
		progress("waiting for another process that makes the lab's image")
	})
	if err != nil {
		return err
	}
	defer unlock()

	progress("building %s by %s", Name, File)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := errors.Join(w.AddFS(files), w.Close()); err != nil {
		return err
	}
	old, missing := docker.Client().ImageInspect(ctx, Name)
	repo, tag, _ := strings.Cut(Name, ":")
	_, err = docker.BuildImage(ctx, &testcontainers.ContainerRequest{FromDockerfile: testcontainers.FromDockerfile{
		ContextArchive: bytes.NewReader(archive.Bytes()), Repo: repo, Tag: tag, KeepImage: true,
		BuildOptionsModifier: func(o *client.ImageBuildOptions) { o.Target = stage },
	}})
	if err != nil {
		return fmt.Errorf("failed to build by %s: %w", File, err)
	}
	if missing != nil {
		return nil
	}
	if left, err := docker.Client().ImageInspect(ctx, old.ID); err == nil && len(left.RepoTags) == 0 {
		_, _ = docker.Client().ImageRemove(ctx, old.ID, client.ImageRemoveOptions{})
	}
	return nil
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

func has(ctx context.Context, docker client.APIClient, ref string) bool {
	_, err := docker.ImageInspect(ctx, ref)
	return err == nil
}

func pull(ctx context.Context, docker client.APIClient, ref string) error {
	answer, err := docker.ImagePull(ctx, ref, client.ImagePullOptions{})
	if err != nil {
		return err
	}
	return answer.Wait(ctx)
}
