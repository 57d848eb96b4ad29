package sysfs

import "testing"

func TestClass_HasName(t *testing.T) {
	for class, want := range map[Class]string{
		{}: "per-interface", {3, 1, 2}: "human interface device", {0xff, 0, 0}: "vendor-specific", {0x4b, 0, 0}: "class 4b",
	} {
		if got := class.Name(); got != want {
			t.Errorf("%s is %q, want %q", class, got, want)
		}
	}
}

func TestID_RoundTrips(t *testing.T) {
	for _, want := range []ID{{0x10c4, 0xea60}, {0x0403, 1}} {
		if got, err := ParseID(want.String()); err != nil || got != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
	for _, wrong := range []string{"", "10c4", "10c4:ea6", "10c4:ea600", "0x10c4:0xea60", "10c4:*"} {
		if got, err := ParseID(wrong); err == nil {
			t.Errorf("%q was read as %s", wrong, got)
		}
	}
}
