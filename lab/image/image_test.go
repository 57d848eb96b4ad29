// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package image

import (
	"errors"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/client"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"github.com/testcontainers/testcontainers-go"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestEnsure_LooksInOrder(t *testing.T) {
	no := errors.New("no registry")
	for _, tc := range []struct {
		name, ref               string
		local                   []string
		pull, extend, bootstrap error
		want, wantErr           string
		calls                   string
	}{
		{name: "an image that is here is taken as it is", ref: "mine:1", local: []string{"mine:1", Name}, want: "mine:1"},
		{name: "an image is pulled", ref: "mine:1", want: "mine:1", calls: "pull mine:1"},
		{name: "an image that cannot be had is an error", ref: "mine:1", pull: no, wantErr: "the image mine:1: no registry",
			calls: "pull mine:1"},
		{name: "the image made before is used again", local: []string{Name, upstream}, want: Name},
		{name: "Debian's image that is here gets the packages", local: []string{upstream}, want: Name, calls: "extend"},
		{name: "Debian's image is pulled", want: Name, calls: "pull debian:bookworm-slim, extend"},
		{name: "without packages it is no image, as Nomad needs ip", extend: errors.New("no mirror"), wantErr: "no mirror",
			calls: "pull debian:bookworm-slim, extend"},
		{name: "without a registry one is made", pull: no, want: Name, calls: "pull debian:bookworm-slim, bootstrap"},
		{name: "the error says both reasons", pull: no, bootstrap: errors.New("not root"), wantErr: "no registry\nnot root",
			calls: "pull debian:bookworm-slim, bootstrap"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var calls []string
			m := maker{
				has: func(ref string) bool { return slices.Contains(tc.local, ref) },
				pull: func(ref string) error {
					calls = append(calls, "pull "+ref)
					if tc.pull == nil {
						tc.local = append(tc.local, ref)
					}
					return tc.pull
				},
				extend:    func() error { calls = append(calls, "extend"); return tc.extend },
				bootstrap: func() error { calls = append(calls, "bootstrap"); return tc.bootstrap },
				progress:  func(string, ...any) {},
			}
			got, err := m.ensure(tc.ref)
			if tc.wantErr != "" {
				test.ErrorContains(t, err, tc.wantErr, test.Sprint("error"))
			} else if err != nil || got != tc.want {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
			test.Eq(t, tc.calls, strings.Join(calls, ", "), test.Sprint("calls"))
		})
	}
}

func TestPackages_AreThoseOfTheDockerfile(t *testing.T) {
	got := packages()
	for _, name := range []string{"bash", "ca-certificates", "mount", "python3-venv"} {
		test.SliceContains(t, got, name)
	}
	for _, name := range got {
		test.StrContains(t, dockerfile, " "+name)
		test.RegexMatch(t, regexp.MustCompile(`^[a-z0-9.+-]+$`), name)
	}
	test.SliceNotContains(t, got, "gcc", test.Sprint("it is of another stage"))
}

// Without a registry Ensure does not build by the Dockerfile, so this does, upon the image that there is.
func TestDockerfile_BuildsTheImage(t *testing.T) {
	testsupport.Long(t, "builds a container's image")
	if err := exec.Command("docker", "info").Run(); err != nil {
		t.Skip("docker does not answer")
	}
	const built = "outrider-lab-test:dockerfile"
	ref, err := Ensure(t.Context(), "", t.Logf)
	must.NoError(t, err)
	docker, err := testcontainers.NewDockerClientWithOpts(t.Context())
	must.NoError(t, err)
	defer docker.Close()
	must.NoError(t, extend(t.Context(), docker, built, client.ImageBuildOptions{
		BuildArgs: map[string]*string{"DEBIAN": &ref}, NoCache: true,
	}))
	t.Cleanup(func() {
		_, err := exec.Command("docker", "rmi", built).CombinedOutput()
		test.NoError(t, err)
	})
	for _, program := range []string{"/bin/ip", "/usr/bin/python3"} {
		out, err := exec.Command("docker", "run", "--rm", "--network=none", built, "test", "-x", program).CombinedOutput()
		must.NoError(t, err, must.Sprintf("%s: %s", program, out))
	}
}

func TestMessages_ReturnTheDaemonsError(t *testing.T) {
	test.NoError(t, messages(strings.NewReader(`{"stream":"Step 1"}{"status":"ok"}`)))
	err := messages(strings.NewReader(`{"stream":"Step 1"}{"error":"apt failed"}{"stream":"x"}`))
	test.EqError(t, err, "apt failed")
	test.Error(t, messages(strings.NewReader(`{"stream":`)),
		test.Sprint("a stream that breaks off is taken for a good one"))
}
