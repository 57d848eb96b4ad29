// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// parseIsolate parses the values of the option isolate of a plugin or a task. Each value names a resource that the task
// does not share with the host.
func parseIsolate(names ...string) (own task.Isolation, err error) {
	for _, name := range names {
		switch name {
		case "tmp":
			own.Tmp = true
		case "ipc":
			own.IPC = true
		case "pid":
			own.PID = true
		default:
			return own, fmt.Errorf("isolate: %q is not known: use \"tmp\", \"ipc\" or \"pid\"", name)
		}
	}
	return own, nil
}

// isolation returns the resources that a task does not share with the host. If the agent can't mount, the task shares
// all of them, and the option isolate is an error.
func isolation(p PluginOptions, o TaskOptions, cfg *drivers.TaskConfig) (task.Isolation, error) {
	own, err := parseIsolate(slices.Concat(p.Isolate, o.Isolate)...)
	if err != nil {
		return own, err
	}
	if !canMount() {
		if own.Tmp || own.IPC || own.PID {
			err = fmt.Errorf("isolate can't be used on this node: the agent lacks CAP_SYS_ADMIN")
		}
		return task.Isolation{}, err
	}
	if dns := cfg.DNS; dns != nil && len(dns.Servers)+len(dns.Searches)+len(dns.Options) > 0 {
		host, err := os.ReadFile("/etc/resolv.conf")
		if err != nil && !os.IsNotExist(err) {
			return own, fmt.Errorf("failed to read the host's DNS configuration: %w", err)
		}
		own.Files = append(own.Files, task.File{Path: "/etc/resolv.conf", Content: resolvConf(string(host), dns)})
	}
	own.Hostname = hostname(cfg)
	if own.Hostname != "" {
		hosts, err := os.ReadFile("/etc/hosts")
		if err != nil && !os.IsNotExist(err) {
			return own, fmt.Errorf("failed to read the host's /etc/hosts: %w", err)
		}
		address := "127.0.0.1"
		if c := cfg.NetworkIsolation.HostsConfig; c != nil && c.Address != "" {
			address = c.Address
		}
		content := strings.TrimRight(string(hosts), "\n") + "\n" + address + " " + own.Hostname + "\n"
		own.Files = append(own.Files, task.File{Path: "/etc/hosts", Content: strings.TrimLeft(content, "\n")})
	}
	return own, nil
}

// resolvConf returns a resolv.conf(5) with the settings of a dns block. Settings that the block lacks are taken from
// the host's file, as in Nomad's own drivers.
func resolvConf(host string, dns *drivers.DNSConfig) string {
	var b strings.Builder
	keep := func(keywords ...string) {
		for line := range strings.Lines(host) {
			words := strings.Fields(line)
			if len(words) > 1 && slices.Contains(keywords, words[0]) {
				b.WriteString(strings.Join(words, " ") + "\n")
			}
		}
	}
	if len(dns.Searches) > 0 {
		b.WriteString("search " + strings.Join(dns.Searches, " ") + "\n")
	} else {
		keep("search", "domain")
	}
	if len(dns.Servers) > 0 {
		for _, server := range dns.Servers {
			b.WriteString("nameserver " + server + "\n")
		}
	} else {
		keep("nameserver")
	}
	if len(dns.Options) > 0 {
		b.WriteString("options " + strings.Join(dns.Options, " ") + "\n")
	} else {
		keep("options")
	}
	return b.String()
}

// hostname returns the host name that a job gives to its group's network. Nomad passes it in a label
// (client/allocrunner/network_hook.go).
func hostname(cfg *drivers.TaskConfig) string {
	if cfg.NetworkIsolation == nil {
		return ""
	}
	return cfg.NetworkIsolation.Labels["docker_sandbox_hostname"]
}
