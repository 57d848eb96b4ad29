// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/engine"
)

// nomad answers as an agent whose servers know one job and its allocation, to who has the token.
func nomad(token string) http.Handler {
	job := api.NewServiceJob("j", "j", "global", 50)
	job.AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(api.NewTask("t", "remote")))
	job.Status, job.CreateIndex = new("running"), new(uint64(9))
	alloc := &api.Allocation{ID: "a", Name: "j.g[0]", JobID: "j", TaskGroup: "g", Job: job, DesiredStatus: "run",
		ClientStatus: "running", TaskStates: map[string]*api.TaskState{"t": {State: "dead"}}}
	answers := map[string]any{"/v1/allocation/a": alloc, "/v1/job/j": job, "/v1/node/n": &api.Node{ID: "n"}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := answers[r.URL.Path]
		switch {
		case r.Header.Get("X-Nomad-Token") != token && r.URL.Path == "/v1/allocation/a":
			http.Error(w, "Unknown allocation \"a\"\nas Nomad has it", http.StatusInternalServerError)
		case r.Header.Get("X-Nomad-Token") != token:
			http.Error(w, "Permission denied", http.StatusForbidden)
		case got == nil:
			http.Error(w, strings.Split(strings.Replace(r.URL.Path, "allocation", "alloc", 1), "/")[2]+" not found", 404)
		default:
			json.NewEncoder(w).Encode(got)
		}
	})
}

func hang(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

var asker = engine.Asker{Namespace: "default", Job: "j", Alloc: "a", Task: "t"}

func newClient(t *testing.T, o Options) *Client {
	t.Helper()
	c := New(o)
	t.Cleanup(func() { test.NoError(t, c.Close()) })
	return c
}

func TestClient_AsksAddressesInTurn(t *testing.T) {
	good := serve(t, nomad(""))
	failing := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no leader", http.StatusInternalServerError)
	}))
	c := newClient(t, Options{Addresses: []string{"http://127.0.0.1:1", failing, serve(t, http.HandlerFunc(hang)), good}})
	start := time.Now()
	must.Eq(t, engine.Alive, c.Alloc(t.Context(), asker, endpoint.Owner{Alloc: "a"}).State)
	must.Less(t, limit, time.Since(start))
	start = time.Now()
	for range 20 {
		must.Eq(t, engine.Alive, c.Alloc(t.Context(), asker, endpoint.Owner{Alloc: "a"}).State)
	}
	must.Less(t, limit/4, time.Since(start), must.Sprint("it begins with the address that answered"))
}

// alone is for objects whose endpoint is the only one.
func alone(string) bool { return false }

func TestClient_TellsWhatItFound(t *testing.T) {
	c := newClient(t, Options{Addresses: []string{serve(t, nomad(""))}})
	got := c.Alloc(t.Context(), asker, endpoint.Owner{Alloc: "a"})
	must.Eq(t, engine.Alloc{
		State: engine.Alive, Wanted: true, Told: true, Job: endpoint.Service, Region: "global", Index: 9,
	}, got)
	must.Eq(t, engine.Stop, c.Why(t.Context(), asker, engine.StopOptions{}).Action)
	other := asker
	other.Job, other.Alloc = "k", "b"
	must.Eq(t, "the job was purged", c.Why(t.Context(), other, engine.StopOptions{}).Reason)
	r := &endpoint.Record{Key: endpoint.Key{Job: "j", Group: "g", Task: "t"}, Owner: endpoint.Owner{Alloc: "a"}}
	yes, why := c.Orphan(t.Context(), r, alone)
	must.False(t, yes, must.Sprint(why))
	r.Key.Index = 1
	yes, why = c.Orphan(t.Context(), r, alone)
	must.True(t, yes, must.Sprint(why))
}

