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
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Limit is how long a request may take that does not block. An agent whose servers hang does
// not refuse a request, and does not answer it either.
const Limit = 3 * time.Second

// maxText bounds what is read of an answer that is not the one asked for.
const maxText = 1 << 10

// Client asks one agent. Its methods may be called concurrently.
type Client struct {
	Config
	http *http.Client
}

// New reads the files with certificates. That with the token is read for each request.
func New(a Config) (*Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.CAFile != "" {
		pem, err := os.ReadFile(a.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file can't be read: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file %s has no certificate", a.CAFile)
		}
	}
	if a.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file and key_file can't be used: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return &Client{a, &http.Client{
		Transport: &http.Transport{TLSClientConfig: config, MaxIdleConns: 2},
		CheckRedirect: func(*http.Request, []*http.Request) error { // Nomad does not, and the token is for Nomad
			return http.ErrUseLastResponse
		},
	}}, nil
}

// CloseIdleConnections ends the connections that are kept for the next request.
func (c *Client) CloseIdleConnections() { c.http.CloseIdleConnections() }

// Refused is an answer that is not 200.
type Refused struct {
	Status int
	Text   string
}

func (r *Refused) Error() string {
	if r.Status == http.StatusForbidden {
		return "access was denied (" + r.Text + "): set api.token_file to a token with the policy in the documentation"
	}
	return fmt.Sprintf("it answers with status %d (%s)", r.Status, r.Text)
}

// Get asks for a path, and has read decode the answer. It returns the index of the answer.
func (c *Client) Get(ctx context.Context, path string, query url.Values, read func(*json.Decoder) error) (
	string, error) {
	header, err := c.request(ctx, path, query, read)
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, ErrLate) {
			err = cause
		}
		return "", fmt.Errorf("the API at %s can't be used: %w", c.Address, err)
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
			return nil, fmt.Errorf("token_file can't be read: %w", err)
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
		return nil, fmt.Errorf("its answer to %s is not Nomad's: %w", path, err)
	}
	return response.Header, nil
}

// ErrLate is why a request was given up.
var ErrLate = errors.New("there is no answer")

// Soon bounds a request that does not block.
func Soon(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w within %s", ErrLate, limit))
}

// IsMissing returns whether Get's error says that Nomad has no such object. For one that a token may not see, the
// answer is another one. kind is Nomad's word for it, "alloc" or "job".
func IsMissing(err error, kind string) bool {
	var r *Refused
	return errors.As(err, &r) && r.Status == http.StatusNotFound && r.Text == kind+" not found"
}
