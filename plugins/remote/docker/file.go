// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// file is what the owner of a claim has written for it. It is the label of an empty volume: each time a new one, and
// then the one before is removed. An engine makes a volume with its labels at once, and tells when, by its own
// clock: that is the heartbeat. (A real file in the claim can be written, too, but Docker and Podman start a
// process for each access, which is ten times as expensive.) The names have the id of the claim in them,
// so that no other is ever named so.
type file struct {
	Claim string `json:"claim"` // its id
	Seq   uint64 `json:"seq"`   // 0: nothing was written yet
	endpoint.Mutable
	Ran     bool   `json:"ran,omitempty"`     // the program was started: without its container it is lost
	Stopped bool   `json:"stopped,omitempty"` // before it was started
	Reason  string `json:"reason,omitempty"`  // of a stop

	at time.Time // when it was written, by the engine
}

// filesOf is how the names of the files of a claim begin.
func filesOf(c *claim) string { return fmt.Sprintf("%s.%.16s.", c.name(), c.id) }

func (f *file) name(c *claim) string { return filesOf(c) + fmt.Sprint(f.Seq) }

// write writes the file of a claim.
func (e *Endpoint) write(ctx context.Context, c *claim, f file) error {
	before := f
	for f.Claim = c.id; ; {
		f.Seq++
		text, err := json.Marshal(f)
		if err != nil {
			return err
		}
		r, err := e.api.VolumeCreate(ctx, client.VolumeCreateOptions{Name: f.name(c), Labels: map[string]string{
			labelPlugin: labelValue, labelObject: c.Name, labelFile: string(text),
		}})
		if err != nil {
			return failed("write what the owner of "+c.Name+" knows", err)
		}
		if r.Volume.Labels[labelFile] == string(text) {
			break
		} // another process of this owner's has written that one
	}
	f.at = e.clock.now()
	e.change(c, func(o *owned) { o.file = f })
	if before.Claim == c.id {
		return e.removeVolume(ctx, before.name(c))
	}
	return nil
}

func (e *Endpoint) removeVolume(ctx context.Context, name string) error {
	_, err := e.api.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return failed("remove a volume", err)
}

// volumes are the files of an object, or of all.
func (e *Endpoint) volumes(ctx context.Context, label string) ([]volume.Volume, error) {
	r, err := e.api.VolumeList(ctx, client.VolumeListOptions{Filters: client.Filters{}.Add("label", label)})
	return r.Items, failed("list volumes", err)
}

// read reads the file of a claim, but for one that this process has written: nobody else does.
func (e *Endpoint) read(ctx context.Context, v *view, c *claim) (file, error) {
	if o := e.mine(c); o != nil && o.file.Seq > 0 {
		return o.file, nil
	}
	if v.files == nil {
		all, err := e.volumes(ctx, labelObject+"="+c.Name)
		if err != nil {
			return file{}, err
		}
		v.files = map[string]file{}
		for _, s := range all {
			var f file
			if json.Unmarshal([]byte(s.Labels[labelFile]), &f) == nil && f.Seq > v.files[f.Claim].Seq {
				f.at = stamp(s.CreatedAt)
				v.files[f.Claim] = f
			}
		}
	}
	return v.files[c.id], nil
}

// dropFiles removes the files of an object but for those of one claim.
func (e *Endpoint) dropFiles(ctx context.Context, name string, keep *claim) error {
	all, err := e.volumes(ctx, labelObject+"="+name)
	for _, s := range all {
		if keep == nil || !strings.HasPrefix(s.Name, filesOf(keep)) {
			err = errors.Join(err, e.removeVolume(ctx, s.Name))
		}
	}
	return err
}
