package driver

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

func TestANetrcGivesCredentialsToTheHostsThatItNames(t *testing.T) {
	logins, err := parseNetrc(`# of the team
machine packages.example.com login build password hunter2 # since May
machine QUOTED.example.com
	login "team build"
	password "a\"b #c"
macdef init
machine macro.example.com login x password y

machine packages.example.com login later password later
machine token.example.com password "" account z
machine half.example.com login nobody
machine hash.example.com login a password #b
default login any password any`)
	must(t, err)
	for from, want := range map[string]string{
		"https://packages.example.com/simple":       "https://build:hunter2@packages.example.com/simple",
		"http://Packages.example.com:8080/simple?a": "http://build:hunter2@Packages.example.com:8080/simple?a",
		"https://me@packages.example.com/simple":    "https://me@packages.example.com/simple",
		"https://quoted.example.com/":               "https://team%20build:a%22b%20%23c@quoted.example.com/",
		"https://macro.example.com/":                "https://macro.example.com/",
		"https://token.example.com/":                "https://:@token.example.com/",
		"https://half.example.com/":                 "https://half.example.com/",
		"https://hash.example.com/":                 "https://a:%23b@hash.example.com/",
		"https://other.example.com/":                "https://other.example.com/",
		"/srv/packages.example.com":                 "/srv/packages.example.com",
	} {
		if got := logins.give(from); got != want {
			t.Errorf("%s: got %s, want %s", from, got, want)
		}
	}
	for _, empty := range []string{"", "password x", "macdef", "# machine a login b password c", "default login b password c"} {
		if got, err := parseNetrc(empty); len(got) != 0 || err != nil {
			t.Errorf("%q: %v, %v", empty, got, err)
		}
	}
}

func TestANetrcThatCouldMeanAnotherHostIsRefused(t *testing.T) {
	const b = "\nmachine b login y password z\n"
	for broken, says := range map[string]string{
		"machine a login x password " + b:                       "line 1 has no value for password",
		"machine a login x\n  password" + b:                     "line 2 has no value for password",
		"machine a login  password p3" + b:                      "line 1 has a word where",
		"machine  login x password p3" + b:                      "line 1 has a word where",
		"machine a\n# machine c\n login x\n login p3" + b:       "line 4 has a second login",
		"machine a login x password p3\n#machine b\npassword z": "line 3 has a second password",
		"machine a login x password p3 secret" + b:              "line 1 has a word where",
		"machine a login x password \"p3" + b:                   "line 1 has no value for password",
		"machine":                                               "line 1 has no value for machine",
		"\x00":                                                  "line 1 has a word where",
	} {
		got, err := parseNetrc(broken)
		if len(got) != 0 || err == nil || !strings.HasPrefix(err.Error(), says) {
			t.Errorf("%q: %v, %v", broken, got, err)
		} else if strings.Contains(err.Error(), "p3") || strings.Contains(err.Error(), "secret") {
			t.Errorf("what is in the file is in the error: %v", err)
		}
	}
}

func TestALongLineOfANetrcTakesNoMoreThanSeveral(t *testing.T) {
	line := strings.Repeat("machine a ", maxNetrc/10)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := parseNetrc(line)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; err != nil || took > 8<<20 {
		t.Errorf("%d KiB take %d KiB: %v", len(line)>>10, took>>10, err)
	}
	secrets := t.TempDir()
	must(t, os.WriteFile(filepath.Join(secrets, netrcFile), make([]byte, 64<<10+1), 0o644))
	if _, err := readNetrc(taskFiles{secrets: secrets}); err == nil || !strings.Contains(err.Error(), "larger than 64 KiB") {
		t.Error(err)
	}
}

// private is an index that wants a password.
func private(t *testing.T, wheels, password string) string {
	handler := wheeltest.Handler(wheels)
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, has, _ := r.BasicAuth(); user != "build" || has != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="index"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(index.Close)
	return index.URL + "/simple"
}

// withNetrc writes a task's file with the credentials for the indexes of tests.
func withNetrc(t *testing.T, cfg *drivers.TaskConfig, password string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(cfg.TaskDir().SecretsDir, ".netrc")
	must(t, os.WriteFile(path, []byte("machine 127.0.0.1\n  login build\n  password "+password+"\n"), mode))
	must(t, os.Chmod(path, mode))
}

func TestCredentialsOfATasksNetrcOpenItsIndexes(t *testing.T) {
	wheels := t.TempDir()
	moon.Write(t, wheels)
	url := private(t, wheels, "hunter2x")
	installers(t, func(t *testing.T, a *agent) {
		for _, config := range []string{
			`requirements = ["moon-phase"]`, "requirements = [\"moon-phase>=1\"]\nindex_url = \"" + url + "\"",
		} {
			cfg := a.task("script = \"app.py\"\n"+config, map[string]string{"app.py": useMoon})
			withNetrc(t, cfg, "hunter2x", 0o644)
			if out := a.runs(cfg); !strings.HasPrefix(out, "1.2 ") {
				t.Errorf("%s: got %q", config, out)
			}
			other := a.task("script = \"app.py\"\n"+config, map[string]string{"app.py": useMoon})
			if err := a.refused(other); strings.Contains(err.Error(), "hunter2x") {
				t.Errorf("%s, without a password: %v", config, err)
			}
			wrong := a.task("script = \"app.py\"\n"+config, map[string]string{"app.py": useMoon})
			withNetrc(t, wrong, "swordfish", 0o644)
			if err := a.refused(wrong); strings.Contains(err.Error(), "swordfish") {
				t.Errorf("%s, with another password: %v", config, err)
			}
			a.hasSaid()
			for _, e := range append(append(a.said(cfg), a.said(wrong)...), a.said(other)...) {
				if strings.Contains(e, "hunter2x") || strings.Contains(e, "swordfish") {
					t.Error(e)
				}
			}
		}
		metas, err := filepath.Glob(filepath.Join(a.dir, "cache/meta/*.json"))
		must(t, err)
		if len(metas) != 2 {
			t.Errorf("there are %d environments", len(metas))
		}
		must(t, filepath.WalkDir(filepath.Join(a.dir, "cache"), func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			if strings.Contains(string(content), "hunter2x") || strings.Contains(string(content), "swordfish") {
				t.Errorf("%s has a password", path)
			}
			return err
		}))
	}, func(c *Config) { c.Offline, c.IndexURL = false, url })
}

func TestATasksNetrcIsReadWithItsRights(t *testing.T) {
	needRoot(t)
	wheels := t.TempDir()
	moon.Write(t, wheels)
	url := private(t, wheels, "hunter2x")
	a := start(t, func(c *Config) { c.Offline, c.IndexURL = false, url })
	const config = "script = \"app.py\"\nrequirements = [\"moon-phase\"]"
	cfg := a.task(config, map[string]string{"app.py": useMoon}, asUserOf("nobody"))
	withNetrc(t, cfg, "hunter2x", 0o600) // root's
	err := a.refused(cfg)
	if !strings.Contains(err.Error(), "secrets/.netrc") || !strings.Contains(err.Error(), "permission denied") {
		t.Error(err)
	}
	path := filepath.Join(cfg.TaskDir().SecretsDir, ".netrc")
	must(t, os.Remove(path))
	must(t, os.Symlink("/etc/shadow", path))
	if err := a.refused(cfg); !strings.Contains(err.Error(), "permission denied") {
		t.Error(err)
	}
}
