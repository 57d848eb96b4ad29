// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"gopkg.in/yaml.v3"
)

// mayWrite lists the jobs that need more than read access, and their permissions. All other jobs may only read.
var mayWrite = map[string][]string{
	"docs.yml deploy":     {"pages", "id-token"},
	"release.yml sign":    {"id-token", "attestations"},
	"release.yml publish": {"contents"},
	"security.yml codeql": {"security-events"},
}

func TestWorkflows_FollowTheRules(t *testing.T) {
	targets, err := mageTargets("../../magefile.go")
	must.NoError(t, err)
	files, err := filepath.Glob("../../.github/workflows/*")
	must.NoError(t, err)
	must.SliceNotEmpty(t, files)
	pins := map[string]string{} // the version of each action, which must be the same in all workflows
	called := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.NoError(t, err)
		for _, fault := range workflowFaults(filepath.Base(file), string(text), targets) {
			t.Errorf("%s: %s", file, fault)
		}
		for _, m := range pinned.FindAllStringSubmatch(string(text), -1) {
			if before, found := pins[m[1]]; found && before != m[2] {
				t.Errorf("%s: %s has two versions: %s and %s", file, m[1], before, m[2])
			}
			pins[m[1]] = m[2]
		}
		called += len(mageCommand.FindAllString(string(text), -1))
	}
	test.Greater(t, 5, called)
}

func TestWorkflowFaults_ReportsEachKindOfFault(t *testing.T) {
	const head = "permissions: {}\njobs:\n  one:\n    timeout-minutes: 5\n    permissions:\n      contents: read\n" +
		"    steps:\n"
	const checkout = "      - uses: actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1\n" +
		"        with:\n          persist-credentials: false\n"
	targets := map[string]target{"lint": {}, "test:module": {arguments: 1, flags: []string{"race"}}}
	for name, tc := range map[string]struct{ text, want string }{
		"no fault": {head + checkout +
			"      - run: sudo env A=b go tool mage test:module \"$M\" -race=true lint\n", ""},
		"tag":               {head + "      - uses: actions/cache@v4\n", "actions/cache@v4"},
		"no version":        {head + "      - uses: a/b@3d3c42e5aac5ba805825da76410c181273ba90b1\n", "a/b@3d3c"},
		"credentials":       {head + strings.Replace(checkout, "false", "true", 1), "persist-credentials"},
		"permissions":       {strings.Replace(head, "{}", "read-all", 1) + checkout, "permissions: {}"},
		"no permissions":    {strings.TrimPrefix(head, "permissions: {}\n") + checkout, "permissions: {}"},
		"job's permissions": {strings.Replace(head, "contents: read", "contents: write", 1) + checkout, "contents: write"},
		"endless":           {strings.Replace(head, "timeout-minutes", "x", 1) + checkout, "timeout-minutes"},
		"image by its tag":  {strings.Replace(head, "steps:", "container: debian:12\n    steps:", 1) + checkout, "debian:12"},
		"no such target":    {head + "      - run: go tool mage lnt\n", `"lnt"`},
		"no such flag":      {head + "      - run: go tool mage lint -race=true\n", `"-race=true"`},
		"no argument":       {head + "      - run: go tool mage test:module\n", `"test:module"`},
		"continued":         {head + "      - run: |\n          go tool mage \\\n            lnt\n", `"lnt"`},
		"not a target":      {head + "      - run: |\n          true\n          sudo go test ./...\n", "go test"},
		"expression":        {head + "      - run: echo ${{ matrix.x }}\n", "env"},
		"privileged event":  {"on: pull_request_target\n" + head + checkout, "pull_request_target"},
	} {
		t.Run(name, func(t *testing.T) {
			faults := workflowFaults("x.yml", tc.text, targets)
			if tc.want == "" {
				must.SliceEmpty(t, faults)
			} else {
				must.Len(t, 1, faults, must.Sprint(faults))
				must.StrContains(t, faults[0], tc.want)
			}
		})
	}
}

var (
	uses        = regexp.MustCompile(`(?m)^\s*(?:- )?uses:(.*)$`)
	pinned      = regexp.MustCompile(`(?m)uses: ([\w.-]+/[\w./-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)$`)
	byDigest    = regexp.MustCompile(`@sha256:[0-9a-f]{64}$`)
	goCommand   = regexp.MustCompile(`(?:^|[\s(;|&])go (\S+)`)
	mageCommand = regexp.MustCompile(`go tool mage ([^|>&;)\n]*)`)
)

