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

type modest struct {
	Command string `codec:"command" required:"true" doc:"The program."`
	Logs    logs   `codec:"logs" doc:"Output."`
}

func (*modest) Refused() []string { return []string{"image", "mount"} }

func (*modest) Refuse(written []string) error {
	return fmt.Errorf("%s: not here", strings.Join(written, ", "))
}

func TestRefused_OptionsOfAnyFormGetTheirMessage(t *testing.T) {
	s := Of[modest]()
	for config, want := range map[string]string{
		`image = "x"`:                                                 "image: not here",
		"command = \"x\"\nimage = 1":                                  "image: not here",
		"command = \"x\"\nimage = []":                                 "image: not here",
		"mount = [{ a = 1 }, { b = [true, 2] }]":                      "mount: not here",
		"mount {\n a = 1\n}\nmount {\n c { d = 1 }\n}\nimage = \"x\"": "image, mount: not here",
		"command = \"x\"\nimage = null":                               "",
		"image = null":                                                "command is empty: it must be set",
		"logs { max_files = 0 }\nimage = \"x\"":                       "image: not here",
	} {
		_, err := decodeJob(t, s, config)
		got := ""
		if err != nil {
			got = err.Error()
		}
		test.Eq(t, want, got, test.Sprint(config))
	}
}

func TestRefused_OptionsOfAnAgentGetTheirMessage(t *testing.T) {
	_, err := decodeAgent(t, Of[modest](), `command = "x" mount { a = 1 }`)
	test.EqError(t, err, "mount: not here")
}

func TestRefused_OptionsAreNotDocumented(t *testing.T) {
	s := Of[modest]()
	test.StrNotContains(t, s.Markdown()+s.Example(""), "image")
	test.StrContains(t, s.Markdown(), "| `command` | string | required |")
}

type twice struct {
	Command string `codec:"command" doc:"The program."`
}

func (twice) Refused() []string     { return []string{"command"} }
func (twice) Refuse([]string) error { return nil }

func TestRefused_OptionIsDeclaredOnce(t *testing.T) {
	defer func() { must.StrContains(t, fmt.Sprint(recover()), `refused option "command" is declared twice`) }()
	Of[twice]()
}
