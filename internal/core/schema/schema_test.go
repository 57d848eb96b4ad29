// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/jobspec2"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"github.com/zclconf/go-cty/cty/msgpack"
)

type killMode string

type common struct {
	StateDir string `codec:"state_dir" default:"/var/lib/x" doc:"Where state is kept."`
}

type logs struct {
	MaxFiles    int  `codec:"max_files" default:"10" min:"1" max:"100" doc:"Files kept."`
	MaxFileSize Size `codec:"max_file_size" default:"10MiB" min:"4KiB" doc:"Size of a file."`
}

type mount struct {
	Source  string   `codec:"source" required:"true" doc:"The host's path."`
	Options []string `codec:"options" doc:"Mount options."`
	Depth   int      `codec:"depth" default:"2" doc:"How deep."`
}

type limit struct {
	Soft int64  `codec:"soft" doc:"Soft limit."`
	Hard *int64 `codec:"hard" doc:"Hard limit."`
}

func (l limit) Validate() error {
	if l.Hard != nil && *l.Hard < l.Soft {
		return fmt.Errorf("hard %d is below soft %d", *l.Hard, l.Soft)
	}
	return nil
}

type testConfig struct {
	common
	Command  string            `codec:"command" required:"true" doc:"The program."`
	Args     []string          `codec:"args" doc:"Its arguments."`
	KillMode killMode          `codec:"kill_mode" default:"process" enum:"process,group,all" doc:"Which processes a stop signal goes to."`
	Nice     int               `codec:"nice" min:"-20" max:"19" doc:"Priority."`
	Umask    *int              `codec:"umask" doc:"File mode mask."`
	Wait     Duration          `codec:"wait" default:"30s" max:"1h" doc:"How long to wait."`
	Pid      bool              `codec:"pid" default:"true" doc:"Write a pid file."`
	Env      map[string]string `codec:"env" doc:"More environment."`
	Logs     logs              `codec:"logs" doc:"Output."`
	Debug    *logs             `codec:"debug" doc:"Debug output."`
	Mounts   []mount           `codec:"mount" doc:"A mount."`
	Limits   map[string]limit  `codec:"limit" label:"resource" doc:"A limit."`
}

func (c *testConfig) Validate() error {
	if c.Pid && c.Command == "init" {
		return errPidOfInit
	}
	return nil
}

type constError string

func (e constError) Error() string { return string(e) }

const errPidOfInit = constError(`pid and command "init" are mutually exclusive`)

var testSchema = Of[testConfig]()

// decodeJob decodes a task's config block in the same steps as Nomad: from HCL2 in a jobspec to JSON, then, with the
// plugin's specification, to msgpack, and then to the struct.
func decodeJob[T any](t *testing.T, s *Schema[T], config string) (T, error) {
	t.Helper()
	job, err := jobspec2.Parse("job.hcl", strings.NewReader("job \"j\" {\ngroup \"g\" {\ntask \"t\" {\ndriver = "+
		"\"x\"\nconfig {\n"+config+"\n}\n}\n}\n}"))
	must.NoError(t, err, must.Sprint("jobspec"))
	return decodeInterface(t, s, job.TaskGroups[0].Tasks[0].Config)
}

// decodeAgent decodes a plugin's config block as an agent decodes it from an HCL1 configuration file.
func decodeAgent[T any](t *testing.T, s *Schema[T], config string) (T, error) {
	t.Helper()
	written := hclutils.HclConfigToInterface(t, "config { "+config+" }")
	got, err := decodeInterface(t, s, written)
	again, againErr := s.DecodeAgent(written)
	must.True(t, reflect.DeepEqual(got, again),
		must.Sprintf("DecodeAgent differs from what an agent does: %+v, %v and %+v, %v", again, againErr, got, err))
	must.Eq(t, fmt.Sprint(againErr), fmt.Sprint(err),
		must.Sprintf("DecodeAgent differs from what an agent does: %+v, %v and %+v, %v", again, againErr, got, err))
	return got, err
}

