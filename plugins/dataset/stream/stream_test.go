// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package stream

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

var header = Header{Backend: "btrfs", ID: "1", Name: "data", Namespace: "default", Snapshot: "b", Since: "a",
	Capacity: 1 << 20}

// written returns a stream of these bytes.
func written(t *testing.T, content []byte) []byte {
	var b bytes.Buffer
	must.NoError(t, Write(&b, header, func(w io.Writer) error {
		for rest := content; len(rest) > 0; {
			n := min(len(rest), 1+rand.IntN(2*maxFrame))
			if _, err := w.Write(rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
		return nil
	}))
	return b.Bytes()
}

func random(n int) []byte {
	content := make([]byte, n)
	for i := range content {
		content[i] = byte(rand.Uint32())
	}
	return content
}

func TestStream_IsReadAsItWasWritten(t *testing.T) {
	for _, size := range []int{0, 1, maxFrame - 1, maxFrame, maxFrame + 1, 5*maxFrame + 7} {
		content := random(size)
		h, body, err := Read(bytes.NewReader(written(t, content)))
		must.NoError(t, err)
		want := header
		want.Format = format
		must.Eq(t, want, h)
		got, err := io.ReadAll(body)
		must.NoError(t, err)
		test.True(t, bytes.Equal(content, got))
		test.True(t, body.Complete())
		test.EqOp(t, int64(size), body.Count())
	}
}

func TestStream_TruncatedIsNeverWhole(t *testing.T) {
	whole := written(t, random(3000))
	start := bytes.IndexByte(whole, '\n') + 1
	for n := range len(whole) {
		_, body, err := Read(bytes.NewReader(whole[:n]))
		if n < start {
			must.Error(t, err)
			continue
		}
		must.NoError(t, err)
		_, err = io.ReadAll(body)
		must.ErrorIs(t, err, ErrTruncated, must.Sprintf("after %d of %d bytes", n, len(whole)))
		must.False(t, body.Complete())
	}
}

// The file system could take what it has for all of it.
func TestStream_LastFrameWaitsForTheEnd(t *testing.T) {
	whole := written(t, random(maxFrame+3000))
	for _, left := range []int{1, 4, 8} {
		_, body, err := Read(bytes.NewReader(whole[:len(whole)-left]))
		must.NoError(t, err)
		got, err := io.ReadAll(body)
		must.ErrorIs(t, err, ErrTruncated)
		must.LessEq(t, maxFrame, len(got))
	}
}

func TestStream_ChangeIsSeen(t *testing.T) {
	whole := written(t, random(300))
	for n := bytes.IndexByte(whole, '\n') + 1; n < len(whole); n++ {
		changed := bytes.Clone(whole)
		changed[n] ^= 1
		_, body, err := Read(bytes.NewReader(changed))
		must.NoError(t, err)
		_, err = io.ReadAll(body)
		must.Error(t, err, must.Sprintf("byte %d", n))
	}
}

func TestStream_OfAFailedSendHasNoEnd(t *testing.T) {
	var b bytes.Buffer
	failed := errors.New("killed")
	err := Write(&b, header, func(w io.Writer) error {
		_, err := w.Write([]byte("part"))
		return errors.Join(err, failed)
	})
	must.ErrorIs(t, err, failed)
	_, body, err := Read(&b)
	must.NoError(t, err)
	_, err = io.ReadAll(body)
	must.ErrorIs(t, err, ErrTruncated)
}

func TestRead_RefusesWhatIsNoStream(t *testing.T) {
	for input, want := range map[string]string{
		"":                                       "nothing was sent",
		"btrfs-stream\x00":                       "no stream of",
		"{}\n":                                   "no stream of",
		"not json\n":                             "no stream of",
		strings.Repeat("x", 2*maxHeader):         "no stream of",
		`{"format":"outrider-dataset-9"}` + "\n": `has format "outrider-dataset-9"`,
	} {
		_, _, err := Read(strings.NewReader(input))
		must.ErrorContains(t, err, want)
	}
}
