package install_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

func TestWhatCredentialsGotServesNoJobWithoutThem(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		wheel := wheeltest.Wheel{Name: "private", Version: "1.0"}
		wheel.Write(t, p.wheels)
		handler := wheeltest.Handler(p.wheels)
		simple := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if _, password, _ := r.BasicAuth(); password != "hunter2" {
				w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			w.Header().Set("Cache-Control", "max-age=3600")
			handler.ServeHTTP(w, r)
		})
		with := func(url string) string { return strings.Replace(url, "http://", "http://user:hunter2@", 1) }
		file := strings.TrimSuffix(simple, "/simple") + "/files/" + wheel.File()
		downloads := p.downloads()
		for name, request := range map[string]func(url func(string) string) install.Request{
			"of an index": func(url func(string) string) install.Request {
				r := p.request(t, "private")
				r.Indexes = requirement.Indexes{URL: url(simple)}
				return r
			},
			"by its URL": func(url func(string) string) install.Request {
				r := p.request(t, "private @ "+url(file))
				r.Requirements.URLs = []string{url(file)}
				return r
			},
		} {
			p = newPlace(t)
			r := request(with)
			r.Downloads = downloads
			if _, err := i.Install(t.Context(), r); err != nil {
				t.Fatalf("%s, with credentials: %v\n%s", name, err, lines(err))
			}
			p = newPlace(t)
			r = request(func(url string) string { return url })
			r.Downloads = downloads
			_, err := i.Install(t.Context(), r)
			var e *install.Error
			if !errors.As(err, &e) || e.Temporary() || !e.Refused {
				t.Errorf("%s, without: %v", name, err)
			}
		}
	})
}
