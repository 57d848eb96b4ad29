// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"runtime/debug"
	"strings"
	"sync"

	goversion "github.com/hashicorp/go-version"
)

// version overrides what the build says of itself:
//
//	-ldflags "-X github.com/outrider-dev/outrider/internal/core/plugin.version=1.2.3"
var version string

// unversioned is what a build without a version is. Nomad refuses a plugin whose
// version it cannot parse, as "(devel)".
const unversioned = "0.0.0-dev"

// Version is the plugin's version without a leading v: that of the main module,
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
