// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// words has a regular expression of git-grep(1) on each line, and the words to use instead.
//
//go:embed words.txt
var words string

// lintWords finds phrases that read as translated, in pages and Go files.
func lintWords(ctx context.Context, root string) error {
	var found []error
	for line := range strings.Lines(words) {
		phrase, better, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " => ")
		out, err := output(ctx, nil, root, "git", "grep", "-nEIi", "-e", phrase, "--", "*.md", "*.go")
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == 1 { // no match
			continue
		}
		found = append(found, err)
		if err == nil {
			found = append(found, fmt.Errorf("write %q instead of %q:\n%s", better, phrase, out))
		}
	}
	return errors.Join(found...)
}
