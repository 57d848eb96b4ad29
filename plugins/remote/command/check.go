// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/plugins/remote/driver"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

var checkCommand = command{
	name: "check", help: "connect to endpoints, and report each step and what to do",
	usage: "[-config FILE] [-image IMAGE] [ENDPOINT …]", most: 1000,
	about: "Checks the agent's configuration, connects to each endpoint, and asks Nomad's API what the plugin's token\n" +
		"sees. Each step is a line. A host gets the plugin's program, as it does for a task. With -image an engine gets\n" +
		"the image, if it does not have it. Nothing else is left there.",
	options: func(f *flag.FlagSet) func(context.Context, *session, []string) error {
		image := f.String("image", "", "do what a start of this `image` needs: pull it, and create a container")
		return func(ctx context.Context, s *session, args []string) error {
			names, err := s.names(args)
			if err != nil {
				return err
			}
			if *image != "" && !slices.ContainsFunc(names, func(n string) bool { return s.config.Endpoints[n].Docker != nil }) {
				return errors.New("-image is for container engines, and none of these endpoints is one")
			}
			fmt.Fprintf(s.out, "%s: the configuration is valid\n", s.path)
			bad := 0
			for _, name := range names {
				fmt.Fprintf(s.out, "\nendpoint %s\n", name)
				c := checking{s: s, name: name, endpoint: s.config.Endpoints[name], image: *image}
				for _, step := range []func(context.Context) (string, error){c.resolve, c.connect, c.probe, c.tasks, c.try} {
					ok, err := step(ctx)
					if err != nil {
						fmt.Fprintf(s.out, "  FAILED  %s\n", plain.Line(err.Error(), 0))
						bad++
						break
					}
					for line := range strings.Lines(ok) {
						text, note := strings.CutPrefix(line, noteMark)
						s.told(!note, text)
					}
				}
			}
			fmt.Fprintf(s.out, "\nNomad's API\n")
			sight := s.all.Sight(ctx)
			useless := s.config.API.TokenFile != "" && !sight.All && len(sight.Namespaces) == 0
			if useless {
				fmt.Fprintf(s.out, "  FAILED  %s\n", plain.Line(sight.Reason, 0))
			} else {
				s.told(sight.All, sight.Reason)
			}
			switch {
			case bad > 0:
				return fmt.Errorf("%d of %d endpoints can't be used", bad, len(names))
			case useless:
				return errors.New("the token can't be used")
			}
			return nil
		}
	},
}

// noteMark begins a line of a step that is no failure, but that the reader should know.
const noteMark = "note: "

func (s *session) told(ok bool, text string) {
	word := "note"
	if ok {
		word = "ok  "
	}
	fmt.Fprintf(s.out, "  %s    %s\n", word, plain.Line(text, 0))
}

// checking is the check of one endpoint.
type checking struct {
	s        *session
	name     string
	endpoint driver.Endpoint
	image    string // to be tried, empty for none
	first    string // host:port of the first host on the way, empty for a socket of this machine
}

// resolve finds out which host is connected to first.
func (c *checking) resolve(ctx context.Context) (string, error) {
	var host string
	var port int
	var jump *driver.Jump
	if e := c.endpoint; e.SSH != nil {
		host, port, jump = e.SSH.Host, e.SSH.Port, e.SSH.Jump
	} else {
		u, err := url.Parse(e.Docker.Host)
		if err != nil {
			return "", err
		}
		if u.Scheme == "unix" {
			if _, err := os.Stat(u.Path); err != nil {
				return "", fmt.Errorf("%w: is the engine running, and is this its socket?", err)
			}
			return u.Path + " is there", nil
		}
		host = u.Hostname()
		port, _ = strconv.Atoi(cmp.Or(u.Port(), "22"))
		if e.Docker.SSH != nil {
			jump = e.Docker.SSH.Jump
		}
	}
	if jump != nil {
		host, port = jump.Host, jump.Port
	}
	c.first = net.JoinHostPort(host, strconv.Itoa(port))
	if net.ParseIP(host) != nil {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return "", fmt.Errorf("%w: is the name of the host right?", err)
	}
	return fmt.Sprintf("%s has the address %s", host, strings.Join(addresses, ", ")), nil
}

