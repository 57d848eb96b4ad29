package sysfs

import "testing"

func TestAClassHasANameInWords(t *testing.T) {
	for class, want := range map[Class]string{
		{}: "per-interface", {3, 1, 2}: "human interface device", {0xff, 0, 0}: "vendor-specific", {0x4b, 0, 0}: "class 4b",
	} {
		if got := class.Name(); got != want {
			t.Errorf("%s is %q, want %q", class, got, want)
		}
	}
}
