package lab

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/outrider-dev/outrider/lab/nomad"
)

func TestPythonsAreShownWithWhatBuildsEnvironments(t *testing.T) {
	python := func(attributes map[string]string) []nomad.Driver {
		return []nomad.Driver{{Name: "exec-lite"}, {Name: "python", Attributes: attributes}}
	}
	for _, tc := range []struct {
		name    string
		drivers []nomad.Driver
		want    string
	}{
		{"without the driver", []nomad.Driver{{Name: "exec-lite"}}, ""},
		{"without interpreters", python(map[string]string{"version": "1"}), ""},
		{"without an installer", python(map[string]string{"versions": "3.11.2"}), "Python   3.11.2"},
		{
			"with all", python(map[string]string{"versions": "3.11.2,3.9.16", "installer": "uv", "uv.version": "0.8.13"}),
			"Python   3.11.2,3.9.16; environments are built with uv 0.8.13",
		},
	} {
		if got := pythons(tc.drivers); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestTheLabIsNotWhereTasksCantReachIt(t *testing.T) {
	open := t.TempDir() // and the directory that it is in is closed
	closed := filepath.Dir(open)
	if reachable(open) {
		t.Errorf("%s is reachable, though %s is closed to others", open, closed)
	}
	if err := os.Chmod(closed, 0o711); err != nil {
		t.Fatal(err)
	}
	if got := reachable(open); got != reachable(filepath.Dir(closed)) {
		t.Errorf("%s: reachable is %v, unlike what it is in", open, got)
	}
	want := filepath.Join(open, ".lab")
	if got := defaultDir(open); reachable(open) && got != want {
		t.Errorf("the lab of a checkout that is open is in %s, want %s", got, want)
	}
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := defaultDir(open); (got == want) == (os.Geteuid() == 0) || filepath.IsAbs(got) == false {
		t.Errorf("the lab of a checkout that is closed is in %s", got)
	}
}
