// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package session

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestWaitForOutput_WaitsForALateReader(t *testing.T) {
	r, w, err := os.Pipe()
	must.NoError(t, err)
	defer w.Close() // w stays open, as if a background process held it
	want := bytes.Repeat([]byte("x"), 60_000)
	_, err = w.Write(want)
	must.NoError(t, err)
	var got bytes.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		time.Sleep(500 * time.Millisecond)
		_, _ = io.Copy(&got, r)
	}()
	waitForOutput(t.Context(), read, r)
	r.Close()
	<-read
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes of %d were read", got.Len(), len(want))
	}
}