// A task is dead as well when its allocation was drained and it could not be released: nobody has seen how it ends.
func TestClient_KnowsWhetherAnExitWasTold(t *testing.T) {
	for name, tc := range map[string]struct {
		desired, client string
		failed, want    bool
	}{
		"ended by itself": {desired: "run", client: "complete", want: true},
		"failed":          {desired: "stop", client: "failed", failed: true, want: true},
		"drained":         {desired: "stop", client: "complete"},
	} {
		t.Run(name, func(t *testing.T) {
			alloc := &api.Allocation{ID: "a", Name: "j.g[0]", JobID: "j", DesiredStatus: tc.desired, ClientStatus: tc.client,
				TaskStates: map[string]*api.TaskState{"t": {State: "dead", Failed: tc.failed}}}
			c := newClient(t, Options{Addresses: []string{serve(t, http.HandlerFunc(
				func(w http.ResponseWriter, r *http.Request) {
					if strings.HasPrefix(r.URL.Path, "/v1/job/") {
						json.NewEncoder(w).Encode(&api.Job{ID: new("j")})
						return
					}
					json.NewEncoder(w).Encode(alloc)
				}))}})
			must.Eq(t, tc.want, c.Alloc(t.Context(), asker, endpoint.Owner{Alloc: "a"}).Told)
		})
	}
}

// Another cluster's objects look like those of a purged job here.
func TestClient_ProvesThatAnObjectIsOfItsCluster(t *testing.T) {
	here := newClient(t, Options{Addresses: []string{serve(t, nomad(""))}})
	noNodes := newClient(t, Options{Addresses: []string{serve(t, http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/v1/node/") {
				http.Error(w, "Permission denied", http.StatusForbidden)
				return
			}
			nomad("").ServeHTTP(w, r)
		}))}})
	own := asker
	own.Node = "own"
	for _, tc := range []struct {
		c       *Client
		owner   endpoint.Owner
		cluster string
		want    engine.AllocState
		orphan  bool
	}{
		{here, endpoint.Owner{Alloc: "a", Node: "x"}, "", engine.Alive, true},
		{here, endpoint.Owner{Alloc: "b", Node: "n"}, "", engine.NotFound, true},
		{here, endpoint.Owner{Alloc: "b", Node: "x"}, "", engine.Foreign, false},
		{here, endpoint.Owner{Alloc: "b", Node: "x/../n"}, "", engine.Foreign, false},
		{here, endpoint.Owner{Alloc: "b", Node: "x"}, "named", engine.Foreign, true},
		{here, endpoint.Owner{Alloc: "b", Node: "own"}, "", engine.NotFound, false},
		{here, endpoint.Owner{Node: "n"}, "", engine.NotFound, true},
		{here, endpoint.Owner{}, "", engine.Foreign, false},
		{noNodes, endpoint.Owner{Alloc: "b", Node: "n"}, "", engine.Foreign, false},
		{noNodes, endpoint.Owner{Alloc: "a", Node: "n"}, "", engine.Alive, true},
	} {
		test.Eq(t, tc.want, tc.c.Alloc(t.Context(), own, tc.owner).State, test.Sprintf("%+v", tc))
		r := &endpoint.Record{Key: endpoint.Key{Job: "purged", Group: "g", Task: "t", Cluster: tc.cluster}, Owner: tc.owner}
		yes, why := tc.c.Orphan(t.Context(), r, alone)
		test.Eq(t, tc.orphan, yes, test.Sprintf("%+v: %s", tc, why))
		test.StrContains(t, why, "its job was purged")
	}
}

