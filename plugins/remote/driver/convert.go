// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"os"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// hostConfig is a task's configuration for its host. Paths of the allocation's directory, which Nomad has put into
// the environment and into what the job's author wrote, are those on the host. The allocation's directory itself
// remains that on this node: the host remembers it.
func hostConfig(cfg *drivers.TaskConfig, dir string) (*drivers.TaskConfig, error) {
	if len(cfg.Devices) > 0 || len(cfg.Mounts) > 0 {
		return nil, errors.New("devices and volumes of the Nomad node can't be given to a task on another host")
	}
	c := cfg.Copy()
	c.NetworkIsolation, c.DNS = nil, nil
	replace := strings.NewReplacer(cfg.AllocDir, shim.AllocDir(dir, cfg.AllocID))
	env := map[string]string{}
	for name, value := range c.Env {
		own, set := os.LookupEnv(name)
		ofNomad := strings.HasPrefix(name, "NOMAD_")
		if set && own == value && !ofNomad || name == parentCgroup {
			continue // the agent's, which Nomad gives to tasks that it takes for this node's
		}
		env[name] = replace.Replace(value)
	}
	c.Env = env
	var written map[string]any
	if err := cfg.DecodeDriverConfig(&written); err != nil {
		return nil, err
	}
	return c, c.EncodeConcreteDriverConfig(replaced(written, replace))
}

const parentCgroup = "NOMAD_PARENT_CGROUP"

// replaced is a value in which each text is replaced.
func replaced(value any, replace *strings.Replacer) any {
	switch v := value.(type) {
	case string:
		return replace.Replace(v)
	case []byte:
		return replace.Replace(string(v))
	case []any:
		for i := range v {
			v[i] = replaced(v[i], replace)
		}
	case map[string]any:
		for key := range v {
			v[key] = replaced(v[key], replace)
		}
	}
	return value
}
