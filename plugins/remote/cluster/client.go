// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/go-cleanhttp"
	"github.com/hashicorp/nomad/api"
)

// Options say how Nomad's API is reached.
type Options struct {
	Addresses []string // asked in turn, from the one that answered last
	TokenFile string   // empty: questions are asked without a token, or with a task's identity

	CAFile, CertFile, KeyFile string // empty: the system's authorities, and no certificate
}

// Client asks Nomad's API.
type Client struct {
	o Options

	mu      sync.Mutex
	last    string // the address that answered last
	clients map[string]connection
}

// connection is a client of one address.
type connection struct {
	*api.Client
	files string // what the TLS files were when it was made
}

// New returns a client. It does not connect.
func New(o Options) *Client { return &Client{o: o, clients: map[string]connection{}} }

// Close ends idle connections.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.clients {
		n.Close()
	}
	return nil
}

// taskAPI stands for the Task API of an identity among addresses.
const taskAPI = "the task's api.sock"

// addresses are asked in this order.
func (c *Client) addresses(by token) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.Clone(c.o.Addresses)
	if i := slices.Index(list, c.last); i > 0 {
		list = append(list[i:], list[:i]...)
	}
	if by.secrets != "" { // never with a token of the plugin's own: the task may listen there
		list = append(list, taskAPI)
	}
	return list
}

func (c *Client) answered(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if address != taskAPI {
		c.last = address
	}
}

// client returns a client of an address. The TLS files are read again when they have changed.
func (c *Client) client(address string, by token) (*api.Client, error) {
	if address == taskAPI {
		return taskClient(by.secrets)
	}
	files := c.files()
	c.mu.Lock()
	defer c.mu.Unlock()
	known, found := c.clients[address]
	if found && known.files == files {
		return known.Client, nil
	}
	made, err := c.connect(address)
	if err != nil {
		return nil, err
	}
	if found {
		known.Close()
	}
	c.clients[address] = connection{made, files}
	return made, nil
}

func (c *Client) connect(address string) (*api.Client, error) {
	made, err := api.NewClient(&api.Config{Address: address, TLSConfig: &api.TLSConfig{
		CACert: c.o.CAFile, ClientCert: c.o.CertFile, ClientKey: c.o.KeyFile,
	}})
	if err != nil {
		return nil, fmt.Errorf("failed to make a client for %s: %w", address, err)
	}
	return made, nil
}

// files tells the versions of the TLS files apart.
func (c *Client) files() string {
	var b strings.Builder
	for _, name := range []string{c.o.CAFile, c.o.CertFile, c.o.KeyFile} {
		if st, err := os.Stat(name); name != "" && err == nil {
			fmt.Fprintln(&b, st.ModTime().UnixNano(), st.Size())
		}
	}
	return b.String()
}

// taskClient connects to the Task API in a task's secrets directory once: the agent may make another socket.
func taskClient(secrets string) (*api.Client, error) {
	transport := cleanhttp.DefaultTransport() // keeps no connections
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		socket, err := openSecret(secrets, "api.sock")
		if err != nil {
			return nil, err
		}
		defer socket.Close()
		if st, err := socket.Stat(); err != nil || st.Mode().Type() != os.ModeSocket {
			return nil, errors.New("api.sock is no socket")
		}
		var d net.Dialer
		return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", socket.Fd()))
	}
	transport.MaxResponseHeaderBytes = longest
	web := &http.Client{Transport: brief{transport}, Timeout: limit}
	return api.NewClient(&api.Config{Address: "http://task", HttpClient: web})
}

// brief lets through so much of an answer as an allocation and its job have, for an answer that may be a task's.
type brief struct{ http.RoundTripper }

const mostAnswered = 2 << 20

// RoundTrip is part of http.RoundTripper.
func (b brief) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Del("Accept-Encoding") // the transport unpacks then, and not what reads the body
	got, err := b.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	got.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(got.Body, mostAnswered), got.Body}
	return got, nil
}
