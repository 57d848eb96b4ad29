package launch

import (
	"errors"
	"io/fs"
	"reflect"
	"syscall"
	"testing"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// fill sets everything below v to something, so that a field that the wire
// forgets is seen.
func fill(v reflect.Value, n *uint64) {
	*n++
	switch v.Kind() {
	case reflect.String:
		v.SetString("s" + string(rune('a'+*n%26)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(-int64(*n))
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(*n)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 3, 3))
		for i := range 3 {
			fill(v.Index(i), n)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	default:
		panic("the wire has no " + v.Kind().String())
	}
}

func TestWire_CarriesEveryField(t *testing.T) {
	var full Spec
	n := uint64(0)
	fill(reflect.ValueOf(&full).Elem(), &n)
	for name, want := range map[string]Spec{
		"everything": full,
		"nothing":    {},
		"empty user": {Command: task.Command{User: &task.User{}}},
		"empty args": {Command: task.Command{Args: []string{"", ""}}},
	} {
		b, err := encodeSpec(&want)
		if err != nil {
			t.Fatal(err)
		}
		var got Spec
		if !decodeSpec(b[headerSize:], &got) || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
		for cut := headerSize; cut < len(b); cut++ {
			if decodeSpec(b[headerSize:cut], new(Spec)) {
				t.Fatalf("%s: %d of %d bytes were taken for the whole", name, cut, len(b))
			}
		}
	}
}

func TestWire_RefusesNUL(t *testing.T) {
	if _, err := encodeSpec(&Spec{Command: task.Command{Args: []string{"a\x00b"}}}); !errors.Is(err, errNUL) {
		t.Errorf("got %v", err)
	}
}

func TestWire_CarriesErrors(t *testing.T) {
	want := &Error{Stage: StageExec, Message: "no \"such\" thing", Errno: syscall.ENOENT, Temporary: true}
	got := decodeError(encodeError(want))
	if !reflect.DeepEqual(got, want) || !errors.Is(got, fs.ErrNotExist) {
		t.Errorf("got %+v", got)
	}
	for _, b := range []string{"", "x", "E", "E\x01"} {
		if got := decodeError([]byte(b)); got != nil {
			t.Errorf("%q became %+v", b, got)
		}
	}
}
