package install

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
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

// slow sends a message, and ends some time after.
type slow struct {
	message io.Reader
	end     time.Duration
	err     error
}

func (s *slow) Read(p []byte) (int, error) {
	n, err := s.message.Read(p)
	if err == io.EOF {
		time.Sleep(s.end)
		err = s.err
	}
	return n, err
}

// late takes some time to read what it is sent.
type late time.Duration

func (l late) Write(p []byte) (int, error) {
	time.Sleep(time.Duration(l))
	return len(p), nil
}

func TestAServerMayStallBeforeItClosesTheConnection(t *testing.T) {
	for _, test := range []struct {
		end, late time.Duration
		hungUp    int
	}{
		{0, 0, 1}, {15 * time.Second, 0, 1}, {0, time.Minute, 1},
		{time.Minute, 0, 0}, // which is how an idle connection ends
	} {
		t.Run(fmt.Sprintf("%v after a message that took %v", test.end, test.late), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &egress{failed: map[string]failure{}}
				const data = "\x17\x03\x03\x00\x05hello"
				answers := &tlsReader{Reader: &slow{strings.NewReader(data), test.end, io.EOF}, heard: func(int) {}}
				if _, err := io.Copy(late(test.late), answers); err != nil {
					t.Fatal(err)
				}
				e.closedByOther(&url.URL{Scheme: "https", Host: "host"}, answers)
				if len(e.hungUp) != test.hungUp || len(e.failed) > 0 {
					t.Errorf("hung up %v, failed %v", e.hungUp, e.failed)
				}
			})
		})
	}
}

func TestAResetOfAConnectionThatWasIdleIsNoFailure(t *testing.T) {
	const data = "\x17\x03\x03\x00\x05hello"
	reset := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	for _, test := range []struct {
		text           string
		err            error
		end            time.Duration
		failed, hungUp int
	}{
		{data, reset, time.Minute, 0, 0},
		{data, io.ErrUnexpectedEOF, time.Minute, 0, 0}, // through a proxy that is reached by TLS
		{data, reset, 0, 0, 1},
		{data[:7], reset, time.Minute, 1, 0},
		{data[:7], io.ErrUnexpectedEOF, 0, 1, 0},
		{"", reset, 0, 1, 0},
	} {
		t.Run(fmt.Sprintf("%v after %v and %d bytes", test.err, test.end, len(test.text)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &egress{failed: map[string]failure{}}
				answers := &tlsReader{Reader: &slow{strings.NewReader(test.text), test.end, test.err}, heard: func(int) {}}
				if _, err := io.Copy(io.Discard, answers); err != test.err {
					t.Fatal(err)
				}
				e.closedByOther(&url.URL{Scheme: "https", Host: "host"}, answers)
				if len(e.failed) != test.failed || len(e.hungUp) != test.hungUp {
					t.Errorf("failed %v, hung up %v", e.failed, e.hungUp)
				}
			})
		})
	}
}