func decodeInterface[T any](t *testing.T, s *Schema[T], config any) (T, error) {
	t.Helper()
	var zero T
	spec, diags := hclspecutils.Convert(s.Spec())
	must.False(t, diags.HasErrors(), must.Sprintf("spec: %v", diags))
	value, _, errs := hclutils.ParseHclInterface(config, spec, nil)
	if len(errs) > 0 {
		return zero, Problems(errs)
	}
	var dtc drivers.TaskConfig
	must.NoError(t, dtc.EncodeDriverConfig(value))
	task, err := s.DecodeTask(&dtc)

	data, merr := msgpack.Marshal(value, value.Type())
	must.NoError(t, merr)
	plugin, perr := s.Decode(data)
	must.True(t, reflect.DeepEqual(task, plugin),
		must.Sprintf("task and plugin configuration decode differently: %+v, %+v", task, plugin))
	must.Eq(t, (perr == nil), (err == nil),
		must.Sprintf("task and plugin configuration decode differently: %+v, %+v", task, plugin))
	return task, err
}

func TestDecode_FillsDefaults(t *testing.T) {
	want := testConfig{
		common: common{StateDir: "/var/lib/x"}, Command: "true", KillMode: "process", Wait: "30s", Pid: true,
		Logs: logs{MaxFiles: 10, MaxFileSize: "10MiB"}, Mounts: []mount{},
	}
	for name, decode := range map[string]func(*testing.T, *Schema[testConfig], string) (testConfig, error){
		"job": decodeJob[testConfig], "agent": decodeAgent[testConfig],
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decode(t, testSchema, `command = "true"`)
			must.NoError(t, err)
			test.True(t, reflect.DeepEqual(got, want), test.Sprintf("got  %+v\nwant %+v", got, want))
			def := testSchema.Default()
			def.Command, def.Mounts = "true", []mount{}
			test.True(t, reflect.DeepEqual(def, want), test.Sprintf("Default: got %+v\nwant %+v", def, want))
		})
	}
}

func TestDecode_ReadsEveryOption(t *testing.T) {
	const text = `
		state_dir = "/s"
		command = "run"
		args = ["a", "b c"]
		kill_mode = "all"
		nice = -5
		umask = 0
		wait = "1m"
		pid = false
		env {
			A = "1"
			B_C = "x=y"
		}
		logs { max_files = 3 }
		debug { max_file_size = "64k" }
		mount { source = "/a" }
		mount {
			source = "/b"
			options = ["rw"]
			depth = 7
		}
		limit "nofile" {
			soft = 10
			hard = 9223372036854775807
		}
		limit "core" { soft = 0 }
		`
	umask, hard := 0, int64(math.MaxInt64)
	want := testConfig{
		common: common{StateDir: "/s"}, Command: "run", Args: []string{"a", "b c"}, KillMode: "all", Nice: -5, Umask: &umask,
		Wait: "1m", Env: map[string]string{"A": "1", "B_C": "x=y"},
		Logs:   logs{MaxFiles: 3, MaxFileSize: "10MiB"},
		Debug:  &logs{MaxFiles: 10, MaxFileSize: "64k"},
		Mounts: []mount{{Source: "/a", Depth: 2}, {Source: "/b", Options: []string{"rw"}, Depth: 7}},
		Limits: map[string]limit{"nofile": {Soft: 10, Hard: &hard}, "core": {}},
	}
	for name, decode := range map[string]func(*testing.T, *Schema[testConfig], string) (testConfig, error){
		"job": decodeJob[testConfig], "agent": decodeAgent[testConfig],
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decode(t, testSchema, text)
			must.NoError(t, err)
			test.True(t, reflect.DeepEqual(got, want), test.Sprintf("got  %+v\nwant %+v", got, want))
		})
	}
}

func TestDecode_AcceptsAMapAsBlockOrAttribute(t *testing.T) {
	want := map[string]string{"A": "1", "b.c/d": "2"}
	for name, decode := range map[string]func(*testing.T, *Schema[testConfig], string) (testConfig, error){
		"job": decodeJob[testConfig], "agent": decodeAgent[testConfig],
	} {
		for form, text := range map[string]string{
			"attribute": `env = {
				A = "1"
				"b.c/d" = 2
			}`,
			"block": `env {
				A = "1"
				"b.c/d" = 2
			}`,
		} {
			if name == "job" && form == "block" {
				text, want = strings.Replace(text, `"b.c/d" = 2`, "", 1), map[string]string{"A": "1"} // a key of an HCL2 block must be a name
			} else {
				want = map[string]string{"A": "1", "b.c/d": "2"}
			}
			t.Run(name+" "+form, func(t *testing.T) {
				got, err := decode(t, testSchema, "command = \"x\"\n"+text)
				must.NoError(t, err)
				test.Eq(t, want, got.Env)
			})
		}
	}
}

