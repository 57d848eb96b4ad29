package install

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestAConnectionThatEndsWithinARecordBrokeOff(t *testing.T) {
	const hello, data = "\x16\x03\x01\x00\x03abc", "\x17\x03\x03\x00\x05hello"
	for text, broke := range map[string]bool{
		"": false, hello: false, hello + data: false, hello + data[:7]: true, hello + data[:3]: true,
		"SSH-2.0-OpenSSH_9.2\r\n": false, // whatever it is, it has no records
	} {
		for _, reader := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text))} {
			r := &tlsReader{Reader: reader, heard: func(int) {}}
			if _, err := io.Copy(io.Discard, r); err != nil {
				t.Fatal(err)
			}
			if err := r.broken(); (err != nil) != broke {
				t.Errorf("%q: %v", text, err)
			}
		}
	}
}
