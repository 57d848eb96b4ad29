package install_test

import (
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

func TestAnotherIndexHasWhatTheFirstHasNot(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		hello(t, p.wheels)
		wheeltest.Wheel{Name: "report-tools", Version: "4.2", Requires: []string{"hello-world"}}.Write(t, p.wheels+"/private")
		r := p.request(t, "report-tools")
		r.Indexes = requirement.Indexes{URL: wheeltest.Index(t, p.wheels).URL + "/simple", Extra: []string{wheeltest.Index(t, p.wheels+"/private").URL + "/simple"}}
		result, err := i.Install(t.Context(), r)
		if err != nil {
			t.Fatalf("%v\n%s", err, lines(err))
		}
		if want := []string{"greeting-words 1.0", "hello-world 2.0", "report-tools 4.2"}; !slices.Equal(result.Packages, want) {
			t.Errorf("installed %q, not %q", result.Packages, want)
		}
	})
}

// So whoever registers a private name on a public index reaches jobs of nodes that have pip, and of no others.
func TestOfOneNameOnTwoIndexesUVTakesTheFirstIndexAndPipTheNewestVersion(t *testing.T) {
	for _, test := range []struct {
		name    string
		wanted  string
		indexes []string // version of each: the more ones in their order, and then index_url
		uv, pip string   // what is installed, "" is an error
	}{
		{name: "a newer one on the index", wanted: "report-tools", indexes: []string{"1.0", "2.0"}, uv: "1.0", pip: "2.0"},
		{name: "an older one on the index", wanted: "report-tools", indexes: []string{"2.0", "1.0"}, uv: "2.0", pip: "2.0"},
		{name: "a version that is on the index alone", wanted: "report-tools>=2", indexes: []string{"1.0", "2.0"}, uv: "", pip: "2.0"},
		{name: "a newer one on the second of two more", wanted: "report-tools", indexes: []string{"1.0", "3.0", "2.0"}, uv: "1.0", pip: "3.0"},
		{name: "nothing on the first of two more", wanted: "report-tools", indexes: []string{"", "1.0", "2.0"}, uv: "1.0", pip: "2.0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			tools(t, func(t *testing.T, i install.Installer) {
				p := newPlace(t)
				var urls []string
				for n, version := range test.indexes {
					dir := filepath.Join(p.wheels, string(rune('a'+n)))
					if version != "" {
						wheeltest.Wheel{Name: "report-tools", Version: version}.Write(t, dir)
					}
					urls = append(urls, wheeltest.Index(t, dir).URL+"/simple")
				}
				last := len(urls) - 1
				r := p.request(t, test.wanted)
				r.Indexes = requirement.Indexes{URL: urls[last], Extra: urls[:last]}
				want := map[string]string{"uv": test.uv, "pip": test.pip}[i.Name]
				result, err := i.Install(t.Context(), r)
				if want == "" {
					var e *install.Error
					if !errors.As(err, &e) || e.Temporary() {
						t.Errorf("the error is %v\n%s", err, lines(err))
					}
				} else if err != nil {
					t.Errorf("%v\n%s", err, lines(err))
				} else if !slices.Equal(result.Packages, []string{"report-tools " + want}) {
					t.Errorf("installed %q, not %s", result.Packages, want)
				}
			})
		})
	}
}

func TestNothingIsTakenFromAnotherIndexWhileTheFirstIsDown(t *testing.T) {
	t.Run("uv", func(t *testing.T) { // pip goes on without it
		i := uv(t)
		p := newPlace(t)
		wheeltest.Wheel{Name: "report-tools", Version: "9.9"}.Write(t, p.wheels)
		r := p.request(t, "report-tools")
		r.Indexes = requirement.Indexes{URL: wheeltest.Index(t, p.wheels).URL + "/simple", Extra: []string{serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "no", http.StatusServiceUnavailable)
		})}}
		_, err := i.Install(t.Context(), r)
		var e *install.Error
		if !errors.As(err, &e) || e.Cause != install.Unreachable || !e.Temporary() {
			t.Errorf("the error is %v\n%s", err, lines(err))
		}
	})
}