func TestDecode_TreatsNullInAMapAsEmpty(t *testing.T) {
	got, err := decodeJob(t, testSchema, "command = \"x\"\nenv { A = null }")
	must.NoError(t, err)
	test.Eq(t, map[string]string{"A": ""}, got.Env)
}

func TestValidate_ErrorsAreOneSentence(t *testing.T) {
	for name, c := range map[string]struct{ config, want string }{
		"unknown option": {`comand = "x"` + "\n" + `command = "y"`,
			`Invalid label: No argument or block type is named "comand".`},
		"unknown option, nested": {"command = \"y\"\nlogs { max_file = 1 }",
			`Invalid label: No argument or block type is named "max_file". Did you mean "max_files"?`},
		"required, missing": {`nice = 1`,
			`Missing required argument: The argument "command" is required, but no definition was found.`},
		"required, empty": {`command = ""`, `command is empty: it must be set`},
		"wrong type": {"command = \"y\"\nnice = \"low\"",
			`Incorrect attribute value type: Inappropriate value for attribute "nice": a number is required.`},
		"enum": {"command = \"y\"\nkill_mode = \"tree\"",
			`kill_mode "tree" is not known: use "process", "group" or "all"`},
		"enum, empty": {"command = \"y\"\nkill_mode = \"\"",
			`kill_mode "" is not known: use "process", "group" or "all"`},
		"too large":             {"command = \"y\"\nnice = 30", `nice 30 is too large: use -20 to 19`},
		"too small, nested":     {"command = \"y\"\nlogs { max_files = 0 }", `logs.max_files 0 is too small: use 1 to 100`},
		"not whole":             {"command = \"y\"\nnice = 1.5", `nice 1.5 is not a whole number`},
		"not whole, in a block": {"command = \"y\"\nlogs { max_files = 0.5 }", `logs.max_files 0.5 is not a whole number`},
		"larger than int64": {"command = \"y\"\nlimit \"core\" { soft = 18446744073709551615 }",
			`limit "core": soft 18446744073709551616 is out of range: use -9223372036854775808 to 9223372036854775807`},
		"not a size": {"command = \"y\"\nlogs { max_file_size = \"10 apples\" }",
			`logs.max_file_size "10 apples" is not a size: use for example "512KiB" or "10MiB"`},
		"size too small": {"command = \"y\"\nlogs { max_file_size = 10 }",
			`logs.max_file_size "10" is too small: use "4KiB" or more`},
		"not a duration": {"command = \"y\"\nwait = \"soon\"",
			`wait "soon" is not a duration: use for example "30s" or "5m"`},
		"duration too large": {"command = \"y\"\nwait = \"2h\"", `wait "2h" is too large: use "1h" or less`},
		"in a repeated block": {"command = \"y\"\nmount { source = \"/a\" }\nmount { source = \"\" }",
			`mount[1].source is empty: it must be set`},
		"custom rule": {`command = "init"`, `pid and command "init" are mutually exclusive`},
		"a rule of a block": {"command = \"y\"\nlimit \"core\" {\nsoft = 2\nhard = 1\n}",
			`limit "core": hard 1 is below soft 2`},
		"two mistakes": {"command = \"\"\nnice = " +
			"-21", `command is empty: it must be set; nice -21 is too small: use -20 to 19`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := decodeJob(t, testSchema, c.config)
			must.Error(t, err, must.Sprint("accepted"))
			test.Eq(t, c.want, err.Error(), test.Sprintf("got  %s\nwant", err))
		})
	}
}

