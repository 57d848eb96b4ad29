// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/dataset/stream"
)

func TestRemote_TellsWhoseFaultItIs(t *testing.T) {
	for said, want := range map[string]string{
		"volume x was not received: " + stream.ErrTruncated.Error(): "the disk is gone",
		"volume x was received already":                             "receive on host h: volume x was received already",
	} {
		shell := filepath.Join(t.TempDir(), "shell")
		text := "#!/bin/sh\necho " + quoteShell(said) + " >&2\nexit 1\n"
		must.NoError(t, os.WriteFile(shell, []byte(text), 0o755))
		r := remote{shell: shell, host: "h"}
		_, err := r.run(t.Context(), func(io.Writer) error { return errors.New("the disk is gone") }, "receive")
		must.EqError(t, err, want)
	}
}
