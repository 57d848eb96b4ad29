package install_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

func TestAPackageMayHaveAnotherDirectoryForPackagesAmongItsData(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		wheeltest.Wheel{Name: "another", Version: "1.0", Files: map[string]string{
			"another-1.0.data/data/lib/an/site-packages/text.txt":                   "text",
			"another-1.0.data/data/lib/an/site-packages/odd-2.0.dist-info/METADATA": "Name: odd\nVersion: 2.0\n",
		}}.Write(t, p.wheels)
		result, _ := must(t, i, p.request(t, "another"))
		if want := []string{"another 1.0"}; !slices.Equal(result.Packages, want) {
			t.Errorf("installed %q, not %q", result.Packages, want)
		}
		if _, err := os.Stat(filepath.Join(p.final(), "lib/an/site-packages/text.txt")); err != nil {
			t.Error(err)
		}
		if compiled, _ := filepath.Glob(filepath.Join(p.final(), "lib/python*/site-packages/__pycache__/*.pyc")); len(compiled) == 0 {
			t.Error("its modules are not compiled")
		}
	})
}