func (c *checking) connect(ctx context.Context) (string, error) {
	if c.first == "" {
		return "", nil
	}
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", c.first)
	if err != nil {
		return "", fmt.Errorf("%w: does a server listen there, and does a firewall let this machine through?", err)
	}
	return c.first + " takes connections", conn.Close()
}

// probe logs in. Its error says at which step it failed.
func (c *checking) probe(ctx context.Context) (string, error) {
	e, err := c.s.all.Get(c.name)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begun := time.Now()
	f, err := e.Probe(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return "", fmt.Errorf("no answer within %s: %w", patience, err)
	}
	if err != nil {
		return "", err
	}
	what := f.Kind
	if c.endpoint.SSH != nil {
		what = "Linux"
	}
	lines := []string{
		fmt.Sprintf("%s, within %s", c.proven(), time.Since(begun).Round(time.Millisecond)),
		fmt.Sprintf("it has %s %s on %s, %d CPUs and %d MiB of memory", what, f.Version, f.Arch, f.CPUs, f.Memory>>20),
		"limits of resources are enforced",
	}
	if f.Limits != "" {
		lines[2] = noteMark + "limits of resources are not enforced: " + f.Limits
	}
	if address := cmp.Or(c.endpoint.Address, f.Address, c.endpoint.Reached()); address != "" {
		lines = append(lines, "services are announced with the address "+address)
	} else {
		lines = append(lines, "it has no address for services: set the option address of the endpoint")
	}
	for _, name := range slices.Sorted(maps.Keys(f.More)) {
		lines = append(lines, fmt.Sprintf("%s is %s", name, f.More[name]))
	}
	return strings.Join(lines, "\n"), nil
}

// proven is what an answer shows.
func (c *checking) proven() string {
	switch d := c.endpoint.Docker; {
	case d == nil:
		return "the host key is the pinned one, the log-in works, and the plugin's program is there and runs"
	case d.SSH != nil:
		return "the host key is the pinned one, the log-in works, and the engine answers behind it"
	case d.CertFile != "":
		return "the engine answers, and both sides' certificates are valid"
	}
	return "the engine answers"
}

func (c *checking) tasks(ctx context.Context) (string, error) {
	e, err := c.s.all.Get(c.name)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	all, err := e.List(ctx)
	if err != nil {
		return "", fmt.Errorf("its tasks can't be listed: %w", err)
	}
	return "it has " + tasks(len(all)), nil
}

// tryTime is how long a pull may take. A reaper leaves what is younger than that.
const tryTime = 5 * time.Minute

// try does what a start does before anything runs.
func (c *checking) try(ctx context.Context) (string, error) {
	if c.image == "" || c.endpoint.Docker == nil {
		return "", nil
	}
	e, err := c.s.all.Get(c.name)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	key := endpoint.Key{Cluster: c.s.config.Cluster, Job: "check", Group: "check", Task: "check"}
	hash := strings.ToLower(rand.Text())
	r := &endpoint.Record{
		Name: key.Name(hash), Key: key, Hash: hash, Owner: byHand("", &endpoint.Record{}), Reason: "checked by hand",
	}
	if err := e.Create(ctx, r); err != nil {
		return "", fmt.Errorf("no task can be made there: %w", err)
	}
	made := endpoint.Ref{Name: r.Name, Epoch: 1, Start: r.Owner.TaskID}
	var told []string
	err = e.Prepare(ctx, made, &endpoint.Spec{
		Task: key.Task, Container: &endpoint.Container{Image: c.image, Command: []string{"true"}},
	}, func(message string) { told = append(told, message) })
	if err != nil {
		err = fmt.Errorf("a task with image %s can't be started: %w", c.image, err)
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if rerr := e.Remove(ctx, made); rerr != nil {
		err = errors.Join(err, fmt.Errorf("failed to remove %s again (\"stop\" does it): %w", r.Name, rerr))
	}
	if len(told) == 0 {
		told = []string{fmt.Sprintf("image %s is there", c.image)}
	}
	return strings.Join(append(told, "a container of it can be created"), "\n"), err
}