// A stop that did not reach the endpoint is Nomad's to tell of, to whoever starts the task next.
func TestClient_TellsThatAnOwnerWasToBeStopped(t *testing.T) {
	job := api.NewServiceJob("j", "j", "global", 50)
	alloc := &api.Allocation{ID: "a", JobID: "j", ClientStatus: "complete"}
	c := newClient(t, Options{Addresses: []string{serve(t, http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			json.NewEncoder(w).Encode(map[string]any{"/v1/allocation/a": alloc, "/v1/job/j": job}[r.URL.Path])
		}))}})
	drain := api.DesiredTransition{Migrate: new(true)}
	byHand := api.DesiredTransition{Migrate: new(true), NoShutdownDelay: new(false)}
	for _, tc := range []struct {
		desired, because string
		transition       api.DesiredTransition
		want             bool
	}{
		{"run", "", api.DesiredTransition{}, false},
		{"stop", becauseMigrating, drain, false},
		{"stop", becauseMigrating, byHand, true},
		{"stop", becauseLost, api.DesiredTransition{}, false},
		{"stop", "alloc was rescheduled because it failed", api.DesiredTransition{}, false},
		{"stop", becauseUpdating, drain, true},
		{"stop", becauseReconnected, api.DesiredTransition{}, false},
		{"evict", "Preempted by alloc ID x", api.DesiredTransition{}, true},
	} {
		alloc.DesiredStatus, alloc.DesiredDescription, alloc.DesiredTransition = tc.desired, tc.because, tc.transition
		test.Eq(t, tc.want, c.Alloc(t.Context(), asker, endpoint.Owner{Alloc: "a"}).Stopped, test.Sprintf("%+v", tc))
	}
}

// A batch task that was released for a reason that nobody told makes its job dead, as a drain does.
func TestClient_LetsABatchTaskOfADeadJobRunToItsEnd(t *testing.T) {
	job := api.NewBatchJob("j", "j", "global", 50)
	job.AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(api.NewTask("t", "remote")))
	job.Status = new("dead")
	alloc := &api.Allocation{ID: "a", JobID: "j", DesiredStatus: "run", ClientStatus: "complete"}
	c := newClient(t, Options{Addresses: []string{serve(t, http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			json.NewEncoder(w).Encode(map[string]any{"/v1/allocation/a": alloc, "/v1/job/j": job}[r.URL.Path])
		}))}})
	r := &endpoint.Record{State: endpoint.Released, Key: endpoint.Key{Job: "j", Group: "g", Task: "t"},
		Owner: endpoint.Owner{Alloc: "a"}}
	yes, why := c.Orphan(t.Context(), r, alone)
	test.False(t, yes, test.Sprint(why))
	test.StrContains(t, why, "runs to its end")
	alloc.DesiredStatus, alloc.DesiredDescription = "stop", becauseMigrating
	alloc.DesiredTransition = api.DesiredTransition{Migrate: new(true), MigrateDisablePlacement: new(true)}
	yes, why = c.Orphan(t.Context(), r, alone)
	test.True(t, yes, test.Sprint(why))
}

func TestClient_GivesUpAfterTwoSeconds(t *testing.T) {
	c := newClient(t, Options{Addresses: []string{serve(t, http.HandlerFunc(hang)), serve(t, http.HandlerFunc(hang))}})
	start := time.Now()
	with := asker
	with.Token = "an identity"
	got := c.Why(t.Context(), with, engine.StopOptions{})
	must.Less(t, limit+time.Second/2, time.Since(start))
	must.Eq(t, engine.Release, got.Action)
	must.StrContains(t, got.Reason, "did not answer in time")
	yes, why := c.Orphan(t.Context(), &endpoint.Record{}, alone)
	must.False(t, yes)
	must.StrContains(t, why, "did not answer in time")
}

// A proxy in front of the API answers 404 while it has no server to ask, and some things 200 to anything.
func TestClient_TakesNoOthersWordForAbsence(t *testing.T) {
	for _, answer := range []string{"404 page not found\n", "<html>404 Not Found</html>", ""} {
		c := newClient(t, Options{Addresses: []string{serve(t, http.HandlerFunc(
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, answer, http.StatusNotFound) }))}})
		test.Eq(t, engine.NoAnswer, c.Alloc(t.Context(), asker, endpoint.Owner{Alloc: "a"}).State)
		got := c.Why(t.Context(), asker, engine.StopOptions{})
		test.Eq(t, engine.Release, got.Action, test.Sprint(got.Reason))
		test.StrContains(t, got.Reason, "failed (404)")
		yes, why := c.Orphan(t.Context(), &endpoint.Record{Key: endpoint.Key{Cluster: "c", Job: "j"}}, alone)
		test.False(t, yes, test.Sprint(why))
		test.False(t, c.Sight(t.Context()).All)
	}
	c := newClient(t, Options{Addresses: []string{serve(t, http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))}})
	test.Eq(t, engine.Alloc{}, c.Alloc(t.Context(), asker, endpoint.Owner{Alloc: "a"}))
	got := c.Why(t.Context(), asker, engine.StopOptions{})
	test.Eq(t, engine.Release, got.Action, test.Sprint(got.Reason))
}

