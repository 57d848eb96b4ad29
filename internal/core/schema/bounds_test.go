// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

type bounded struct {
	Number int      `codec:"number" default:"5" min:"2" max:"7" doc:"N."`
	Below  int      `codec:"below" min:"-3" doc:"B."`
	Above  int      `codec:"above" max:"3" doc:"A."`
	Credit int      `codec:"credit" min:"0" doc:"C."` // an unset option is 0, which is in range
	Debt   int      `codec:"debt" max:"0" doc:"D."`
	Size   Size     `codec:"size" default:"4KiB" min:"4KiB" max:"8KiB" doc:"S."`
	Wait   Duration `codec:"wait" default:"1s" min:"1s" max:"1m" doc:"W."`
}

func TestBounds_AreInclusive(t *testing.T) {
	s := Of[bounded]()
	for config, want := range map[string]string{
		"number = 2": "", "number = 7": "",
		"number = 1":      "number 1 is too small: use 2 to 7",
		"number = 8":      "number 8 is too large: use 2 to 7",
		"below = -3":      "",
		"below = -4":      "below -4 is too small: use -3 or more",
		"below = 1000000": "",
		"above = 3":       "",
		"above = 4":       "above 4 is too large: use 3 or less",
		"above = -100000": "",
		"credit = 0":      "", "debt = 0": "",
		"credit = -1":        "credit -1 is too small: use 0 or more",
		"debt = 1":           "debt 1 is too large: use 0 or less",
		"size = \"4KiB\"":    "",
		"size = \"8192\"":    "",
		"size = \"4095\"":    `size "4095" is too small: use "4KiB" to "8KiB"`,
		"size = \"8193\"":    `size "8193" is too large: use "4KiB" to "8KiB"`,
		"wait = \"60s\"":     "",
		"wait = \"999ms\"":   `wait "999ms" is too small: use "1s" to "1m"`,
		"wait = \"60001ms\"": `wait "60001ms" is too large: use "1s" to "1m"`,
		"wait = \"-1s\"":     `wait "-1s" is not a duration: use for example "30s" or "5m"`,
	} {
		t.Run(config, func(t *testing.T) {
			_, err := decodeJob(t, s, config)
			if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

// Without the check, a size that does not fit in an int64 would become negative.
func TestSize_RefusesOverflow(t *testing.T) {
	for _, text := range []string{"8388608TiB", "9223372036854775807", "9999999999999999999", "1e400"} {
		n, err := ParseSize(text)
		test.Error(t, err, test.Sprintf("%s: got %d", text, n))
	}
	n, err := ParseSize("8388607TiB")
	must.NoError(t, err)
	test.Eq(t, 8388607<<40, n)
}
