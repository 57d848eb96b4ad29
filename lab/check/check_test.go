package check

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/lab/internal/term"
)

// workspace writes a go.work with the module m and the module lab, and the files.
func workspace(t *testing.T, files map[string]string) string {
	t.Helper()
	t.Setenv("GOWORK", "")
	t.Setenv("GOFLAGS", "")
	root := t.TempDir()
	all := map[string]string{
		"go.work": "go 1.26\n\nuse (\n\t./m\n\t./lab\n)\n", "m/go.mod": "module x/m\n\ngo 1.26\n", "lab/go.mod": "module x/lab\n\ngo 1.26\n",
	}
	for name, text := range files {
		all[name] = text
	}
	for name, text := range all {
		path := filepath.Join(root, name)
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	passes = "package p\n\nimport \"testing\"\n\nfunc TestPasses(t *testing.T) {}\n"
	fails  = "package p\n\nimport \"testing\"\n\nfunc TestFails(t *testing.T) { t.Error(\"two is not three\") }\n"
	skips1 = "package p\n\nimport \"testing\"\n\nfunc TestSkips(t *testing.T) { t.Skip(\"no mood\") }\n"
	wrong  = "package p\n\nvar x int = \"text\"\n"
)

func TestTestJudgesWholeWorkspace(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string
		ok    bool
		last  string
		shows []string
	}{
		{"everything passes", map[string]string{"m/p/p_test.go": passes, "lab/e2e/e_test.go": passes}, true,
			"2 passed, 0 failed, 0 skipped", []string{"ok   x/m/p  1 tests", "ok   x/lab/e2e  1 tests"}},
		{"a unit test fails", map[string]string{"m/p/p_test.go": fails, "lab/e2e/e_test.go": passes}, false,
			"1 passed, 1 failed, 0 skipped", []string{"FAIL x/m/p TestFails", "two is not three"}},
		{"an end-to-end test is skipped", map[string]string{"m/p/p_test.go": passes, "lab/e2e/e_test.go": skips1}, false,
			"1 passed, 0 failed, 1 skipped", []string{"unexpected skip of x/lab/e2e TestSkips: e_test.go:5: no mood", "no end-to-end test ran"}},
		{"no end-to-end tests", map[string]string{"m/p/p_test.go": passes, "lab/p.go": "package lab\n"}, false,
			"1 passed, 0 failed, 0 skipped", []string{"no end-to-end test ran"}},
		{"a package does not compile", map[string]string{"m/p/p.go": wrong, "m/p/p_test.go": passes, "lab/e2e/e_test.go": passes}, false,
			"1 passed, 0 failed, 0 skipped", []string{"cannot use \"text\"", "package x/m/p failed"}},
		{"a package is left out", map[string]string{"m/p/p_test.go": passes, "m/odd/o_test.go": fails, "lab/e2e/e_test.go": passes}, true,
			"2 passed, 0 failed, 1 skipped", []string{"skip x/m/odd: not here"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b bytes.Buffer
			list, err := parseSkips("m/odd - any # not here")
			if err != nil {
				t.Fatal(err)
			}
			err = test(t.Context(), workspace(t, tc.files), newReport(&b, list))
			if (err == nil) != tc.ok {
				t.Errorf("verdict %v, want ok=%v", err, tc.ok)
			}
			lines := strings.Split(strings.TrimSpace(b.String()), "\n")
			if last := lines[len(lines)-1]; last != tc.last {
				t.Errorf("last line %q, want %q", last, tc.last)
			}
			for _, want := range tc.shows {
				if !strings.Contains(b.String(), want) {
					t.Errorf("no %q in\n%s", want, &b)
				}
			}
		})
	}
}

func TestLintFindsFormatAndVet(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"good", "package p\n\nfunc F() {}\n", ""},
		{"format", "package p\nfunc  F() {}\n", "m/p.go"},
		{"vet", "package p\n\nimport \"fmt\"\n\nfunc F() { fmt.Printf(\"%d\\n\", \"x\") }\n", "wrong type"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := lint(t.Context(), workspace(t, map[string]string{"m/p.go": tc.text, "lab/l.go": "package lab\n"}), term.New(t.Output()))
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// A finding in any module, tests included, fails; and once the program is built, no
// network is needed.
func TestAFindingOfGosecIsNotPassedOver(t *testing.T) {
	const config = "version: \"2\"\nlinters:\n  default: none\n  enable: [gosec]\n"
	const narrows = "package p\n\nfunc F(n int64) uint8 { return uint8(n) }\n"
	const narrowsToo = "package p\n\nimport \"testing\"\n\nfunc TestF(t *testing.T) { n := int64(t.Name()[0]) << 8; t.Log(uint8(n)) }\n"
	if _, err := golangciProgram(t.Context(), term.New(t.Output())); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOPROXY", "off")
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"nothing to find":       {map[string]string{"m/p.go": "package p\n"}, ""},
		"in the first module":   {map[string]string{"m/p.go": narrows}, "m/p.go:3"},
		"in the last module":    {map[string]string{"m/p.go": "package p\n", "lab/l.go": strings.Replace(narrows, "package p", "package lab", 1)}, "lab/l.go:3"},
		"in a test":             {map[string]string{"m/p.go": "package p\n", "m/p_test.go": narrowsToo}, "m/p_test.go:5"},
		"a configuration of no": {map[string]string{"m/p.go": "package p\n", ".golangci.yml": "version: 7\n"}, "golangci-lint"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{".golangci.yml": config, "lab/l.go": "package lab\n"}
			maps.Copy(files, c.files)
			err := lint(t.Context(), workspace(t, files), term.New(t.Output()))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
