// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"reflect"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

type choiceOf struct {
	ID     Strings `codec:"id" doc:"Ids."`
	Serial Strings `codec:"serial" doc:"Serial numbers."`
}

type bind struct {
	From string `codec:"from" required:"true" doc:"On the host."`
	Mode string `codec:"mode" default:"ro" enum:"ro,rw" doc:"How."`
}

type named struct {
	choiceOf
	Kinds []string          `codec:"kinds" doc:"Kinds."`
	Names map[string]string `codec:"names" doc:"Names."`
	Count int               `codec:"count" default:"1" min:"1" max:"9" doc:"How many."`
	Size  Size              `codec:"size" default:"1k" doc:"Size."`
	Binds []bind            `codec:"bind" doc:"Binds."`
}

func (n named) Validate() error {
	if len(n.ID) == 0 {
		return constError("names no id")
	}
	return nil
}

type labelled struct {
	Devices map[string]named    `codec:"device" label:"type" doc:"Devices."`
	Exclude map[string]choiceOf `codec:"exclude" doc:"No devices."`
	Only    Strings             `codec:"only" doc:"Only these."`
	First   choiceOf            `codec:"first" doc:"First."`
	Last    *choiceOf           `codec:"last" doc:"Last."`
	Period  Duration            `codec:"period" default:"30s" doc:"How often."`
}

var labelledSchema = Of[labelled]()

// eachWay runs a test twice, with the decoder of a job's configuration and with that of an agent's configuration.
func eachWay(t *testing.T, test func(t *testing.T, decode func(string) (labelled, error))) {
	t.Run("job", func(t *testing.T) {
		test(t, func(text string) (labelled, error) { return decodeJob(t, labelledSchema, text) })
	})
	t.Run("agent", func(t *testing.T) {
		test(t, func(text string) (labelled, error) { return decodeAgent(t, labelledSchema, text) })
	})
}

func TestStrings_AcceptOneStringOrAList(t *testing.T) {
	const text = `
		only = "x"
		period = "1m"
		device "zigbee" {
			id     = "10c4:ea60"
			serial = ["0001", "0002"]
			kinds  = ["tty"]
			names {
				tty       = "/dev/ttyACM0"
			}
			bind { from = "/a" }
			bind {
				from = "/b"
				mode = "rw"
			}
			count = 3
		}
		device "gps" {
			id = ["1546:01a?", "1546:01b?"]
			names = { "tty-if01" = "/dev/gps" }
		}
		exclude "mouse" { id = "046d:*" }
		first { id = "1" }
		last { serial = ["2"] }`
	want := labelled{
		Devices: map[string]named{
			"zigbee": {choiceOf: choiceOf{ID: Strings{"10c4:ea60"}, Serial: Strings{"0001", "0002"}}, Kinds: []string{"tty"},
				Count: 3, Size: "1k",
				Names: map[string]string{"tty": "/dev/ttyACM0"}, Binds: []bind{{"/a", "ro"}, {"/b", "rw"}}},
			"gps": {choiceOf: choiceOf{ID: Strings{"1546:01a?", "1546:01b?"}}, Count: 1, Size: "1k",
				Names: map[string]string{"tty-if01": "/dev/gps"}, Binds: []bind{}},
		},
		Exclude: map[string]choiceOf{"mouse": {ID: Strings{"046d:*"}}},
		Only:    Strings{"x"},
		First:   choiceOf{ID: Strings{"1"}},
		Last:    &choiceOf{Serial: Strings{"2"}},
		Period:  "1m",
	}
	eachWay(t, func(t *testing.T, decode func(string) (labelled, error)) {
		got, err := decode(text)
		must.NoError(t, err)
		test.True(t, reflect.DeepEqual(got, want), test.Sprintf("got  %+v\nwant %+v", got, want))
	})
}

