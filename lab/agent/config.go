// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// layout has the paths of an agent's directories, as the agent's process sees them.
type layout struct {
	Data, Plugins, HostVolumes, State string

	Bind, Interface string // bind_addr and network_interface; if Interface is empty, Nomad picks one
}

//go:embed agent.hcl
var configText string

var configTemplate = template.Must(
	template.New("agent.hcl").Funcs(template.FuncMap{"quote": quote}).Parse(configText))

// settings are the data for the template of the agent's configuration.
type settings struct {
	Options Options
	Layout  layout
	Info    Info
}

// Fill replaces the variables in a plugin's configuration, see Plugin.Config.
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

// quote returns s as an HCL string. It escapes "${" and "%{", which would start a template.
func quote(s string) string {
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(strconv.Quote(s))
}

// longestState is the maximum length of a state directory's path: a plugin appends its name, the node's id and a file
// name, and the path of a unix socket has at most 107 bytes (sun_path, unix(7)).
const longestState = 40

// stateDir returns the directory where the plugins of the agent in dir keep their state: dir/state or, if that is too
// long, a directory in /tmp. Its name is derived from dir, so the clean-up finds it even if agent.json is lost.
func stateDir(dir string) string {
	if p := filepath.Join(dir, "state"); len(p) <= longestState {
		return p
	}
	return filepath.Join("/tmp", fmt.Sprintf("outrider-%.6x", sha256.Sum256([]byte(dir))))
}

// makeStateDir creates the state directory. It refuses another user's directory, since any user can create one in
// /tmp.
func makeStateDir(path string) error {
	f, err := owndir.Make(path, 0o755)
	if err != nil {
		return fmt.Errorf("failed to create the plugins' state directory: %w", err)
	}
	return f.Close()
}
