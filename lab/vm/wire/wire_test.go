package wire

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func TestFramesArriveAsTheyWereSent(t *testing.T) {
	var b bytes.Buffer
	big := bytes.Repeat([]byte("x"), longest+7)
	for _, f := range []struct {
		k    Kind
		data []byte
	}{{Stdout, []byte("hello")}, {Stdin, nil}, {Stderr, big}} {
		if err := WriteFrame(&b, f.k, f.data); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []struct {
		k Kind
		n int
	}{{Stdout, 5}, {Stdin, 0}, {Stderr, longest}, {Stderr, 7}} {
		k, data, err := ReadFrame(&b)
		if err != nil || k != want.k || len(data) != want.n {
			t.Fatalf("got %c with %d bytes, %v; want %c with %d", k, len(data), err, want.k, want.n)
		}
	}
	if _, _, err := ReadFrame(&b); err != io.EOF {
		t.Errorf("after the last: %v", err)
	}
}

func TestFrameThatIsTooLongOrCutIsAnError(t *testing.T) {
	for name, in := range map[string]string{
		"too long": "o\xff\xff\xff\xff",
		"cut":      "o\x00\x00\x00\x05hel",
		"no end":   "o\x00",
	} {
		if _, _, err := ReadFrame(strings.NewReader(in)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestLineIsReadToItsEndAndNoFurther(t *testing.T) {
	r := strings.NewReader(`{"kernel":"6.1"}` + "\nrest")
	var got Ready
	if err := ReadLine(r, &got); err != nil || got.Kernel != "6.1" {
		t.Fatalf("got %+v, %v", got, err)
	}
	if rest, _ := io.ReadAll(r); string(rest) != "rest" {
		t.Errorf("left %q", rest)
	}
	for _, in := range []string{"", "{", "no json\n"} {
		if err := ReadLine(strings.NewReader(in), &got); err == nil {
			t.Errorf("%q: no error", in)
		}
	}
}