func TestLabelledBlock_ErrorsAreOneSentence(t *testing.T) {
	for name, c := range map[string]struct{ config, want string }{
		"a number": {"device \"zwave\" {\nid = 1624\n}",
			`device "zwave": id must be a string, but is the number 1624 (0x0658): put it in quotes`},
		"a number in a list": {`device "zwave" { id = ["0658:0200", 1624] }`,
			`device "zwave": id[1] must be a string, but is the number 1624 (0x0658): put it in quotes`},
		"a number at the top": {`only = 10`, `only must be a string, but is the number 10 (0x000a): put it in quotes`},
		"a number in a block": {`first { serial = 0001 }`,
			`first.serial must be a string, but is the number 1 (0x0001): put it in quotes`},
		"a broken number":  {`only = 1.5`, `only 1.5 is not a string: put it in quotes`},
		"a bool":           {`device "zwave" { id = true }`, `device "zwave": id true is not a string: put it in quotes`},
		"a list in a list": {`only = [["a"]]`, `only[0] is neither a string nor a list of strings`},
		"a block":          {`only { a = "b" }`, `only[0] is neither a string nor a list of strings`},
		"an unknown option": {`device "zwave" { serail = "1" }`,
			`device "zwave": Invalid label: No argument or block type is named "serail". Did you mean "serial"?`},
		"a wrong type": {`device "zwave" { count = "many" }`,
			`device "zwave": Incorrect attribute value type: Inappropriate value for attribute "count": a number is required.`},
		"not whole": {"device \"zwave\" {\nid = \"a\"\ncount = 1.5\n}",
			`device "zwave": count 1.5 is not a whole number`},
		"out of range": {"device \"zwave\" {\nid = \"a\"\ncount = 10\n}",
			`device "zwave": count 10 is too large: use 1 to 9`},
		"not a size": {"device \"zwave\" {\nid = \"a\"\nsize = \"big\"\n}",
			`device "zwave": size "big" is not a size: use for example "512KiB" or "10MiB"`},
		"in a repeated block": {"device \"zwave\" {\nid = \"a\"\nbind { mode = \"rw\" }\n}",
			`device "zwave": Missing required argument: The argument "from" is required, but no definition was found.`},
		"an enum, repeated": {"device \"zwave\" {\nid = \"a\"\nbind {\nfrom = \"/\"\nmode = \"rx\"\n}\n}",
			`device "zwave": bind[0].mode "rx" is not known: use "ro" or "rw"`},
		"custom rule": {`device "zwave" { serial = "1" }`, `device "zwave": names no id`},
		"no label":    {`device { id = "1" }`, `device has no label: write device "TYPE" { … }`},
		"no block":    {`device = "zwave"`, `device is not a block: write device "TYPE" { … }`},
		"a label twice": {"device \"a\" { id = \"1\" }\ndevice \"a\" { id = \"2\" }",
			`device "a" is declared twice: give each its own type`},
		"two mistakes": {"device \"a\" { id = 1 }\ndevice \"b\" { serail = \"2\" }",
			`device "a": id must be a string, but is the number 1 (0x0001): put it in quotes; device "b": Invalid label: ` +
				`No argument or block type is named "serail". Did you mean "serial"?`},
		"an unknown top level": {`devise "a" { id = "1" }`,
			`Invalid label: No argument or block type is named "devise". Did you mean "device"?`},
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, decode func(string) (labelled, error)) {
				_, err := decode(c.config)
				switch {
				case err == nil:
					t.Error("accepted")
				case err.Error() != c.want:
					t.Errorf("got  %s\nwant %s", err, c.want)
				}
			})
		})
	}
}

func TestStrings_ReportAnUnquotedHexNumber(t *testing.T) {
	_, err := decodeAgent(t, labelledSchema, "device \"zwave\" {\nid = 0x0658\n}") // HCL1 only: HCL2 has no hex numbers
	test.EqError(t, err, `device "zwave": id must be a string, but is the number 1624 (0x0658): put it in `+
		`quotes`)
}

func TestLabelledBlock_TextIsExpandedOnce(t *testing.T) {
	got, err := decodeAgent(t, labelledSchema, `exclude "a" { serial = "$${x}%%{y}" }`)
	must.NoError(t, err, must.Sprintf("got %+v", got.Exclude))
	test.Eq(t, "${x}%{y}", got.Exclude["a"].Serial[0], test.Sprintf("got %+v", got.Exclude))
}

func TestLabelledBlock_SharesNoValuesWithOtherBlocks(t *testing.T) {
	type shelf struct {
		Books []string          `codec:"books" doc:"Books."`
		Notes map[string]string `codec:"notes" doc:"Notes."`
		Bind  *bind             `codec:"bind" doc:"A bind."`
	}
	type house struct {
		Shelves map[string]shelf `codec:"shelf" doc:"Shelves."`
		Cellar  struct {
			Shelves map[string]shelf `codec:"shelf" doc:"Shelves."`
		} `codec:"cellar" doc:"Cellar."`
	}
	const shelves = `
		shelf "a" {
			books = ["1", "2"]
			notes { x = "y" }
			bind { from = "/" }
		}
		shelf "b" { books = ["3"] }
		shelf "c" {}
`
	want := map[string]shelf{"a": {[]string{"1", "2"}, map[string]string{"x": "y"}, &bind{"/", "ro"}},
		"b": {Books: []string{"3"}}, "c": {}}
	got, err := decodeAgent(t, Of[house](), shelves+"cellar {"+shelves+"}")
	must.NoError(t, err)
	must.Eq(t, want, got.Shelves, must.Sprintf("got  %+v\nwant %+v, in both places", got, want))
	test.Eq(t, want, got.Cellar.Shelves, test.Sprintf("got  %+v\nwant %+v, in both places", got, want))
}

func TestLabelledBlock_IsDocumented(t *testing.T) {
	got := Table(labelledSchema.Doc())
	for _, want := range []string{
		"| `device` | block, labelled with its type |  | Devices. |\n| `device.id` | string or list of strings |  | Ids. |\n",
		"| `device.names` | map of strings |  | Names. |\n",
		"| `device.bind.from` | string | required | On the host. |\n",
		"| `only` | string or list of strings |  | Only these. |\n",
	} {
		test.StrContains(t, got, want, test.Sprintf("no %s in", want))
	}
	example := labelledSchema.Example("")
	for _, want := range []string{"# device \"TYPE\" {\n#   # Ids.\n#   # id = \"\"\n", "# only = \"\"\n"} {
		test.StrContains(t, example, want, test.Sprintf("no %s in", want))
	}
}