func TestClient_RefusedIsNotAbsent(t *testing.T) {
	c := newClient(t, Options{Addresses: []string{serve(t, nomad("other"))}})
	for _, id := range []string{"a", "b"} {
		must.Eq(t, engine.NoAnswer, c.Alloc(t.Context(), asker, endpoint.Owner{Alloc: id}).State)
	}
	got := c.Why(t.Context(), asker, engine.StopOptions{})
	must.Eq(t, "the reason of the stop is not known: without a token: Nomad does not show it to this token", got.Reason)
	yes, why := c.Orphan(t.Context(), &endpoint.Record{Key: endpoint.Key{Job: "purged"}}, alone)
	must.False(t, yes)
	must.Eq(t, "Nomad does not show it to this token", why)
}

func TestClient_ReadsTheTokenAgain(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "token"), "old\n")
	c := newClient(t, Options{Addresses: []string{serve(t, nomad("new"))}, TokenFile: file})
	must.Eq(t, engine.NoAnswer, c.Alloc(t.Context(), asker, endpoint.Owner{Alloc: "a"}).State)
	write(t, file, "new\n")
	must.Eq(t, engine.Alive, c.Alloc(t.Context(), asker, endpoint.Owner{Alloc: "a"}).State)
	with := asker // the identity is for a token that does not work
	with.Token = "new"
	must.NoError(t, os.Remove(file))
	must.Eq(t, engine.Alive, c.Alloc(t.Context(), with, endpoint.Owner{Alloc: "a"}).State)
	must.StrContains(t, c.Why(t.Context(), asker, engine.StopOptions{}).Reason, "no such file")
}

func TestToken_FileIsTheOperatorsAlone(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		name, text string
		mode       os.FileMode
		want       string
	}{
		{"right", " x \n", 0o600, ""}, {"group", "x", 0o640, ""},
		{"readable", "x", 0o644, "0644"}, {"writable", "x", 0o620, "0620"},
		{"empty", "\n", 0o600, "no token in it"}, {"two", "x\ny", 0o600, "no token in it"},
	} {
		path := write(t, filepath.Join(dir, tc.name), tc.text)
		must.NoError(t, os.Chmod(path, tc.mode))
		got, err := readToken(path)
		if tc.want == "" {
			test.NoError(t, err)
			test.Eq(t, "x", got)
			continue
		}
		test.ErrorContains(t, err, tc.want, test.Sprint(tc.name))
		test.StrContains(t, err.Error(), path)
	}
	_, err := readToken(dir)
	test.ErrorContains(t, err, "no regular file")
	_, err = readToken(filepath.Join(dir, "none"))
	test.ErrorContains(t, err, "no such file")
}

const identity = "eyJ.eyJ-_1.c2ln"

func TestTaskAPI_IsUsedWithTheIdentity(t *testing.T) {
	alloc := t.TempDir()
	secrets := filepath.Join(alloc, "t", "secrets")
	write(t, filepath.Join(secrets, "nomad_token"), identity)
	l, err := net.Listen("unix", filepath.Join(secrets, "api.sock"))
	must.NoError(t, err)
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: nomad(identity)}}
	s.Start()
	t.Cleanup(s.Close)
	c := newClient(t, Options{Addresses: []string{"http://127.0.0.1:1"}})
	with := asker
	with.Secrets = secrets
	before := testsupport.Descriptors(t)
	for range 10 {
		must.Eq(t, engine.Alive, c.Alloc(t.Context(), with, endpoint.Owner{Alloc: "a"}).State)
	}
	testsupport.Eventually(t, "no connection is left", func() bool { return testsupport.Descriptors(t) <= before })
}