func TestDecode_ReturnsDefaultsForAnEmptyBody(t *testing.T) {
	s := Of[common]()
	got, err := s.Decode(nil)
	must.NoError(t, err)
	must.EqOp(t, s.Default(), got)
	test.Eq(t, "/var/lib/x", got.StateDir)
	var data []byte
	must.NoError(t, base.MsgPackEncode(&data, common{StateDir: "/y"}))
	if got, err = s.Decode(data); err != nil || got.StateDir != "/y" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestExample_UncommentedOptionsMatchTheDefaults(t *testing.T) {
	type config struct {
		common
		KillMode string `codec:"kill_mode" default:"process" enum:"process,group" doc:"Mode."`
		Logs     logs   `codec:"logs" doc:"Output."`
		Debug    *logs  `codec:"debug" doc:"Debug output."`
	}
	s := Of[config]()
	text := s.Example("  ")
	for range 2 { // an option in a block is commented out twice
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			if code := strings.TrimPrefix(strings.TrimSpace(line), "# "); strings.Contains(code, " = ") ||
				strings.HasSuffix(code, "{") || strings.HasSuffix(code, "}") || strings.HasPrefix(code, " ") {
				lines[i] = code
			}
		}
		text = strings.Join(lines, "\n")
	}
	got, err := decodeJob(t, s, "\n"+text)
	must.NoError(t, err, must.Sprintf("%v in\n%s", err, text))
	want := s.Default()
	want.Debug = &logs{MaxFiles: 10, MaxFileSize: "10MiB"}
	test.True(t, reflect.DeepEqual(got, want), test.Sprintf("got  %+v\nwant %+v\nfrom\n%s", got, want, text))
	got, err = decodeJob(t, s, "\n"+s.Example(""))
	must.NoError(t, err, must.Sprintf("commented out: got %+v", got))
	test.True(t, reflect.DeepEqual(got, s.Default()), test.Sprintf("commented out: got %+v", got))
}

func TestDefault_MayContainAnyCharacter(t *testing.T) {
	type config struct {
		Odd string `codec:"odd" default:"a\"b\\${c}%{d}\n\t\u00e9" doc:"Quoting."`
	}
	got, err := decodeJob(t, Of[config](), "")
	must.NoError(t, err)
	test.Eq(t, "a\"b\\${c}%{d}\n\té", got.Odd)
}

func TestOf_PanicsForAMalformedStruct(t *testing.T) {
	for name, c := range map[string]struct {
		of   func()
		want string
	}{
		"misspelt codec tag": {func() {
			Of[struct {
				A string `coded:"a" doc:"A."`
			}]()
		}, `unknown tag "coded"`},
		"no codec tag": {func() {
			Of[struct {
				A string `doc:"A."`
			}]()
		}, `the codec tag must be the option's name alone`},
		"no doc tag": {func() {
			Of[struct {
				A string `codec:"a"`
			}]()
		}, `the doc tag is missing`},
		"declared twice": {func() {
			Of[struct {
				A string `codec:"a" doc:"A."`
				B int    `codec:"a" doc:"B."`
			}]()
		}, `declared twice`},
		"default not a number": {func() {
			Of[struct {
				A int `codec:"a" doc:"A." default:"x"`
			}]()
		}, `invalid syntax`},
		"default not a bool": {func() {
			Of[struct {
				A bool `codec:"a" doc:"A." default:"1"`
			}]()
		}, `is not true or false`},
		"default not a size": {func() {
			Of[struct {
				A Size `codec:"a" doc:"A." default:"x"`
			}]()
		}, `is not a size`},
		"default not in the enum": {func() {
			Of[struct {
				A string `codec:"a" doc:"A." default:"x" enum:"y"`
			}]()
		}, `is not known`},
		"default out of range": {func() {
			Of[struct {
				A int `codec:"a" doc:"A." default:"9" max:"8"`
			}]()
		}, `is too large`},
		"default in a block": {func() {
			Of[struct {
				A *struct {
					B int `codec:"b" doc:"B." default:"9" max:"8"`
				} `codec:"a" doc:"A."`
			}]()
		}, `B: default 9 is too large`},
		"required with default": {func() {
			Of[struct {
				A int `codec:"a" doc:"A." default:"9" required:"true"`
			}]()
		}, `can't have a default`},
		"unset looks out of range": {func() {
			Of[struct {
				A int `codec:"a" doc:"A." min:"1"`
			}]()
		}, `both unset and out of range`},
		"required in no block": {func() {
			Of[struct {
				A struct {
					B int `codec:"b" doc:"B." required:"true"`
				} `codec:"a" doc:"A."`
			}]()
		}, `use a pointer`},
		"enum of a number": {func() {
			Of[struct {
				A int `codec:"a" doc:"A." enum:"1,2"`
			}]()
		}, `only strings have an enum`},
		"default of a pointer": {func() {
			Of[struct {
				A *int `codec:"a" doc:"A." default:"1"`
			}]()
		}, `a pointer can't have a default`},
		"default of a map": {func() {
			Of[struct {
				A map[string]string `codec:"a" doc:"A." default:"{}"`
			}]()
		}, `a map of strings can't have a default`},
		"label of no block": {func() {
			Of[struct {
				A string `codec:"a" doc:"A." label:"b"`
			}]()
		}, `only a map of structs has a label`},
		"bound of a string": {func() {
			Of[struct {
				A string `codec:"a" doc:"A." min:"1"`
			}]()
		}, `a string has no range`},
		"type": {func() {
			Of[struct {
				A chan int `codec:"a" doc:"A."`
			}]()
		}, `not supported`},
		"map with its own decoder": {func() {
			Of[struct {
				A hclutils.MapStrStr `codec:"a" doc:"A."`
			}]()
		}, `not supported`},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				r, _ := recover().(string)
				test.StrContains(t, r, c.want, test.Sprint("got panic"))
			}()
			c.of()
		})
	}
}

