package install_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// Indexes sign the links to their files so.
func TestWhatIsInTheQueryOfAURLIsNowhereToBeSeen(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		var asked atomic.Bool
		index := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/simple/") {
				w.Header().Set("Content-Type", "text/html")
				fmt.Fprint(w, `<!DOCTYPE html><html><body><a href="/files/greeting_words-1.0-py3-none-any.whl?sig=SECRET">greeting_words-1.0-py3-none-any.whl</a></body></html>`)
				return
			}
			if strings.Contains(r.URL.RawQuery, "SECRET") {
				asked.Store(true)
			}
			http.Error(w, "no", http.StatusGone)
		})
		direct := strings.TrimSuffix(index, "/simple") + "/files/greeting_words-1.0-py3-none-any.whl?sig=SECRET"
		for _, line := range []string{"greeting-words", "greeting-words @ " + direct} {
			p := newPlace(t)
			r := p.request(t, line)
			r.Indexes = requirement.Indexes{URL: index}
			if line != "greeting-words" {
				r.Requirements.URLs = []string{direct}
			}
			var heard []string
			r.Progress = func(words string) { heard = append(heard, words) }
			_, err := i.Install(t.Context(), r)
			if text := fmt.Sprint(err, lines(err), heard); err == nil || !asked.Load() || strings.Contains(text, "SECRET") {
				t.Errorf("%s (asked: %v): %s", line, asked.Load(), text)
			}
		}
	})
}
