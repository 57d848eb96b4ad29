// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"runtime"
	"strings"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/hashicorp/hc-install/releases"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestRelease_IsVerified(t *testing.T) {
	publisher, stranger := newKey(t), newKey(t)
	for _, tc := range []struct {
		name   string
		key    *openpgp.Entity
		status int
		tamper bool   // whether to change the archive
		want   string // part of the error; empty: no error
	}{
		{name: "a good release", key: publisher},
		{name: "another checksum", key: publisher, tamper: true, want: "checksum mismatch"},
		{name: "another key", key: stranger, want: "unable to verify checksums signature"},
		{name: "a server that refuses", key: publisher, status: http.StatusForbidden, want: "403 Forbidden"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			files := release(t, tc.key)
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				file := path.Base(r.URL.Path)
				w.Header().Set("Content-Type", map[string]string{".json": "application/json",
					".zip": "application/zip"}[path.Ext(file)])
				if tc.status != 0 {
					w.WriteHeader(tc.status)
				}
				w.Write(files[file])
				if tc.tamper && path.Ext(file) == ".zip" {
					w.Write([]byte{0})
				}
			}))
			defer srv.Close()
			var public strings.Builder
			w, err := armor.Encode(&public, openpgp.PublicKeyType, nil)
			must.NoError(t, err)
			must.NoError(t, publisher.Serialize(w))
			must.NoError(t, w.Close())

			dir := t.TempDir()
			from := releases.ExactVersion{ApiBaseURL: srv.URL, ArmoredPublicKey: public.String()}
			program, err := download(t.Context(), from, dir, t.Logf)
			left, _ := os.ReadDir(dir)
			if tc.want != "" {
				must.ErrorContains(t, err, tc.want)
				must.SliceEmpty(t, left)
				return
			}
			must.NoError(t, err)
			must.Len(t, 1, left)
			st, err := os.Stat(program)
			must.NoError(t, err)
			must.Eq(t, 0o755, st.Mode().Perm())
		})
	}
}

func newKey(t *testing.T) *openpgp.Entity {
	t.Helper()
	key, err := openpgp.NewEntity("publisher", "", "publisher@example.com", nil)
	must.NoError(t, err)
	return key
}

// release returns the files of a server's release: the index, the archive, its checksum and the checksum's signature.
func release(t *testing.T, key *openpgp.Entity) map[string][]byte {
	t.Helper()
	var archive, signature bytes.Buffer
	z := zip.NewWriter(&archive)
	w, err := z.Create("nomad")
	must.NoError(t, err)
	_, err = w.Write([]byte("#!/bin/sh\n"))
	must.NoError(t, err)
	must.NoError(t, z.Close())

	name := fmt.Sprintf("nomad_%s_%s_%s.zip", Version, runtime.GOOS, runtime.GOARCH)
	sums := fmt.Appendf(nil, "%x  %s\n", sha256.Sum256(archive.Bytes()), name)
	must.NoError(t, openpgp.DetachSign(&signature, key, bytes.NewReader(sums), nil))
	index, err := json.Marshal(map[string]any{
		"name": "nomad", "version": Version, "shasums": "nomad_SHA256SUMS", "shasums_signature": "nomad_SHA256SUMS.sig",
		"builds": []map[string]string{{
			"os": runtime.GOOS, "arch": runtime.GOARCH, "filename": name, "url": "/nomad/" + Version + "/" + name,
		}},
	})
	must.NoError(t, err)
	return map[string][]byte{
		"index.json": index, name: archive.Bytes(), "nomad_SHA256SUMS": sums, "nomad_SHA256SUMS.sig": signature.Bytes(),
	}
}

func TestSource_PinsTheVersion(t *testing.T) {
	test.StrContains(t, string(sourceMod), "github.com/hashicorp/nomad v"+Version+"\n",
		test.Sprintf("source/go.mod.txt does not require nomad v%s", Version))
	test.StrContains(t, string(sourceSum), "github.com/hashicorp/nomad v"+Version+" h1:",
		test.Sprintf("source/go.sum.txt does not pin nomad v%s", Version))
}