func TestSize_IsParsed(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "1": 1, "10MiB": 10 << 20, "10 mib": 10 << 20, "64k": 64 << 10,
		"1.5GB": 15e8, "2T": 2 << 40, "8B": 8} {
		got, err := ParseSize(text)
		must.NoError(t, err, must.Sprint(text))
		must.Eq(t, want, got, must.Sprint(text))
		test.Eq(t, want, Size(text).Bytes(), test.Sprint(text))
	}
	for _, text := range []string{"", "-1", "MiB", "1.2.3k", "1e3", "9999999T", "10 Mbit", "0x10", "NaN", "inf"} {
		got, err := ParseSize(text)
		test.Error(t, err, test.Sprintf("%q: got %d, want an error", text, got))
	}
}

func TestExample_ShowsASampleOfEachKind(t *testing.T) {
	type config struct {
		Text  string            `codec:"text" doc:"T."`
		Flag  bool              `codec:"flag" doc:"F."`
		Count *int              `codec:"count" min:"3" doc:"C."`
		Most  *int              `codec:"most" max:"3" doc:"M."`
		Size  *Size             `codec:"size" min:"1KiB" doc:"S."`
		Wait  Duration          `codec:"wait" doc:"W."`
		Mode  string            `codec:"mode" enum:"a,b" doc:"M."`
		List  []string          `codec:"list" doc:"L."`
		IDs   Strings           `codec:"ids" doc:"I."`
		Env   map[string]string `codec:"env" doc:"E."`
		Name  string            `codec:"name" required:"true" doc:"N."`
	}
	var got strings.Builder
	for line := range strings.Lines(Of[config]().Example("")) {
		if !strings.HasSuffix(line, ".\n") { // the line is not a description
			got.WriteString(line)
		}
	}
	const want = `# text = ""

# flag = false

# count = 3

# most = 0

# size = "1KiB"

# wait = "30s"

# mode = "a"

# list = [""]

# ids = ""

# env = {}

name = ""
`
	test.Eq(t, want, got.String())
}

func TestDoc_HasARowForEveryOption(t *testing.T) {
	got := Table(testSchema.Doc())
	for _, want := range []string{
		"| `command` | string | required | The program. |\n",
		"| `args` | list of strings |  | Its arguments. |\n",
		"| `kill_mode` | string | `\"process\"` | Which processes a stop signal goes to. One of \"process\", \"group\" or " +
			"\"all\". |\n",
		"| `nice` | integer |  | Priority. Allowed: -20 to 19. |\n",
		"| `logs` | block |  | Output. |\n| `logs.max_files` | integer | `10` | Files kept. Allowed: 1 to 100. |\n",
		"| `mount` | block, repeatable |  | A mount. |\n",
		"| `limit` | block, labelled with its resource |  | A limit. |\n",
	} {
		test.StrContains(t, got, want, test.Sprintf("no %s in", want))
	}
	test.Eq(t, 1+12+2+2+3+2, len(testSchema.Doc()))
}

func TestTable_RefersToTheSameOptionOfAnEarlierBlock(t *testing.T) {
	const text = "A long description of an option."
	got := Table([]Row{{Option: "a.id", Description: text}, {Option: "b.id", Description: text},
		{Option: "c.id", Description: text, Default: "1"}, {Option: "b.x", Description: "Short."},
		{Option: "c.x", Description: "Short."}})
	test.StrContains(t, got, "| `a.id` |  |  | "+text+" |\n| `b.id` |  |  | As `a.id`. |\n")
	test.StrContains(t, got, "| `c.id` |  | `1` | "+text+" |\n| `b.x` |  |  | Short. |\n| `c.x` |  |  | Short. |\n")
}
