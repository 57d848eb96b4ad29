package install_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

func TestALockOfSeveralIndexesIsInstalledAsItWasLocked(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		other := p.wheels + "/other"
		matrix := wheeltest.Wheel{Name: "matrix", Version: "2.0"}.Write(t, p.wheels)
		wheeltest.Wheel{Name: "matrix", Version: "1.0"}.Write(t, other)
		wheeltest.Wheel{Name: "matrix", Version: "3.0"}.Write(t, other)
		graphs := wheeltest.Wheel{Name: "graphs", Version: "1.0"}.Write(t, other)
		wheeltest.Wheel{Name: "graphs", Version: "9.9"}.Write(t, p.wheels)
		main, more := wheeltest.Index(t, p.wheels).URL+"/simple", wheeltest.Index(t, other).URL+"/simple"
		r := p.request(t)
		r.Indexes = requirement.Indexes{URL: main, Extra: []string{more}}
		r.Requirements = pylock(t, "name = 'matrix'\nversion = '2.0'", matrix, "name = 'graphs'\nversion = '1.0'", graphs)
		result, err := i.Install(t.Context(), r)
		if err != nil {
			t.Fatalf("%v\n%s", err, lines(err))
		}
		if want := []string{"graphs 1.0", "matrix 2.0"}; !slices.Equal(result.Packages, want) {
			t.Errorf("installed %q", result.Packages)
		}
	})
}

// pylock is a lock of packages and the hashes of their wheels.
func pylock(t *testing.T, packages ...string) *requirement.Set {
	t.Helper()
	lock := "lock-version = '1.0'\ncreated-by = 'a test'\n"
	for pair := range slices.Chunk(packages, 2) {
		lock += fmt.Sprintf("[[packages]]\n%s\nwheels = [{url = 'https://host/file.whl', hashes = {sha256 = '%s'}}]\n", pair[0], pair[1])
	}
	set, err := requirement.Lock("pylock.toml", func(string) ([]byte, error) { return []byte(lock), nil })
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestAProjectIsInstalledWithoutItsDefaultGroups(t *testing.T) {
	i := uv(t)
	p := newPlace(t)
	const hash = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	lock := "version = 1\nrequires-python = '>=3.8'\n[[package]]\nname = 'app'\nversion = '1'\nsource = {virtual = '.'}\ndependencies = [{name = 'hello'}]\n" +
		"[package.dev-dependencies]\ndev = [{name = 'in-dev'}]\nlint = [{name = 'in-lint'}]\n" +
		"[package.metadata]\nrequires-dist = [{name = 'hello'}]\n[package.metadata.requires-dev]\ndev = [{name = 'in-dev'}]\nlint = [{name = 'in-lint'}]\n"
	for _, name := range []string{"hello", "in-dev", "in-lint"} {
		lock += fmt.Sprintf("[[package]]\nname = '%s'\nversion = '1'\nsource = {registry = 'https://pypi.org/simple'}\nwheels = [{url = 'https://host/%s-1-py3-none-any.whl', hash = '%s'}]\n", name, strings.ReplaceAll(name, "-", "_"), hash)
	}
	project := "[project]\nname = 'app'\nversion = '1'\nrequires-python = '>=3.8'\ndependencies = ['hello']\n" +
		"[dependency-groups]\ndev = ['in-dev']\nlint = ['in-lint']\n[tool.uv]\ndefault-groups = ['dev', 'lint']\n"
	r := p.request(t)
	r.Requirements = &requirement.Set{UVLock: &requirement.UVLock{Lock: []byte(lock), Project: []byte(project)}}
	set, err := i.Export(t.Context(), r)
	if err != nil {
		t.Fatalf("%v\n%s", err, lines(err))
	}
	if want := []string{"hello==1 --hash=" + hash}; !slices.Equal(set.Lines, want) {
		t.Errorf("exported %q", set.Lines)
	}
}
