// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package wheel

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// Index serves the wheels of a directory as a package index (PEP 503): /simple/<project>/ lists files with their
// hashes, and /files/<file> returns a file.
func Index(dir string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/files/", http.StripPrefix("/files/", http.FileServer(http.Dir(dir))))
	mux.HandleFunc("/simple/{project}/", func(w http.ResponseWriter, r *http.Request) {
		files, _ := os.ReadDir(dir)
		found := false
		w.Header().Set("Content-Type", "text/html")
		page := "<!DOCTYPE html><html><body>\n"
		for _, f := range files {
			name, _, _ := strings.Cut(f.Name(), "-")
			if strings.ReplaceAll(strings.ToLower(name), "_", "-") != r.PathValue("project") {
				continue
			}
			content, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			found = true
			page += fmt.Sprintf("<a href=\"/files/%[1]s#sha256=%[2]x\">%[1]s</a><br>\n", f.Name(), sha256.Sum256(content))
		}
		if !found {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, page+"</body></html>\n")
	})
	return mux
}
