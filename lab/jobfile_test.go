// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// parser is an agent that parses a job as Nomad's does (command/agent/job_endpoint.go), and
// knows an option more, in which it finds fault.
func parser(t *testing.T) *api.Client {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		test.NoError(t, err)
		if strings.Contains(string(body), "newer") {
			http.Error(w, "Failed to parse job: input.hcl:1,2-3: newer; no", http.StatusBadRequest)
			return
		}
		http.Error(w, "Failed to parse job: input.hcl:1: the first, and others", http.StatusBadRequest)
	}))
	t.Cleanup(s.Close)
	c, err := api.NewClient(&api.Config{Address: s.URL})
	must.NoError(t, err)
	return c
}

func TestParseJob_ReportsEveryMistakeWithTheFilesName(t *testing.T) {
	c := parser(t)
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"syntax", "job \"a\" {\n  type = 1 2\n  group \"g\" {}\n}\njob \"b\" {\n  x = \"un\n}\n", []string{":2,12", ":6,"}},
		{"options", "job \"a\" {\n  kind = \"x\"\n  group \"g\" {\n    colour = 1\n  }\n}\n",
			[]string{":2,3-7: ", ":4,5-11: "}},
		{"expressions", "job \"a\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"exec-lite\"\n" +
			"      config {\n        a = nofunction()\n        b = var.none\n      }\n    }\n  }\n}\n",
			[]string{":6,", ":7,"}},
		{"what we do not know", "job \"newer\" {}\n", []string{":1,2-3: newer; no"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "mine.nomad.hcl")
			must.NoError(t, os.WriteFile(path, []byte(tc.text), 0o600))
			_, err := parseJob(c, path)
			must.Error(t, err, must.Sprint("it is taken"))
			for _, want := range tc.want {
				test.StrContains(t, err.Error(), path+want, test.Sprintf("no %q in:\n%v", path+want, err))
			}
			must.StrNotContains(t, err.Error(), "input.hcl", must.Sprintf("got %v", err))
			test.StrNotContains(t, err.Error(), "response code", test.Sprintf("got %v", err))
		})
	}
}
