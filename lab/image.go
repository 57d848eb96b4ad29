// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/image"
)

// UseImage makes the lab a container from an image that has what lab/image's has; Nomad and the plugins are copied into
// the container. An empty ref changes nothing.
func (l *Lab) UseImage(ref string) error {
	switch {
	case ref == "":
		return nil
	case l.runtime == agent.Host:
		return errors.New("an image is for a lab in a container, and this one is to run on the host: " +
			"leave out -image, or give -runtime=container")
	}
	l.ref, l.runtime = ref, agent.Container
	return nil
}

// BuildImage builds lab/image's image, even if there is one.
func (l *Lab) BuildImage(ctx context.Context) error {
	if err := l.docker(ctx); err != nil {
		return err
	}
	end := l.step(ctx, "Building the image")
	err := image.Build(ctx, l.steps.Progress)
	end(err, "%s, from %s", image.Name, image.File)
	if err != nil {
		return err
	}
	l.say("The next lab in a container has it:\n")
	l.hint("lab:down lab:up")
	return nil
}
