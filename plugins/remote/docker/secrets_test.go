// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"encoding/json"
	"testing"

	"github.com/moby/moby/client"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// The environment of a task is in the configuration of its container, as an engine has it, and its secret files are in
// that container. Neither is in a label, in a claim, in a volume or in an error.
func TestSecrets_AreInTheContainerAlone(t *testing.T) {
	const secret = "outrider-secret-9d41e7"
	onEngines(t, func(t *testing.T, e *engine) {
		ctx, c, r := t.Context(), e.connect(t), object(t, e)
		ref := endpoint.Ref{Name: r.Name, Epoch: 1}
		none := func(where string, v any) {
			t.Helper()
			text, err := json.Marshal(v)
			must.NoError(t, err)
			test.StrNotContains(t, string(text), secret, test.Sprint(where))
		}
		var said []string
		begin := func(s *endpoint.Spec) error {
			s.Env["PASSWORD"] = secret
			must.NoError(t, c.Prepare(ctx, ref, s, func(text string) { said = append(said, text) }))
			must.NoError(t, c.Put(ctx, ref, files(t, map[string]string{"secrets/file": secret})))
			_, err := c.Start(ctx, ref, s)
			return err
		}
		must.NoError(t, c.Create(ctx, r))
		missing := shell("")
		missing.Container.Entrypoint = []string{"/no/such/program"}
		err := begin(missing)
		must.ErrorContains(t, err, "/no/such/program")
		none("the error of a start", err.Error())
		must.NoError(t, begin(shell(`cat /secrets/file; exec sleep 1000`)))
		must.NoError(t, c.Renew(ctx, ref, endpoint.Mutable{Told: true}))
		next, err := e.connect(t).Take(ctx, ref, owner("b"))
		must.NoError(t, err)
		none("progress", said)
		none("the record", next)

		all, err := e.api.ContainerList(ctx, client.ContainerListOptions{All: true})
		must.NoError(t, err)
		claims, boxes := 0, 0
		for _, s := range all.Items {
			none("a container's labels", s.Labels)
			if s.Labels["dev.outrider.object"] != r.Name {
				continue
			}
			in, err := e.api.ContainerInspect(ctx, s.ID, client.ContainerInspectOptions{})
			must.NoError(t, err)
			none("the labels", in.Container.Config.Labels)
			if s.Names[0] == "/"+r.Name {
				boxes++
				must.SliceContains(t, in.Container.Config.Env, "PASSWORD="+secret) // or nothing is looked for
				continue
			}
			claims++
			none("a claim", in)
		}
		must.Eq(t, []int{1, 1}, []int{boxes, claims})
		volumes, err := e.api.VolumeList(ctx, client.VolumeListOptions{})
		must.NoError(t, err)
		none("the volumes", volumes)
		end(t, c, next)
	})
}
