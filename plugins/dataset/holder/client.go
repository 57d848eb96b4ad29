// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package holder

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

	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// limit is how long a request may take that does not block. An agent whose servers hang does
// not refuse a request, and does not answer it either.
const limit = 3 * time.Second

// maxText bounds what is read of an answer that is not the one asked for.
const maxText = 1 << 10

// client asks one agent.
type client struct {
	API
	http *http.Client
}

func (a API) connect() (*client, error) {
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
	return &client{a, &http.Client{
		Transport: &http.Transport{TLSClientConfig: config, MaxIdleConns: 2},
		CheckRedirect: func(*http.Request, []*http.Request) error { // Nomad does not, and the token is for Nomad
			return http.ErrUseLastResponse
		},
	}}, nil
}

// refused is an answer that is not 200.
type refused struct {
	status int
	text   string
}

func (r *refused) Error() string {
	if r.status == http.StatusForbidden {
		return "access was denied (" + r.text + "): set api.token_file to a token with the policy in the documentation"
	}
	return fmt.Sprintf("it answers with status %d (%s)", r.status, r.text)
}

// get asks for a path, and has read decode the answer. It returns the index of the answer.
func (c *client) get(ctx context.Context, path string, query url.Values, read func(*json.Decoder) error) (
	string, error) {
	header, err := c.request(ctx, path, query, read)
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errLate) {
			err = cause
		}
		return "", fmt.Errorf("the API at %s can't be used: %w", c.Address, err)
	}
	return header.Get("X-Nomad-Index"), nil
}

func (c *client) request(ctx context.Context, path string, query url.Values, read func(*json.Decoder) error) (
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
		return nil, &refused{response.StatusCode, strings.TrimSpace(string(text))}
	}
	if err := read(json.NewDecoder(response.Body)); err != nil {
		return nil, fmt.Errorf("its answer to %s is not Nomad's: %w", path, err)
	}
	return response.Header, nil
}

// node asks for the id of the agent's node.
func (c *client) node(ctx context.Context) (string, error) {
	ctx, cancel := soon(ctx)
	defer cancel()
	var self struct {
		Stats struct {
			Client struct {
				Node string `json:"node_id"`
			} `json:"client"`
		} `json:"stats"`
	}
	_, err := c.get(ctx, "/v1/agent/self", nil, func(d *json.Decoder) error { return d.Decode(&self) })
	if err == nil && !policy.IsID(self.Stats.Client.Node) {
		err = fmt.Errorf("the agent at %s is no client: api.address is that of the agent that runs the plugin", c.Address)
	}
	return self.Stats.Client.Node, err
}

// seesAll reports whether nothing can be hidden from the token: because there are no ACLs, or
// because it may do everything.
func (c *client) seesAll(ctx context.Context) (bool, error) {
	ctx, cancel := soon(ctx)
	defer cancel()
	var self struct{ AccessorID, Type string }
	_, err := c.get(ctx, "/v1/acl/token/self", nil, func(d *json.Decoder) error { return d.Decode(&self) })
	return self.AccessorID == "acls-disabled" || self.Type == "management", err
}

// gone reports whether Nomad knows that there is no such allocation. For one that a token may
// not read, the answer is another one.
func (c *client) gone(ctx context.Context, id, namespace string) (bool, error) {
	ctx, cancel := soon(ctx)
	defer cancel()
	_, err := c.get(ctx, "/v1/allocation/"+id, url.Values{"namespace": {namespace}},
		func(*json.Decoder) error { return nil })
	var r *refused
	if errors.As(err, &r) && r.status == http.StatusNotFound {
		return r.text == "alloc not found", nil
	}
	return false, err
}

// errLate is why a request was given up.
var errLate = errors.New("there is no answer")

func soon(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w within %s", errLate, limit))
}