func TestTaskAPI_FollowsNoLinkOfTheTask(t *testing.T) {
	alloc := t.TempDir()
	secrets := filepath.Join(alloc, "t", "secrets")
	elsewhere := t.TempDir()
	write(t, filepath.Join(elsewhere, "nomad_token"), identity)
	l, err := net.Listen("unix", filepath.Join(elsewhere, "api.sock"))
	must.NoError(t, err)
	defer l.Close()
	dial := func() error {
		c, err := taskClient(secrets)
		must.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err = c.Jobs().Info("j", (&api.QueryOptions{}).WithContext(ctx))
		return err
	}
	must.NoError(t, os.MkdirAll(secrets, 0o755))
	for _, name := range []string{"nomad_token", "api.sock"} {
		must.NoError(t, os.Symlink(filepath.Join(elsewhere, name), filepath.Join(secrets, name)))
	}
	must.Eq(t, "", readIdentity(secrets), must.Sprint("a link"))
	must.ErrorContains(t, dial(), "too many levels of symbolic links")

	must.NoError(t, os.RemoveAll(secrets))
	must.NoError(t, os.Symlink(elsewhere, secrets))
	must.Eq(t, "", readIdentity(secrets), must.Sprint("a link above"))
	must.ErrorContains(t, dial(), "too many levels of symbolic links")

	must.NoError(t, os.Remove(secrets))
	write(t, filepath.Join(secrets, "nomad_token"), "root:*:19000:0:99999:7:::")
	must.Eq(t, "", readIdentity(secrets), must.Sprint("something else"))
	write(t, filepath.Join(secrets, "api.sock"), "")
	must.ErrorContains(t, dial(), "api.sock is no socket")
	must.NoError(t, os.Remove(filepath.Join(secrets, "nomad_token")))
	must.NoError(t, os.Mkdir(filepath.Join(secrets, "nomad_token"), 0o755))
	must.Eq(t, "", readIdentity(secrets), must.Sprint("a directory"))
	must.Eq(t, "", readIdentity(""), must.Sprint("no directory"))
}

// What listens there may be the task.
func TestTaskAPI_IsReadInPart(t *testing.T) {
	secrets := filepath.Join(t.TempDir(), "t", "secrets")
	write(t, filepath.Join(secrets, "nomad_token"), identity)
	l, err := net.Listen("unix", filepath.Join(secrets, "api.sock"))
	must.NoError(t, err)
	var size int
	var packed bool
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			var to io.Writer = w
			if packed {
				w.Header().Set("Content-Encoding", "gzip")
				z := gzip.NewWriter(w)
				defer z.Close()
				to = z
			}
			fmt.Fprintf(to, `{"ID":%q,"ClientStatus":"running","DesiredStatus":"run","Name":%q}`, path.Base(r.URL.Path),
				strings.Repeat("x", size))
		})}}
	s.Start()
	defer s.Close()
	c := newClient(t, Options{Addresses: []string{"http://127.0.0.1:1"}})
	with := asker
	with.Secrets = secrets
	for _, packed = range []bool{false, true} {
		size = mostAnswered / 2
		test.Eq(t, engine.Alive, c.Alloc(t.Context(), with, endpoint.Owner{Alloc: "a"}).State, test.Sprint(packed))
		size = 2 * mostAnswered
		test.Eq(t, engine.NoAnswer, c.Alloc(t.Context(), with, endpoint.Owner{Alloc: "a"}).State, test.Sprint(packed))
	}
}

// The socket is the task's to replace.
func TestTaskAPI_NeverSeesThePluginsToken(t *testing.T) {
	secrets := filepath.Join(t.TempDir(), "t", "secrets")
	write(t, filepath.Join(secrets, "nomad_token"), identity)
	l, err := net.Listen("unix", filepath.Join(secrets, "api.sock"))
	must.NoError(t, err)
	seen := make(chan string, 100)
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			seen <- r.Header.Get("X-Nomad-Token")
			http.NotFound(w, r)
		})}}
	s.Start()
	defer s.Close()
	c := newClient(t, Options{Addresses: []string{"http://127.0.0.1:1"},
		TokenFile: write(t, filepath.Join(t.TempDir(), "token"), "secret")})
	with := asker
	with.Secrets = secrets
	c.Why(t.Context(), with, engine.StopOptions{})
	must.Positive(t, len(seen))
	for len(seen) > 0 {
		must.Eq(t, identity, <-seen)
	}
}

