// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package volume

import (
	"bytes"
	"testing"

	"github.com/shoenig/test/must"
)

// A call that is answered twice has made a volume that Nomad does not know: the error lets create remove it.
func TestAnswer_IsWrittenOnce(t *testing.T) {
	var out bytes.Buffer
	answer := answerOnce(&out)
	must.NoError(t, answer(map[string]string{"error": "the file system hangs"}))
	must.ErrorIs(t, answer(&Volume{"/volume", 1}), errAnswered)
	must.Eq(t, "{\"error\":\"the file system hangs\"}\n", out.String())
}
