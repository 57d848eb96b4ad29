// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nix

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/build"
)

// What Nix would do, but for its sandbox and its own go command: this fetches, builds and checks as the flake says.
func TestPackages_AreBuiltByTheirPhases(t *testing.T) {
	needNix(t)
	names := []string{"exec-lite", "usb-libusb", "remote"} // one of each kind: all have the same phases
	if (build.Builder{Root: root}).Libusb(t.Context()) != nil {
		names[1] = "usb"
	}
	var vendored string
	for _, name := range names {
		source := filepath.Join(t.TempDir(), "source")
		b, err := NewBuild(t.Context(), root, name, source)
		must.NoError(t, err)
		if vendored == "" {
			hash, err := b.Modules(t.Context())
			must.NoError(t, err)
			must.Eq(t, b.VendorHash, hash, must.Sprint("the packages that plugins import have changed: "+
				"run `go tool mage nix:hash`, which writes their hash to nix/packages.nix"))
		} else {
			must.NoError(t, b.Phase(t.Context(), b.PostPatch))
			must.NoError(t, os.Rename(vendored, filepath.Join(source, "vendor")))
		}
		b.install(t, name)
		vendored = filepath.Join(source, "vendor")
	}
}

func (b *Build) install(t *testing.T, name string) {
	t.Helper()
	out := t.TempDir()
	env := []string{"out=" + out, "GOBIN=" + out + "/bin", "GOPROXY=off", "GOSUMDB=off"}
	must.NoError(t, os.MkdirAll(out+"/bin", 0o755))
	must.NoError(t, b.Phase(t.Context(), b.PreBuild, env...), must.Sprint(name))
	// as buildGoModule does
	install := fmt.Sprintf("go install -tags=%s -ldflags='%s -buildid=' ./%s", strings.Join(b.Tags, ","),
		strings.Join(b.Ldflags, " "), strings.Join(b.SubPackages, " ./"))
	must.NoError(t, b.Phase(t.Context(), install, env...), must.Sprint(name))
	must.NoError(t, b.Phase(t.Context(), b.PostInstall, env...), must.Sprint(name))
	must.NoError(t, b.Phase(t.Context(), b.InstallCheckPhase, env...), must.Sprint(name))
	test.FileExists(t, filepath.Join(out, "bin", b.Binary))
	test.FileExists(t, filepath.Join(out, "share/doc", b.Binary, "NOTICE"))
}
