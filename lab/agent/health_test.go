package agent

import (
	"context"
	"strings"
	"testing"
)

// fake has the processes of one look after the other.
type fake struct {
	Agent
	looks []map[string]int
}

func (f *fake) Info() Info {
	return Info{Plugins: []string{"nomad-driver-a", "nomad-device-b"}}
}

func (f *fake) PluginPIDs(context.Context) (map[string]int, error) {
	now := f.looks[0]
	f.looks = f.looks[1:]
	return now, nil
}

func TestDevicePluginIsHealthyOnceItsProcessStays(t *testing.T) {
	runs := func(pid int) map[string]int { return map[string]int{"nomad-device-b": pid} }
	for _, tc := range []struct {
		name  string
		looks []map[string]int
		want  string
	}{
		{"the same at two looks", []map[string]int{runs(7), runs(7)}, ""},
		{"seen once", []map[string]int{runs(7)}, "has only just started"},
		{"another each time", []map[string]int{runs(7), runs(8), runs(9)}, "has only just started"},
		{"gone", []map[string]int{runs(7), {"nomad-driver-a": 7}}, "does not run"},
		{"back", []map[string]int{{}, runs(8), runs(8)}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &fake{looks: tc.looks}
			var seen map[string]int
			var err error
			for range tc.looks {
				seen, err = devicePlugins(t.Context(), f, seen)
			}
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
