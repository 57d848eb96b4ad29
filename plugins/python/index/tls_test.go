// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package index

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/shoenig/test/must"
)

func TestTLSReader_TellsWhatBrokeOff(t *testing.T) {
	const hello, data = "\x16\x03\x01\x00\x03abc", "\x17\x03\x03\x00\x05hello"
	reset := errors.New("connection reset by peer")
	for _, test := range []struct {
		text  string
		err   error
		broke bool
	}{
		{"", io.EOF, false},
		{hello, io.EOF, false},
		{hello + data, io.EOF, false},
		{hello + data[:7], io.EOF, true},
		{hello + data[:3], io.EOF, true},
		{"SSH-2.0-OpenSSH_9.2\r\n", io.EOF, false}, // it has no records
		{"", reset, true},
		{data, reset, false}, // of a connection that is idle
		{data, io.ErrUnexpectedEOF, false},
		{data[:7], reset, true},
		{data[:7], io.ErrUnexpectedEOF, true},
		{"SSH-2.0-OpenSSH_9.2\r\n", reset, true},
	} {
		t.Run(fmt.Sprintf("%v after %q", test.err, test.text), func(t *testing.T) {
			source := io.MultiReader(strings.NewReader(test.text), iotest.ErrReader(test.err))
			for _, from := range []io.Reader{source, iotest.OneByteReader(strings.NewReader(test.text))} {
				if test.err != io.EOF && from != source {
					continue
				}
				r := &tlsReader{Reader: from, counted: func(int) {}}
				_, _ = io.Copy(io.Discard, r)
				must.EqOp(t, test.broke, r.broken() != nil)
			}
		})
	}
}
