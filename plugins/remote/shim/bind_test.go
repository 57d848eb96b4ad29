// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestBind_IsToOneMachine(t *testing.T) {
	here := thisMachine()
	for name, c := range map[string]struct {
		of machine
		ok bool
	}{
		"itself":                          {here, true},
		"before a reboot":                 {machine{here.ID, here.Name, "earlier"}, true},
		"under another name":              {machine{here.ID, "other", here.Run}, true},
		"before it had an id":             {machine{"", here.Name, "earlier"}, true},
		"another":                         {machine{"other", "other", "other"}, false},
		"a copy":                          {machine{here.ID, "other", "other"}, false},
		"one of the same name":            {machine{"other", here.Name, "other"}, false},
		"one without an id":               {machine{"", "other", "other"}, false},
		"one of which nothing is known":   {machine{}, false},
		"another where no run is known":   {machine{"other", "other", ""}, false},
		"a container of the same machine": {machine{"", "other", "the same boot pid:[1]"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(Config{StateDir: t.TempDir()})
			must.NoError(t, err)
			defer s.Close()
			path := filepath.Join(s.cfg.StateDir, "host")
			b, err := json.Marshal(c.of)
			must.NoError(t, err)
			must.NoError(t, os.WriteFile(path, b, 0o600))
			err = s.bind()
			after, rerr := os.ReadFile(path)
			must.NoError(t, rerr)
			if c.ok {
				must.NoError(t, err)
				var of machine
				must.NoError(t, json.Unmarshal(after, &of))
				must.Eq(t, here, of)
				return
			}
			must.ErrorContains(t, err, "is that of another machine, "+c.of.String()+", and this one is "+here.String())
			must.ErrorContains(t, err, ", remove "+path)
			must.Eq(t, string(b), string(after))
			must.NoError(t, os.Remove(path))
			must.NoError(t, s.bind())
		})
	}
}

func TestBind_HasOneWinner(t *testing.T) {
	top := t.TempDir()
	var all sync.WaitGroup
	for range 20 {
		s, err := New(Config{StateDir: filepath.Join(top, "state")})
		must.NoError(t, err)
		defer s.Close()
		all.Go(func() { test.NoError(t, s.bind()) })
	}
	all.Wait()
	names, err := os.ReadDir(filepath.Join(top, "state"))
	must.NoError(t, err)
	must.Len(t, 1, names)

	s, err := New(Config{StateDir: top})
	must.NoError(t, err)
	defer s.Close()
	must.NoError(t, os.WriteFile(filepath.Join(top, "host"), nil, 0o600))
	must.ErrorContains(t, s.bind(), `is that of another machine, "", `)
}
