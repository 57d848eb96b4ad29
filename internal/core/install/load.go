// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	goversion "github.com/hashicorp/go-version"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/zclconf/go-cty/cty/msgpack"
	"google.golang.org/grpc/status"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

// apiVersions are those that an agent speaks (helper/pluginutils/loader/api_versions.go).
var apiVersions = map[string]string{
	base.PluginTypeDriver: drivers.ApiVersion010, base.PluginTypeDevice: device.ApiVersion010,
}

// load starts the plugin as an agent does that loads it, and configures it with a config
// block. The errors are those that keep an agent from starting
// (helper/pluginutils/loader/init.go).
func load(exe string, config map[string]any) (*base.PluginInfoResponse, error) {
	var stderr bytes.Buffer
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: base.Handshake, Plugins: map[string]goplugin.Plugin{base.PluginTypeBase: &base.PluginBase{}},
		Cmd:              exec.Command(exe),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC}, Logger: hclog.NewNullLogger(), Stderr: &stderr,
	})
	defer client.Kill()
	defer time.AfterFunc(time.Minute, client.Kill).Stop() // no call waits longer
	rpc, err := client.Client()
	if err != nil {
		client.Kill() // all that it has said is there then
		if said := lastLine(stderr.String()); said != "" {
			err = errors.New(said)
		}
		return nil, fmt.Errorf("the plugin does not start: %w", err)
	}
	raw, err := rpc.Dispense(base.PluginTypeBase)
	if err != nil {
		return nil, err
	}
	plugin := raw.(base.BasePlugin)
	info, err := plugin.PluginInfo()
	if err != nil {
		return nil, err
	}
	if _, err := goversion.NewVersion(info.PluginVersion); err != nil {
		return nil, err
	}
	api := apiVersions[info.Type]
	if !slices.Contains(info.PluginApiVersions, api) {
		return nil, fmt.Errorf("it speaks none of the versions of Nomad's plugin API: %q of %q", info.PluginApiVersions,
			info.Type)
	}
	spec, err := plugin.ConfigSchema()
	if err != nil {
		return nil, err
	}
	value, errs := schema.Value(spec, config)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	packed, err := msgpack.Marshal(value, value.Type())
	if err != nil {
		return nil, err
	}
	if err := plugin.SetConfig(&base.Config{PluginConfig: packed, ApiVersion: api}); err != nil {
		return nil, errors.New(status.Convert(err).Message())
	}
	return info, nil
}

// lastLine is the last line of a plugin's log, in which go-plugin writes JSON (hclog).
func lastLine(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	last := lines[len(lines)-1]
	var entry struct {
		Message string `json:"@message"`
		Error   string `json:"error"`
	}
	if json.Unmarshal([]byte(last), &entry) != nil || entry.Message == "" {
		return last
	}
	return strings.TrimSuffix(entry.Message+": "+entry.Error, ": ")
}
