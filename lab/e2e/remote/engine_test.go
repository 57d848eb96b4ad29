// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package remote

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// image is that of the table's containers: a static busybox. Another process may run the table at the same time.
var image = fmt.Sprintf("localhost/outrider-table:%d", os.Getpid())

// engine is a Docker engine of this machine.
type engine struct {
	socket string
	client http.Client

	mu      sync.Mutex
	objects map[string]bool // of the table: others may use the engine, too
}

// newEngine returns nil where there is none. It has the image.
func newEngine(t *testing.T) *engine {
	t.Helper()
	e := &engine{socket: "/var/run/docker.sock", objects: map[string]bool{}}
	if host, ok := strings.CutPrefix(os.Getenv("DOCKER_HOST"), "unix://"); ok {
		e.socket = host
	}
	e.client = http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", e.socket)
		},
	}}
	if _, err := e.call(http.MethodGet, "/_ping", nil); err != nil {
		return nil
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	box, err := os.ReadFile("/bin/busybox")
	must.NoError(t, err)
	must.NoError(t, w.WriteHeader(&tar.Header{Name: "bin/busybox", Mode: 0o755, Size: int64(len(box))}))
	_, err = w.Write(box)
	must.NoError(t, err)
	for _, name := range []string{"sh", "sleep", "cat", "head", "seq", "stty", "tr"} {
		must.NoError(t, w.WriteHeader(&tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox"}))
	}
	must.NoError(t, w.Close())
	name, tag, _ := strings.Cut(image, ":")
	_, err = e.call(http.MethodPost, "/images/create?fromSrc=-&repo="+name+"&tag="+tag, &b)
	must.NoError(t, err)
	t.Cleanup(func() {
		_, err := e.call(http.MethodDelete, "/images/"+image+"?force=1", nil)
		test.NoError(t, err)
		e.client.CloseIdleConnections()
	})
	return e
}

func (e *engine) call(method, path string, body io.Reader) ([]byte, error) {
	r, err := http.NewRequest(method, "http://engine"+path, body)
	if err != nil {
		return nil, err
	}
	response, err := e.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	return text, err
}

// part is a container or volume of an object there.
type part struct {
	Name   string
	Names  []string
	State  string
	Labels map[string]string
}

const (
	ofPlugin = "dev.outrider.plugin"
	ofObject = "dev.outrider.object"
	ofTask   = "dev.outrider.task"
)

func (e *engine) parts() (containers, volumes []part, err error) {
	filter := url.QueryEscape(`{"label":["` + ofPlugin + `"]}`)
	b, err := e.call(http.MethodGet, "/containers/json?all=1&filters="+filter, nil)
	if err != nil {
		return nil, nil, err
	}
	v, err := e.call(http.MethodGet, "/volumes?filters="+filter, nil)
	if err != nil {
		return nil, nil, err
	}
	var list struct{ Volumes []part }
	err = errors.Join(json.Unmarshal(b, &containers), json.Unmarshal(v, &list))
	return containers, list.Volumes, err
}

// know learns which objects are those of cells.
func (e *engine) know(list ...*cell) error {
	if e == nil {
		return nil
	}
	containers, _, err := e.parts()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range list {
		for _, p := range containers {
			if strings.Contains(p.Labels[ofTask], "/"+c.job+".") {
				e.objects[p.Labels[ofObject]] = true
			}
		}
	}
	return err
}

// left is an error if there is something of the table's objects.
func (e *engine) left() error {
	if e == nil {
		return nil
	}
	containers, volumes, err := e.parts()
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.objects) == 0 {
		return errors.New("no object of the table was ever seen")
	}
	for _, p := range containers {
		if e.objects[p.Labels[ofObject]] {
			return fmt.Errorf("container %v of %s is left, %s", p.Names, p.Labels[ofTask], p.State)
		}
	}
	for _, p := range volumes {
		if e.objects[p.Labels[ofObject]] {
			return fmt.Errorf("volume %s of object %s is left", p.Name, p.Labels[ofObject])
		}
	}
	return nil
}
