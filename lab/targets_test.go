package lab

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/lab/build"
)

type demo struct{}

func (demo) Reload(context.Context, *string) error { return nil }
func (demo) Run(context.Context, string) error     { return nil }

func TestWhatIsNoTargetIsRefusedBeforeAnythingRuns(t *testing.T) {
	for args, ok := range map[string]bool{
		"":                               true,
		"test demo:reload":               true,
		"demo:reload -plugin=python":     true,
		"demo:RUN python demo:reload":    true,
		"demo:run":                       true, // mage itself says that its argument is missing
		"demo:reload python":             false,
		"demo:run python python":         false,
		"demo:reload -plugin=x test nix": false,
	} {
		err := CheckTargets(strings.Fields(args), []string{"test"}, demo{})
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "-plugin=") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// The magefile is a program of its own: these look at it as a user does.
func TestMagefile(t *testing.T) {
	root, err := build.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	mage := func(args ...string) (string, error) {
		cmd := exec.Command("go", append([]string{"tool", "mage"}, args...)...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "LAB_DIR="+t.TempDir()) // of no lab
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := mage("lab:reload", "python"); err == nil || !strings.Contains(out, `"python" is no target`) || strings.Contains(out, "is not up") {
		t.Errorf("lab:reload python: %v\n%s", err, out)
	}
	list, err := mage("-l")
	if err != nil {
		t.Fatalf("%v\n%s", err, list)
	}
	readme, err := os.ReadFile(root + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`(?m)^go tool mage (\S+)`).FindAllStringSubmatch(string(readme), -1)
	if len(names) < 5 {
		t.Fatalf("the README has %q", names)
	}
	for _, name := range names {
		if !regexp.MustCompile(`(?m)(^|\s)`+regexp.QuoteMeta(name[1])+`\s`).MatchString(list) && name[1] != "-l" {
			t.Errorf("the README has %s, mage -l has\n%s", name[1], list)
		}
	}
}
