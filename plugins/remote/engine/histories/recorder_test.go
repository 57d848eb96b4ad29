// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package histories

import (
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/shoenig/test"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// What no endpoint may do is found, and what an endpoint may do is not.
func TestModel_RefusesTwoOwners(t *testing.T) {
	ref := func(epoch uint64, owner string) endpoint.Ref {
		return endpoint.Ref{Name: "x", Epoch: epoch, Start: owner}
	}
	ok := func(r endpoint.Ref) output { return output{result: "ok", record: true, epoch: r.Epoch, owner: r.Start} }
	done, late, unknown := output{result: "ok"}, output{result: "epoch"}, output{result: "unknown"}
	type call struct {
		from, to int64
		in       input
		out      output
	}
	created := call{1, 2, input{"Create", ref(0, ""), "a"}, done}
	takes := func(from, to int64, by string, out output) call {
		return call{from, to, input{"Take", ref(1, "a"), by}, out}
	}
	taken := takes(3, 5, "b", ok(ref(2, "b")))
	lost := takes(3, 5, "b", unknown)
	renewed := func(from, to int64, out output) call { return call{from, to, input{"Renew", ref(1, "a"), ""}, out} }
	removed := call{6, 7, input{"Remove", ref(1, "a"), ""}, done}
	shown := call{6, 7, input{method: "Get", ref: endpoint.Ref{Name: "x"}}, ok(ref(1, "a"))}
	for name, c := range map[string]struct {
		calls []call
		want  bool
	}{
		"taken":                          {[]call{created, taken}, true},
		"taken by two":                   {[]call{created, taken, takes(4, 6, "c", ok(ref(2, "c")))}, false},
		"the second is refused":          {[]call{created, taken, takes(4, 6, "c", late)}, true},
		"created twice":                  {[]call{created, {3, 4, input{"Create", ref(0, ""), "b"}, done}}, false},
		"renewed by the former owner":    {[]call{created, taken, renewed(6, 7, done)}, false},
		"renewed meanwhile":              {[]call{created, taken, renewed(4, 6, done)}, true},
		"refused, and nobody took it":    {[]call{created, renewed(3, 4, late)}, false},
		"an answer is lost":              {[]call{created, lost, renewed(6, 7, late)}, true},
		"a request is lost":              {[]call{created, lost, renewed(6, 7, done)}, true},
		"lost, and then both":            {[]call{created, lost, renewed(6, 7, late), renewed(8, 9, done)}, false},
		"removed by the former owner":    {[]call{created, taken, removed}, false},
		"an epoch that was left out":     {[]call{created, takes(3, 5, "b", ok(ref(3, "b")))}, false},
		"another one than who took it":   {[]call{created, takes(3, 5, "b", ok(ref(2, "c")))}, false},
		"an older record is shown later": {[]call{created, taken, shown}, false},
	} {
		var ops []porcupine.Operation
		for i, o := range c.calls {
			ops = append(ops, porcupine.Operation{ClientId: i, Input: o.in, Call: o.from, Output: o.out, Return: o.to})
		}
		test.Eq(t, c.want, porcupine.CheckOperations(model.ToModel(), ops), test.Sprint(name))
	}
}
