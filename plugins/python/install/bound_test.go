package install_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

func TestAnInstallerThatTakesTooMuchEndsBeforeItIsDone(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		for _, name := range []string{"first", "second"} {
			wheeltest.Wheel{Name: name, Version: "1.0", Files: map[string]string{name + ".bin": noise(3 << 20)}}.Write(t, p.wheels)
		}
		// The end of the second file never comes: the installer itself waits for it.
		handler, ended := wheeltest.Handler(p.wheels), make(chan struct{})
		index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/files/second-") && r.Method == http.MethodGet && r.Header.Get("Range") == "" {
				w = &stalling{ResponseWriter: w, left: 5 << 19, until: ended}
			}
			handler.ServeHTTP(w, r)
		}))
		defer index.Close()
		defer close(ended)
		r := p.request(t, "first", "second")
		r.Indexes = requirement.Indexes{URL: index.URL + "/simple"}
		r.MaxSize = 4 << 20
		_, err := i.Install(t.Context(), r)
		var e *install.Error
		if !errors.As(err, &e) || e.Cause != install.TooLarge || !strings.Contains(e.Words, "the packages take more than the 4 MiB") {
			t.Errorf("the error is %v\n%s", err, lines(err))
		}
		nothingRuns(t)
	})
}

// stalling sends only the beginning.
type stalling struct {
	http.ResponseWriter
	left  int
	until <-chan struct{}
}

func (w *stalling) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p[:min(len(p), w.left)])
	w.left -= n
	if err == nil && w.left == 0 {
		err = http.NewResponseController(w.ResponseWriter).Flush()
		select {
		case <-w.until:
		case <-time.After(time.Minute):
		}
		return n, errors.Join(err, http.ErrAbortHandler)
	}
	return n, err
}
