// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	_ "embed"
	"strconv"
	"strings"
	"text/template"
)

// layout is where an agent finds its directories, as its own process sees them.
type layout struct {
	Data, Plugins, HostVolumes, State string

	Bind, Interface string // Interface empty: Nomad picks
}

//go:embed agent.hcl
var configText string

var configTemplate = template.Must(
	template.New("agent.hcl").Funcs(template.FuncMap{"quote": quote}).Parse(configText))

// settings are what the template of the agent's configuration is filled with.
type settings struct {
	Options Options
	Layout  layout
	Info    Info
}

// Fill replaces the words in a plugin's configuration, see Plugin.Config.
func (s settings) Fill(config string) string {
	words := strings.NewReplacer("${state_dir}", s.Layout.State, "${host_volume_plugin_dir}", s.Layout.HostVolumes,
		"${http_port}", strconv.Itoa(s.Info.HTTP))
	return words.Replace(config)
}

// config renders the agent's configuration.
func config(o Options, l layout, i Info) (string, error) {
	var text strings.Builder
	err := configTemplate.Execute(&text, settings{o, l, i})
	return text.String(), err
}

// quote writes an HCL string. "${" and "%{" would start a template.
func quote(s string) string {
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(strconv.Quote(s))
}
