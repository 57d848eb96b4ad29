// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

type bounded struct {
	Number int              `codec:"number" default:"5" min:"2" max:"7" doc:"N."`
	Below  int              `codec:"below" min:"-3" doc:"B."`
	Above  int              `codec:"above" max:"3" doc:"A."`
	Credit int              `codec:"credit" min:"0" doc:"C."` // 0 is unset, and in range
	Debt   int              `codec:"debt" max:"0" doc:"D."`
	Factor float64          `codec:"factor" default:"1" min:"0.5" max:"1.5" doc:"F."`
	Size   Size             `codec:"size" default:"4KiB" min:"4KiB" max:"8KiB" doc:"S."`
	Wait   Duration         `codec:"wait" default:"1s" min:"1s" max:"1m" doc:"W."`
	List   []int            `codec:"list" min:"2" max:"3" doc:"L."`
	Blocks []logs           `codec:"block" max:"2" doc:"B."`
	Labels map[string]limit `codec:"label" label:"resource" max:"2" doc:"L."`
}

func labels(n int) string {
	var all strings.Builder
	for i := range n {
		fmt.Fprintf(&all, "label \"l%d\" {}\n", i)
	}
	return all.String()
}

// The bound itself is allowed, and nothing beyond it.
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
		"credit = -1":  "credit -1 is too small: use 0 or more",
		"debt = 1":     "debt 1 is too large: use 0 or less",
		"factor = 0.5": "", "factor = 1.5": "",
		"factor = 0.25":      "factor 0.25 is too small: use 0.5 to 1.5",
		"factor = 1.75":      "factor 1.75 is too large: use 0.5 to 1.5",
		"size = \"4KiB\"":    "",
		"size = \"8192\"":    "",
		"size = \"4095\"":    `size "4095" is too small: use "4KiB" to "8KiB"`,
		"size = \"8193\"":    `size "8193" is too large: use "4KiB" to "8KiB"`,
		"wait = \"60s\"":     "",
		"wait = \"999ms\"":   `wait "999ms" is too small: use "1s" to "1m"`,
		"wait = \"60001ms\"": `wait "60001ms" is too large: use "1s" to "1m"`,
		"wait = \"-1s\"":     `wait "-1s" is not a duration: use for example "30s" or "5m"`,
		"list = [1]":         "list has 1 elements: use 2 to 3",
		"list = [1, 2]":      "", "list = [1, 2, 3]": "",
		"list = [1, 2, 3, 4]":           "list has 4 elements: use 2 to 3",
		strings.Repeat("block {}\n", 2): "",
		strings.Repeat("block {}\n", 3): "block has 3 elements: use 2 or less",
		labels(2):                       "",
		labels(3):                       "label has 3 elements: use 2 or less",
	} {
		t.Run(config, func(t *testing.T) {
			_, err := decodeJob(t, s, config)
			if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

// A size beyond what an int64 holds would be a negative one.
func TestSize_RefusesOverflow(t *testing.T) {
	for _, text := range []string{"8388608TiB", "9223372036854775807", "9999999999999999999", "1e400"} {
		n, err := ParseSize(text)
		test.Error(t, err, test.Sprintf("%s: got %d", text, n))
	}
	n, err := ParseSize("8388607TiB")
	must.NoError(t, err)
	test.Eq(t, 8388607<<40, n)
}
