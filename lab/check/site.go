// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"context"
	"os"
	"os/exec"
	"strings"

	"github.com/outrider-dev/outrider/lab/internal/gotool"
)

// Site builds the web site of docs/ in dist/site with Hugo, or serves it with the argument "server".
func Site(ctx context.Context, root string, args ...string) error {
	program, err := gotool.Path(ctx, root, "hugo")
	if err != nil {
		return err
	}
	proxy, err := output(ctx, nil, root, "go", "env", "GOPROXY") // Hugo has its own default for the theme
	if err != nil {
		return err
	}
	site := []string{"--source=docs/site", "--panicOnWarning", "--destination=../../dist/site"}
	cmd := exec.CommandContext(ctx, program, append(site, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "HUGO_MODULE_PROXY="+strings.TrimSpace(proxy))
	return cmd.Run()
}
