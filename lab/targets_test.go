// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"strings"
	"testing"
)

type demo struct{}

func (demo) Reload(context.Context, *string) error { return nil }
func (demo) Run(context.Context, string) error     { return nil }

func TestCheckTargets_RefusesUnknownTargets(t *testing.T) {
	for args, ok := range map[string]bool{
		"":                               true,
		"test demo:reload":               true,
		"demo:reload -plugin=python":     true,
		"demo:RUN python demo:reload":    true,
		"demo:run":                       true, // mage itself says that its argument is missing
		"demo:reload python":             false,
		"demo:run python python":         false,
		"demo:reload -plugin=x test nix": false,
	} {
		err := CheckTargets(strings.Fields(args), []string{"test"}, demo{})
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "-plugin=") {
			t.Errorf("%q: %v", args, err)
		}
	}
}
