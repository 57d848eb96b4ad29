// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/launch"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// A header alone must not make the reader take memory.
func TestFrameReader_TakesNoMoreThanAFrameMayHave(t *testing.T) {
	for typ, most := range map[byte]int{
		FrameEnd: MaxFrame, FrameOutput: MaxOutput + placeSize, FrameStdout: MaxOutput + placeSize, FrameRequest: 0,
	} {
		var b bytes.Buffer
		must.NoError(t, WriteFrame(&b, typ, make([]byte, most)))
		f, err := (&FrameReader{R: &b}).Read()
		must.NoError(t, err)
		test.Eq(t, most, len(f.Data))

		must.NoError(t, WriteFrame(&b, typ, make([]byte, most+1)))
		_, err = (&FrameReader{R: &b}).Read()
		test.ErrorContains(t, err, fmt.Sprintf("frame %q of %d bytes is too long", typ, most+1))
	}
	var b bytes.Buffer
	must.NoError(t, WriteFrame(&b, FrameRequest, make([]byte, MaxBody)))
	f, err := (&FrameReader{R: &b, MaxRequest: MaxBody}).Read()
	must.NoError(t, err)
	test.Eq(t, MaxBody, len(f.Data))
}

func TestError_KeepsItsIdentityAndIsShort(t *testing.T) {
	long := strings.Repeat("long\n", 100_000)
	start := &launch.Error{Stage: launch.StageExec, Message: long, Temporary: true}
	for _, err := range []error{
		errors.New(long), fmt.Errorf("%w: %s", endpoint.ErrEpoch, long), fmt.Errorf("failed: %w", start),
	} {
		for _, e := range []*Error{ToError(err), {Message: long, Kind: ToError(err).Kind, Start: ToError(err).Start}} {
			got := e.Err()
			test.LessEq(t, 1003, len(got.Error()))
			test.StrNotContains(t, got.Error(), "\n")
			test.Eq(t, errors.Is(err, endpoint.ErrEpoch), errors.Is(got, endpoint.ErrEpoch))
			var of *launch.Error
			if errors.As(err, &of) {
				must.True(t, errors.As(got, &of))
				test.True(t, of.Temporary)
			}
		}
	}
	got := (&Error{Start: start}).Err()
	test.LessEq(t, 1003, len(got.Error()))
	test.Eq(t, long, start.Message)
	must.NoError(t, ToError(nil).Err())
}
