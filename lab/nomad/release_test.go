package nomad

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func archive(t *testing.T, name, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w.Write([]byte(content))
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestReleaseIsCheckedBeforeItIsUsed(t *testing.T) {
	good := archive(t, "nomad", "#!/bin/sh\n")
	other := archive(t, "LICENSE.txt", "text")
	sum := func(b []byte) string { h := sha256.Sum256(b); return hex.EncodeToString(h[:]) }
	for _, tc := range []struct {
		name   string
		body   []byte
		status int
		sum    string
		want   string // in the error; empty: none
	}{
		{"a good archive is unpacked", good, 200, sum(good), ""},
		{"another sum is refused", good, 200, sum(other), "checksum of"},
		{"a refusing server is named", nil, 403, sum(good), "403 Forbidden"},
		{"an archive without nomad is refused", other, 200, sum(other), "find nomad in the release archive"},
		{"what is not an archive is refused", []byte("hello"), 200, sum([]byte("hello")), "read the release archive"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tc.status)
				w.Write(tc.body)
			}))
			defer srv.Close()
			dst := filepath.Join(t.TempDir(), "nomad")
			err := download(t.Context(), srv.URL, tc.sum, dst, nil)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Fatalf("error %v, want %q", err, tc.want)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			left, _ := os.ReadDir(filepath.Dir(dst))
			if tc.want != "" && len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
			if tc.want == "" {
				st, err := os.Stat(dst)
				if err != nil || st.Mode().Perm() != 0o755 || len(left) != 1 {
					t.Errorf("got %v, %v, %v", st, err, left)
				}
			}
		})
	}
}

func TestEveryReleaseSumIsOne(t *testing.T) {
	for platform, sum := range releaseSums {
		if b, err := hex.DecodeString(sum); err != nil || len(b) != sha256.Size {
			t.Errorf("%s: %q is not a SHA-256 sum", platform, sum)
		}
	}
}

func TestPinnedModuleIsThePinnedVersion(t *testing.T) {
	if !strings.Contains(string(sourceMod), "github.com/hashicorp/nomad v"+Version+"\n") {
		t.Errorf("source/go.mod.txt does not require nomad v%s", Version)
	}
	if !strings.Contains(string(sourceSum), "github.com/hashicorp/nomad v"+Version+" h1:") {
		t.Errorf("source/go.sum.txt does not pin nomad v%s", Version)
	}
}
