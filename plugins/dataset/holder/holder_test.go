// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package holder

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/agentapi"
)

const (
	node = "11111111-1111-1111-1111-111111111111"
	job  = "22222222-2222-2222-2222-222222222222"
	old  = "33333333-3333-3333-3333-333333333333"
)

// agent is an HTTP server that replies like a Nomad agent. A test can replace any reply.
type agent struct {
	t       *testing.T
	mu      sync.Mutex
	answers map[string]string // status and body of each reply, by path
	tokens  []string
}

func newAgent(t *testing.T, answers map[string]string) (*agent, API) {
	a := &agent{t: t, answers: map[string]string{
		"/v1/agent/self":                    `200 {"stats":{"client":{"node_id":"` + node + `"}}}`,
		"/v1/acl/token/self":                `200 {"AccessorID":"x","Type":"client"}`,
		"/v1/node/" + node + "/allocations": `200 []`,
		"/v1/allocation/" + job:             `404 alloc not found`,
	}}
	for path, answer := range answers {
		a.answers[path] = answer
	}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return a, API{Enabled: true, Config: agentapi.Config{Address: server.URL}}
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	answer := a.answers[r.URL.Path]
	a.tokens = append(a.tokens, r.Header.Get("X-Nomad-Token"))
	a.mu.Unlock()
	status, body, _ := strings.Cut(answer, " ")
	if status == "hang" {
		<-r.Context().Done()
		return
	}
	code := 500
	fmt.Sscan(status, &code)
	w.WriteHeader(code)
	fmt.Fprint(w, body)
}

func holds(id, client, desired, kind, device string) string {
	return fmt.Sprintf(`{"ID":%q,"Namespace":"prod","ClientStatus":%q,"DesiredStatus":%q,"Job":{"ID":"x"},`+
		`"AllocatedResources":{"Tasks":{"web":{"Devices":[{"Vendor":"zfs","Type":%q,"Name":"fast","DeviceIDs":[%q]}]}}}}`,
		id, client, desired, kind, device)
}

func TestView_ReadsTheAllocationsOfASlot(t *testing.T) {
	for _, c := range []struct{ name, client, desired, kind, live string }{
		{"runs", "running", "run", "dataset", job},
		{"is about to start", "pending", "run", "dataset", job},
		{"is disconnected", "unknown", "run", "dataset", job},
		{"is being stopped", "running", "stop", "dataset", ""},
		{"has ended", "complete", "run", "dataset", ""},
		{"is lost", "lost", "stop", "dataset", ""},
		{"has another device of that name", "running", "run", "gpu", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v View
			v.Allocations = map[string]Allocation{}
			text := "[" + holds(old, "complete", "run", "dataset", "fast-00") + "," +
				holds(job, c.client, c.desired, c.kind, "fast-00") + "]"
			must.NoError(t, v.read(json.NewDecoder(strings.NewReader(text)), "dataset"))
			all, live := v.Holders("fast-00")
			must.Eq(t, c.live, live)
			must.Eq(t, c.kind == "dataset", len(all) == 2)
			a := v.Allocations[job]
			must.Eq(t, c.client == "complete" || c.client == "lost", a.Ended)
			must.Eq(t, "prod", a.Namespace)
		})
	}
}

func TestView_TwoLiveHoldersAreAmbiguous(t *testing.T) {
	a := Allocation{Devices: map[string]string{"fast-00": "web"}, Wanted: true}
	v := View{Allocations: map[string]Allocation{job: a, old: a}}
	all, live := v.Holders("fast-00")
	must.SliceNotEmpty(t, all)
	must.Eq(t, "", live)
}

func (a API) view(t *testing.T) (*View, error) {
	t.Helper()
	return a.View(t.Context(), "dataset")
}

