// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agentapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Limit is the usual time limit of a request (see Soon) and the time limit for setting up a connection. Without it, a
// request could wait forever: when Nomad's servers hang, an agent still accepts requests but never responds.
const Limit = 3 * time.Second

// maxText is the number of bytes of an error response that are read. The rest is ignored.
const maxText = 1 << 10

// Client sends requests to one agent. Its methods may be called concurrently.
type Client struct {
	Config
	http *http.Client
}

// New returns a client. The files with its credentials may be created or replaced later: the client reads the token for
// each request, and the certificates for each connection.
func New(a Config) *Client {
	return &Client{a, &http.Client{
		Transport: &http.Transport{DialTLSContext: a.dial, MaxIdleConns: 2},
		CheckRedirect: func(*http.Request, []*http.Request) error { // Nomad never redirects: do not send the token elsewhere
			return http.ErrUseLastResponse
		},
	}}
}

func (a Config) dial(ctx context.Context, network, address string) (net.Conn, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.CAFile != "" {
		pem, err := os.ReadFile(a.CAFile)
		if err != nil {
			return nil, fmt.Errorf("failed to read ca_file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file %s has no certificate", a.CAFile)
		}
	}
	if a.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("failed to load cert_file and key_file: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	// the limit covers the TLS handshake, which net/http continues even after the request has ended
	dialer := &tls.Dialer{Config: config, NetDialer: &net.Dialer{Timeout: Limit}}
	return dialer.DialContext(ctx, network, address)
}

// CloseIdleConnections closes the connections that no request is using now.
func (c *Client) CloseIdleConnections() { c.http.CloseIdleConnections() }

// Refused is the error for a response with a status other than 200.
type Refused struct {
	Status int
	Text   string
}

func (r *Refused) Error() string {
	if r.Status == http.StatusForbidden {
		return "access was denied (" + r.Text + "): set api.token_file to a file with a token that has the documented policy"
	}
	return fmt.Sprintf("the API returned status %d (%s)", r.Status, r.Text)
}

// Get requests a path and calls the function read to decode the body of the response. It returns the response's
// X-Nomad-Index, which a later blocking query needs to wait for the next change.
func (c *Client) Get(ctx context.Context, path string, query url.Values, read func(*json.Decoder) error) (
	string, error) {
	header, err := c.request(ctx, path, query, read)
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, ErrLate) {
			err = cause
		}
		return "", fmt.Errorf("failed to query the API at %s: %w", c.Address, err)
	}
	return header.Get("X-Nomad-Index"), nil
}

func (c *Client) request(ctx context.Context, path string, query url.Values, read func(*json.Decoder) error) (
	http.Header, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(c.Address, "/")+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.URL.RawQuery = query.Encode()
	if c.TokenFile != "" {
		token, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("failed to read token_file: %w", err)
		}
		request.Header.Set("X-Nomad-Token", strings.TrimSpace(string(token)))
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxText))
		return nil, &Refused{response.StatusCode, strings.TrimSpace(string(text))}
	}
	if err := read(json.NewDecoder(response.Body)); err != nil {
		return nil, fmt.Errorf("the response to %s is invalid: %w", path, err)
	}
	return response.Header, nil
}

// ErrLate is wrapped by the error of a request that took longer than the limit of Soon.
var ErrLate = errors.New("no response")

// Soon returns a context for a request that Nomad should answer immediately. It is not meant for blocking queries.
func Soon(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w within %s", ErrLate, limit))
}

// IsMissing reports whether an error of Get means that the requested object does not exist. kind is Nomad's word for
// the object in its response: "alloc" or "job". A token without access to an object causes a different error.
func IsMissing(err error, kind string) bool {
	var r *Refused
	return errors.As(err, &r) && r.Status == http.StatusNotFound && r.Text == kind+" not found"
}
