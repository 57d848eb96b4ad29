// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"

	goversion "github.com/hashicorp/go-version"
)

// version, if it is set when the binary is linked, replaces the version in the build information:
//
//	-ldflags "-X github.com/outrider-dev/outrider/internal/core/plugin.version=1.2.3"
var version string

// unversioned is the version that a build reports if it has no valid version. Nomad refuses a plugin whose version it
// can't parse, such as "(devel)".
const unversioned = "0.0.0-dev"

// Version returns the plugin's version without a leading v. It is the version of the main module,
// which Go stamps from the tag plugins/<name>/v<version>.
var Version = sync.OnceValue(func() string {
	if version != "" {
		return normal(version)
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unversioned
	}
	return normal(info.Main.Version)
})

func normal(v string) string {
	v = strings.TrimPrefix(v, "v")
	if _, err := goversion.NewVersion(v); err != nil {
		return unversioned
	}
	return v
}

// untagged matches the versions that the go command generates for a commit without a tag
// (https://go.dev/ref/mod#pseudo-versions), and for uncommitted changes.
var untagged = regexp.MustCompile(`[-.][0-9]{14}-[0-9a-f]{12}(\+|$)|\+dirty$`)

// versionText returns the output of the version command: the version, marked if the build has no tag, and the commit.
func versionText(binary, version string, info *debug.BuildInfo) string {
	settings := map[string]string{}
	if info != nil {
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
	}
	what := ""
	if version == unversioned || untagged.MatchString(version) {
		what = " (untagged build)"
	}
	if settings["vcs.modified"] == "true" {
		what = " (untagged build, with uncommitted changes)"
	}
	commit := "of an unknown commit"
	if revision := settings["vcs.revision"]; revision != "" {
		commit = fmt.Sprintf("of commit %s (%s)", revision, settings["vcs.time"])
	}
	return fmt.Sprintf("%s %s%s\n%s, by %s for %s/%s\n", binary, version, what, commit, runtime.Version(), runtime.GOOS,
		runtime.GOARCH)
}
