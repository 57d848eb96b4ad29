package install_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

func TestAnIndexMaySendTheInstallerToItsOwnEncryptedSide(t *testing.T) {
	index, _ := encryptedIndex(t)
	// the agent's proxy, so that hosts can have any name and port
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Redirect(w, r, "https://"+r.URL.Hostname()+r.URL.Path, http.StatusMovedPermanently)
			return
		}
		connect(w, index.Listener.Addr())
	}))
	t.Cleanup(proxy.Close)
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("HTTPS_PROXY", proxy.URL)
	t.Setenv("NO_PROXY", "")
	for url, may := range map[string]bool{
		"http://example.com/simple":      true,
		"http://example.com:8080/simple": false, // which is another service
	} {
		tools(t, func(t *testing.T, i install.Installer) {
			p := newPlace(t)
			r := p.request(t, "hello-world")
			r.Indexes = requirement.Indexes{URL: url}
			_, err := i.Install(t.Context(), r)
			var e *install.Error
			if refused := errors.As(err, &e) && e.Cause == install.RefusedHost; may && err != nil || !may && !refused {
				t.Errorf("%s: the error is %v\n%s", url, err, lines(err))
			}
		})
	}
}
