// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package index

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func testProxy(t *testing.T, a *Access) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must.NoError(t, err)
	p := NewProxy(l, a, false, nil)
	t.Cleanup(p.Close)
	return p
}

func TestProxy_RemembersLittle(t *testing.T) {
	p := testProxy(t, &Access{})
	for n := range 1000 {
		host := fmt.Sprintf("host%d:443", n)
		p.refuse(host)
		p.remember(&url.URL{Scheme: "https", Host: host}, io.ErrUnexpectedEOF)
	}
	must.Len(t, maxRemembered, p.Refused())
	must.MapLen(t, maxRemembered, p.failed)
}

func TestProxy_WantsItsOwnCredentials(t *testing.T) {
	index := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(index.Close)
	allowed, err := url.Parse(index.URL)
	must.NoError(t, err)
	var a Access
	a.Add(allowed)
	p := testProxy(t, &a)
	via, err := url.Parse(p.URL)
	must.NoError(t, err)
	for login, want := range map[*url.Userinfo]int{
		via.User:                               http.StatusNotFound,
		nil:                                    http.StatusProxyAuthRequired,
		url.UserPassword("installer", "other"): http.StatusProxyAuthRequired,
	} {
		proxy := *via
		proxy.User = login
		client := http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&proxy)}}
		answer, err := client.Get(index.URL)
		must.NoError(t, err)
		must.NoError(t, answer.Body.Close())
		must.EqOp(t, want, answer.StatusCode)
	}
	password, _ := via.User.Password()
	must.EqOp(t, "Proxy-Authorization: ****", a.Redact("Proxy-Authorization: "+password))
}

func TestProxy_AsksEncryptedIndexes(t *testing.T) {
	for status, failed := range map[int]bool{
		200: false, 401: false, 403: false, 404: false, 408: true, 425: true, 429: true, 500: true, 521: true,
	} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _, login := r.BasicAuth()
			must.False(t, login)
			must.EqOp(t, "/simple/", r.URL.Path)
			w.WriteHeader(status)
		}))
		s.StartTLS()
		p := testProxy(t, &Access{})
		p.transport.TLSClientConfig = &tls.Config{RootCAs: s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
		plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("asked by http") }))
		host, err := p.Failed(t.Context(), Sources{
			URL: plain.URL, Extra: []string{strings.Replace(s.URL, "://", "://me:secret@", 1) + "/simple"},
		})
		must.EqOp(t, failed, err != nil, must.Sprint(status))
		must.EqOp(t, failed, host == strings.TrimPrefix(s.URL, "https://"))
		s.Close()
		plain.Close()
	}
	s := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	_, err := testProxy(t, &Access{}).Failed(t.Context(), Sources{URL: s.URL})
	must.ErrorContains(t, err, "certificate")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = testProxy(t, &Access{}).Failed(ended, Sources{URL: s.URL})
	must.NoError(t, err)
}