func TestClient_ReadsTLSFilesAgain(t *testing.T) {
	s := httptest.NewTLSServer(nomad(""))
	defer s.Close()
	s.Config.ErrorLog = nil
	s.TLS.MinVersion = tls.VersionTLS12
	ca := write(t, filepath.Join(t.TempDir(), "ca.pem"), "none")
	c := newClient(t, Options{Addresses: []string{s.URL}, CAFile: ca})
	must.Eq(t, engine.NoAnswer, c.Alloc(t.Context(), asker, endpoint.Owner{Alloc: "a"}).State)
	write(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	must.Eq(t, engine.Alive, c.Alloc(t.Context(), asker, endpoint.Owner{Alloc: "a"}).State)
	write(t, ca, "none again")
	must.Eq(t, engine.NoAnswer, c.Alloc(t.Context(), asker, endpoint.Owner{Alloc: "a"}).State)
}

func TestSight_IsOneSentence(t *testing.T) {
	type rule struct {
		path string
		code int
		body string
	}
	var rules []rule
	address := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, a := range rules {
			if r.URL.Path+"?"+r.URL.Query().Get("namespace") == a.path {
				w.WriteHeader(a.code)
				fmt.Fprint(w, a.body)
				return
			}
		}
		http.Error(w, "Permission denied", http.StatusForbidden)
	}))
	file := write(t, filepath.Join(t.TempDir(), "token"), "x")
	everywhere, known := "/v1/job/"+nowhere+"?"+nowhere, rule{"/v1/acl/token/self?", 200, "{}"}
	nodes := rule{"/v1/node/00000000-0000-0000-0000-000000000000?", 404, "node not found"}
	for _, tc := range []struct {
		name, file string
		rules      []rule
		all        bool
		want       string
	}{
		{"no access control", "", []rule{{everywhere, 404, "job not found"}}, true,
			"no token is needed to read jobs in every namespace"},
		{"no token", "", nil, false,
			"Nomad's access control is on and there is no token_file: only workload identities are left"},
		{"all", file, []rule{{everywhere, 404, "job not found"}, nodes}, true, "the token may read jobs in every namespace"},
		{"all but nodes", file, []rule{{everywhere, 404, "job not found"}}, true,
			"the token may read jobs in every namespace, " +
				"but no nodes (node:read): what a purged job has left is not found"},
		{"unknown token", file, nil, false, "Nomad does not know the token in " + file + ", or it has expired (403)"},
		{"sees nothing", file, []rule{known, {"/v1/namespaces?", 200, "[]"}}, false,
			"the token in " + file + " sees no job: it needs read-job in the namespaces of remote tasks"},
		{"sees namespaces without jobs", file, []rule{known, {"/v1/namespaces?", 200, "[{\"Name\":\"a\"}]"}}, false,
			"the token in " + file + " sees no job: it needs read-job in the namespaces of remote tasks"},
		{"sees one", file, []rule{known, {"/v1/namespaces?", 200, "[{\"Name\":\"a\"},{\"Name\":\"b\"}]"},
			{"/v1/job/" + nowhere + "?b", 404, "job not found"}, nodes}, false, "the token may read jobs in b alone"},
		{"an error", file, []rule{{everywhere, 500, "no\nleader"}}, false, "Nomad's API at " + address + " failed (500)"},
	} {
		rules = tc.rules
		got := newClient(t, Options{Addresses: []string{address}, TokenFile: tc.file}).Sight(t.Context())
		test.Eq(t, tc.want, got.Reason, test.Sprint(tc.name))
		test.Eq(t, tc.all, got.All, test.Sprint(tc.name))
	}
}
