# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

name       = {{quote .Options.Name}}
data_dir   = {{quote .Layout.Data}}
plugin_dir = {{quote .Layout.Plugins}}
bind_addr  = {{quote .Layout.Bind}}

log_level            = "INFO"
disable_update_check = true
leave_on_interrupt   = false # a stopped agent starts again, and its tasks keep running
leave_on_terminate   = false

ports {
  http = {{.Info.HTTP}}
  rpc  = {{.Info.RPC}}
  serf = {{.Info.Serf}}
}

advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}

server {
  enabled          = {{eq .Options.Server ""}}
  bootstrap_expect = 1
  raft_multiplier  = 1    # the shortest election time-outs
  heartbeat_grace  = "5m" # the client is this process, too: a heartbeat is late only if the machine was busy or asleep

  default_scheduler_config {
    scheduler_algorithm = "binpack"
  }
}

client {
  enabled                = true
  host_volume_plugin_dir = {{quote .Layout.HostVolumes}}
  {{- with .Options.Server}}
  servers = [{{quote .}}]
  {{- end}}
  {{- with .Layout.Interface}}
  network_interface = {{quote .}}
  {{- end}}

  # a laptop's disk is often fuller than a server's: keep ended allocations, to read their logs
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
  publish_allocation_metrics = true # without it, Nomad collects no statistics from drivers
}

# for comparison
plugin "raw_exec" {
  config {
    enabled = true
  }
}
{{range .Options.Plugins}}
plugin {{quote .Name}} {
  config {
{{$.Fill .Config}}
  }
}
{{end}}