func TestView_RefusesIncompleteReplies(t *testing.T) {
	t.Parallel()
	list := "/v1/node/" + node + "/allocations"
	whole := holds(job, "running", "run", "dataset", "fast-00")
	for name, c := range map[string]struct{ path, answer, want string }{
		"no rights":            {list, "403 Permission denied", "access was denied (Permission denied): set api.token_file"},
		"no leader":            {list, "500 No cluster leader", "the API returned status 500 (No cluster leader)"},
		"cut off":              {list, "200 [" + whole, "is invalid"},
		"cut in an allocation": {list, "200 [" + whole[:80], "is invalid"},
		"an HTML page":         {list, "200 <html>sign in</html>", "is invalid"},
		"null":                 {list, "200 null", "is invalid: it is not a list"},
		"another list":         {list, `200 [{"Name":"x"}]`, "is invalid: it has an allocation without an id"},
		"redirected":           {list, "302 ", "the API returned status 302"},
		"hangs":                {list, "hang", "no response within 3s"},
		"unknown token":        {"/v1/acl/token/self", "403 ACL token not found", "access was denied"},
		"a server agent":       {"/v1/agent/self", `200 {"stats":{}}`, "is not a client"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, api := newAgent(t, map[string]string{c.path: c.answer})
			v, err := api.view(t)
			must.Nil(t, v)
			must.ErrorContains(t, err, c.want)
			must.ErrorContains(t, err, api.Address)
		})
	}
}

func TestView_IsCompleteIfTheTokenSeesEverything(t *testing.T) {
	for answer, want := range map[string]bool{
		`200 {"AccessorID":"acls-disabled","Type":"client"}`: true, `200 {"AccessorID":"x","Type":"management"}`: true,
		`200 {"AccessorID":"anonymous","Type":"client"}`: false, `200 {}`: false,
	} {
		_, api := newAgent(t, map[string]string{"/v1/acl/token/self": answer})
		v, err := api.view(t)
		must.NoError(t, err)
		must.Eq(t, want, v.Complete, must.Sprint(answer))
		must.MapEmpty(t, v.Allocations)
	}
}

func TestView_ReadsTheTokenForEachRequest(t *testing.T) {
	a, api := newAgent(t, nil)
	api.TokenFile = filepath.Join(t.TempDir(), "token")
	must.NoError(t, os.WriteFile(api.TokenFile, []byte("one\n"), 0o600))
	_, err := api.view(t)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(api.TokenFile, []byte("two\n"), 0o600))
	_, err = api.view(t)
	must.NoError(t, err)
	a.mu.Lock()
	defer a.mu.Unlock()
	must.Eq(t, "one", a.tokens[0])
	must.Eq(t, "two", a.tokens[len(a.tokens)-1])
}

func TestView_TrustsOnlyTheConfiguredAuthority(t *testing.T) {
	a, _ := newAgent(t, nil)
	server := httptest.NewTLSServer(a)
	t.Cleanup(server.Close)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	api := API{Enabled: true, Config: agentapi.Config{
		Address: server.URL, CAFile: filepath.Join(t.TempDir(), "ca.pem"),
	}}
	pemOf := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	must.NoError(t, os.WriteFile(api.CAFile, pemOf, 0o600))
	v, err := api.view(t)
	must.NoError(t, err)
	must.Eq(t, node, v.Node)
	api.CAFile = ""
	_, err = api.view(t)
	must.ErrorContains(t, err, "certificate signed by unknown authority")
}

// Only Nomad's own reply for a missing allocation counts. If the token must not read the allocation's namespace, the
// text of Nomad's 404 is different, and so is that of any other server.
func TestGone_TrustsOnlyNomadsOwnAnswer(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]bool{
		"404 alloc not found": true, `404 Unknown allocation "` + job + `"`: false, "404 page not found": false,
		"404 ":   false,
		"200 {}": false, "403 Permission denied": false, "500 x": false, "hang": false,
	} {
		t.Run(answer, func(t *testing.T) {
			t.Parallel()
			_, api := newAgent(t, map[string]string{"/v1/allocation/" + job: answer})
			gone, err := api.Gone(t.Context(), job, "prod")
			must.Eq(t, want, gone)
			switch answer[:3] {
			case "404", "200":
				must.NoError(t, err)
			default:
				must.Error(t, err)
			}
		})
	}
}