// workflowFaults returns the violations of these rules in a workflow: Actions are pinned. A job has a timeout, and no
// more permissions than it needs. Scripts use go only to run mage targets that exist and also run outside of CI. No
// script contains an expression.
func workflowFaults(name, text string, targets map[string]target) []string {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	var w struct {
		Permissions map[string]string
		Jobs        map[string]struct {
			Permissions map[string]string
			Timeout     int `yaml:"timeout-minutes"`
			Container   string
			Steps       []struct {
				Uses, Run string
				With      map[string]any
			}
		}
	}
	if err := yaml.Unmarshal([]byte(text), &w); err != nil && !strings.Contains(err.Error(), "read-all") {
		return []string{err.Error()}
	}
	if w.Permissions == nil || len(w.Permissions) > 0 {
		fault("the workflow does not begin with permissions: {}")
	}
	if strings.Contains(text, "pull_request_target") {
		fault("pull_request_target runs untrusted code with write permissions")
	}
	for _, m := range uses.FindAllStringSubmatch(text, -1) {
		if !pinned.MatchString(m[0]) {
			fault("%s is not pinned by a commit with its version in a comment", strings.TrimSpace(m[1]))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.Jobs)) {
		job := w.Jobs[id]
		for what, access := range job.Permissions {
			if access != "read" && !slices.Contains(mayWrite[name+" "+id], what) {
				fault("job %s must not have %s: %s", id, what, access)
			}
		}
		if job.Container != "" && !byDigest.MatchString(job.Container) {
			fault("job %s: the image %s is not pinned by its digest", id, job.Container)
		}
		if job.Timeout == 0 {
			fault("job %s has no timeout-minutes", id)
		}
		for _, step := range job.Steps {
			if strings.HasPrefix(step.Uses, "actions/checkout@") && step.With["persist-credentials"] != false {
				fault("job %s stores a token in the checkout: persist-credentials", id)
			}
			if strings.Contains(step.Run, "${{") {
				fault("job %s: an expression in a script; pass it by env: %s", id, step.Run)
			}
			script := strings.ReplaceAll(step.Run, "\\\n", " ")
			for _, m := range goCommand.FindAllStringSubmatch(script, -1) {
				if m[1] != "tool" {
					fault("job %s: go %s is not a mage target", id, m[1])
				}
			}
			for _, m := range mageCommand.FindAllStringSubmatch(script, -1) {
				if err := checkCall(strings.Fields(m[1]), targets); err != nil {
					fault("job %s: %v", id, err)
				}
			}
		}
	}
	return faults
}

// target has the parameters of a mage target.
type target struct {
	arguments int // number of required arguments
	flags     []string
}

// checkCall checks the words after "go tool mage": targets, each followed by its arguments and then its flags.
func checkCall(words []string, targets map[string]target) error {
	for len(words) > 0 {
		name := words[0]
		t, found := targets[name]
		if !found {
			return fmt.Errorf("%q is not a target", name)
		}
		if words = words[1:]; len(words) < t.arguments {
			return fmt.Errorf("%q lacks an argument", name)
		}
		words = words[t.arguments:]
		for len(words) > 0 && strings.HasPrefix(strings.Trim(words[0], `"`), "-") {
			flag, _, _ := strings.Cut(strings.Trim(words[0], `"-`), "=")
			if !slices.Contains(t.flags, flag) {
				return fmt.Errorf("%s has no flag %q", name, words[0])
			}
			words = words[1:]
		}
	}
	return nil
}

// mageTargets returns the targets of a magefile: its exported functions, and the methods of its namespaces. A pointer
// parameter is a flag, and every other parameter except ctx is an argument.
func mageTargets(path string) (map[string]target, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	targets := map[string]target{"test": {}} // an alias, see Aliases in the magefile
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || !f.Name.IsExported() {
			continue
		}
		name := strings.ToLower(f.Name.Name)
		if f.Recv != nil {
			name = strings.ToLower(f.Recv.List[0].Type.(*ast.Ident).Name) + ":" + name
		}
		var t target
		for _, field := range f.Type.Params.List {
			for _, param := range field.Names {
				if _, isFlag := field.Type.(*ast.StarExpr); isFlag {
					t.flags = append(t.flags, param.Name)
				} else if param.Name != "ctx" {
					t.arguments++
				}
			}
		}
		targets[name] = t
	}
	return targets, nil
}
