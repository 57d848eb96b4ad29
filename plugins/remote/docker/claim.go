// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// The labels of our containers. Podman filters by a label with its value only.
const (
	labelPlugin = "dev.outrider.plugin" // labelValue, on each
	labelObject = "dev.outrider.object" // its name
	labelTask   = "dev.outrider.task"   // its key, for a person
	labelClaim  = "dev.outrider.claim"  // of a claim: its JSON
	labelFile   = "dev.outrider.file"   // of a volume: JSON of its file
	labelNonce  = "dev.outrider.nonce"  // of a volume: which call has made it
	labelBox    = "dev.outrider.record" // of the container of the program: the claim that it was made under
	labelPorts  = "dev.outrider.ports"  // the same: ports of the program, by label

	labelValue = "remote"
)

// claim is what the labels of one say.
type claim struct {
	endpoint.Record
	TTL  time.Duration `json:"ttl"`            // of the owner's lease
	Prev string        `json:"prev,omitempty"` // id of the container that the claim follows

	id   string
	made time.Time // by the engine, to the second
}

func (c *claim) name() string { return fmt.Sprintf("%s.e%d", c.Name, c.Epoch) }

// claimImage is the image of claims, an empty one.
const claimImage = "localhost/outrider-claim:latest"

// create makes the container of a claim. It is a conflict of cerrdefs if there is one of that epoch.
func (e *Endpoint) create(ctx context.Context, c *claim) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	o := client.ContainerCreateOptions{
		Name: c.name(),
		Config: &container.Config{
			Image: claimImage, Entrypoint: []string{"outrider-claim"}, NetworkDisabled: true,
			Labels: map[string]string{
				labelPlugin: labelValue, labelObject: c.Name, labelTask: c.Key.String(), labelClaim: string(text),
			},
		},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	}
	e.claimed.Store(true)
	for try := 0; ; try++ {
		r, err := e.api.ContainerCreate(ctx, o)
		// it is not there yet, or another node has removed it meanwhile
		if !noImage(err) || try > 5 {
			c.id, c.made = r.ID, e.clock.now()
			return taken(err)
		}
		// Podman fails, too, where another node removes the image at that time
		if err := e.loadImage(ctx); err != nil && (try == 5 || unreached(err)) {
			return err
		}
	}
}

// noImage reports whether an error means that there is no image. Podman calls that an internal error.
func noImage(err error) bool {
	return cerrdefs.IsNotFound(err) || err != nil && strings.Contains(err.Error(), "image not known")
}

// taken makes a conflict of what Podman calls an internal error.
func taken(err error) error {
	if err != nil && !cerrdefs.IsConflict(err) && strings.Contains(err.Error(), "already in use") {
		return fmt.Errorf("%w: %w", cerrdefs.ErrConflict, err)
	}
	return err
}

// loadImage gives the engine the image of claims, with an empty directory in it. It is the same one of each node, so
// that several may do it at the same time: each import would make an image of its own, and leave it without a name.
func (e *Endpoint) loadImage(ctx context.Context) error {
	v, err := e.api.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return failed("read the engine's version", err)
	}
	layer := pack(packed{"claim/", nil})
	config := fmt.Appendf(nil,
		`{"architecture":%q,"os":%q,"config":{},"rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`,
		v.Arch, v.Os, sha256.Sum256(layer))
	name := fmt.Sprintf("%x.json", sha256.Sum256(config))
	manifest := fmt.Appendf(nil, `[{"Config":%q,"RepoTags":[%q],"Layers":["layer.tar"]}]`, name, claimImage)
	content := bytes.NewReader(pack(packed{"layer.tar", layer}, packed{name, config}, packed{"manifest.json", manifest}))
	r, err := e.api.ImageLoad(ctx, content, client.ImageLoadWithQuiet(true))
	if err != nil {
		return failed("load the image of claims", err)
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return failed("load the image of claims", err)
}

// removeImage removes the image of claims. The engine refuses it while there is a claim, which is no error.
func (e *Endpoint) removeImage(ctx context.Context) {
	_, _ = e.api.ImageRemove(ctx, claimImage, client.ImageRemoveOptions{})
}

type packed struct {
	name string // of a directory, if a slash ends it
	text []byte
}

func pack(files ...packed) []byte {
	var b bytes.Buffer // no write to it fails
	w := tar.NewWriter(&b)
	for _, f := range files {
		_ = w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.text))})
		_, _ = w.Write(f.text)
	}
	_ = w.Close()
	return b.Bytes()
}

// mine is what this process knows of a claim that it wrote into, or nil.
func (e *Endpoint) mine(c *claim) *owned {
	e.mu.Lock()
	defer e.mu.Unlock()
	if o := e.owned[c.Name]; o != nil && o.claim.id == c.id {
		copied := *o
		return &copied
	}
	return nil
}

// change changes what this process knows of a claim.
func (e *Endpoint) change(c *claim, f func(*owned)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.owned[c.Name]
	if o == nil || o.claim.id != c.id {
		o = &owned{claim: *c}
		e.owned[c.Name] = o
	}
	f(o)
}

// parse returns the claim of a container, or nil if it is none.
func parse(s container.Summary) *claim {
	c := &claim{id: s.ID, made: time.Unix(s.Created, 0)}
	if s.Labels[labelClaim] == "" || json.Unmarshal([]byte(s.Labels[labelClaim]), c) != nil ||
		c.Name != s.Labels[labelObject] || !slices.Contains(s.Names, "/"+c.name()) {
		return nil
	}
	return c
}
