// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// pullEvery is the time between two sentences about a pull.
const pullEvery = 10 * time.Second

// ensureImage pulls the image as the spec asks for.
func (e *Endpoint) ensureImage(ctx context.Context, c *endpoint.Container, progress func(string)) error {
	if c.Pull != "always" {
		asked, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		_, err := e.api.ImageInspect(asked, c.Image)
		if err == nil {
			return nil
		}
		if !cerrdefs.IsNotFound(err) {
			return failed("look for image "+c.Image, err)
		}
		if c.Pull == "never" {
			return fmt.Errorf("image %q is not on the engine, and pull = \"never\"", c.Image)
		}
	}
	start, told := time.Now(), time.Now()
	progress(fmt.Sprintf("Pulling image %s", c.Image))
	r, err := e.api.ImagePull(ctx, c.Image, client.ImagePullOptions{})
	if err != nil {
		// others are about the image: it is not there, not for us, or named wrongly
		passes := cerrdefs.IsInternal(err) || cerrdefs.IsUnavailable(err) || cerrdefs.IsResourceExhausted(err)
		return pullFailed(c.Image, err, passes)
	}
	defer r.Close()
	type layer struct{ done, total int64 }
	layers := map[string]layer{}
	for m, err := range r.JSONMessages(ctx) {
		if err == nil && m.Error != nil {
			err = m.Error
		}
		if err != nil {
			return pullFailed(c.Image, err, true) // Podman tells any error so, without its kind
		}
		if m.Progress != nil && m.Status == "Downloading" {
			layers[m.ID] = layer{m.Progress.Current, m.Progress.Total}
		}
		if time.Since(told) >= pullEvery {
			told = time.Now()
			var done, total int64
			for _, l := range layers {
				done, total = done+l.done, total+l.total
			}
			progress(fmt.Sprintf("Pulling image %s: %d of %d MiB", c.Image, done>>20, total>>20))
		}
	}
	progress(fmt.Sprintf("Pulled image %s in %v", c.Image, time.Since(start).Round(100*time.Millisecond)))
	return nil
}

func pullFailed(image string, err error, passes bool) error {
	if err = failed(fmt.Sprintf("pull image %q", image), err); passes {
		return temporary{err}
	}
	return err
}

// temporary is ErrTemporary with the text of its cause.
type temporary struct{ error }

func (t temporary) Is(target error) bool { return target == endpoint.ErrTemporary }
func (t temporary) Unwrap() error        { return t.error }
