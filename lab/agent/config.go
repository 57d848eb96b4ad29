// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"fmt"
	"strconv"
	"strings"
)

// layout is where an agent finds its directories, as its own process sees them.
type layout struct {
	data, plugins, hostVolumes, state string

	bind, iface string // iface empty: Nomad picks
}

// config renders the agent's configuration.
func config(o Options, l layout, i Info) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }

	p("name       = %s", quote(o.Name))
	p("data_dir   = %s", quote(l.data))
	p("plugin_dir = %s", quote(l.plugins))
	p("bind_addr  = %s", quote(l.bind))
	p(`
log_level            = "INFO"
disable_update_check = true
leave_on_interrupt   = false # a stopped agent comes back, and its tasks with it
leave_on_terminate   = false

ports {
  http = %d
  rpc  = %d
  serf = %d
}

advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}

server {
  enabled          = %t
  bootstrap_expect = 1
  raft_multiplier  = 1    # the shortest election time-outs
  heartbeat_grace  = "5m" # the node is this very process: a heartbeat is late where the machine was busy or asleep

  default_scheduler_config {
    scheduler_algorithm = "binpack"
  }
}

acl {
  enabled = %t
}

client {
  enabled                = %t
  host_volume_plugin_dir = %s`, i.HTTP, i.RPC, i.Serf, o.Server == "", o.Token != "", !o.ServerOnly,
		quote(l.hostVolumes))
	if o.Server != "" {
		p("  servers = [%s]", quote(o.Server))
	}
	if l.iface != "" {
		p("  network_interface = %s", quote(l.iface))
	}
	p(`
  # a laptop's disk is often fuller than a server's: keep ended allocations for a look at their logs
  gc_disk_usage_threshold  = 99
  gc_inode_usage_threshold = 99

  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault"
    "driver.denylist"      = "docker,java,qemu"
  }
}

consul {
  auto_advertise   = false
  server_auto_join = false
  client_auto_join = false
}

limits {
  http_max_conns_per_client = 0
}

telemetry {
  publish_allocation_metrics = true # without it, Nomad asks no driver for statistics
}

# for comparison
plugin "raw_exec" {
  config {
    enabled = true
  }
}`)
	for _, pl := range o.Plugins {
		text := strings.NewReplacer("${state_dir}", l.state, "${host_volume_plugin_dir}", l.hostVolumes,
			"${http_port}", strconv.Itoa(i.HTTP)).Replace(pl.Config)
		p("\nplugin %s {\n  config {\n%s  }\n}", quote(pl.Name()), indent(text, "    "))
	}
	return b.String()
}

// hostVolumeFiles are the files beside host volume plugins, by name.
func hostVolumeFiles(o Options) map[string]string {
	files := map[string]string{}
	for _, p := range o.Plugins {
		if p.HostVolumeFile != "" {
			files[p.HostVolume+".hcl"] = p.HostVolumeFile
		}
	}
	return files
}

// quote writes an HCL string. "${" and "%{" would start a template.
func quote(s string) string {
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(strconv.Quote(s))
}

func indent(s, by string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.Trim(s, "\n")) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		b.WriteString(by + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}
