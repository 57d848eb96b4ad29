// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// keyOf returns a key for the task that is the same for an allocation and its replacement. It consists of names and the
// allocation's index. It does not use Nomad's chain of previous allocations, which has gaps: an allocation from a
// blocked evaluation has no predecessor (hashicorp/nomad#10592). The allocations of a system job have the same index on
// all nodes, so for such a job, the parameter node must be the node's id. For other jobs, it must be empty.
func keyOf(cfg *drivers.TaskConfig, node string) string {
	key, _ := json.Marshal([]string{ // cannot fail
		cfg.Env["NOMAD_REGION"], cfg.Namespace, cfg.JobID, cfg.TaskGroupName, cfg.Env["NOMAD_ALLOC_INDEX"], cfg.Name, node,
	})
	return string(key)
}

// Names are the parts of a key.
type Names struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Group     string `json:"group"`
	Index     string `json:"index"` // of the allocation in its group
	Task      string `json:"task"`
}

// NamesOf parses a key from a host. The names are empty if the text is not a key.
func NamesOf(key string) Names {
	var names []string
	if json.Unmarshal([]byte(key), &names) != nil || len(names) < 6 {
		return Names{}
	}
	return Names{names[1], names[2], names[3], names[4], names[5]}
}

// hashOf returns a hash of everything that a task runs with, except values that differ between allocations. cfg is the
// configuration for the host. config has the job's options for the driver; hashOf modifies it.
func hashOf(cfg *drivers.TaskConfig, config map[string]any) (string, error) {
	schema.Of[TaskConfig]().Trim(config) // drops defaults: otherwise each new option would change the hashes of all tasks
	short, _, _ := strings.Cut(cfg.AllocID, "-")
	own := strings.NewReplacer(cfg.AllocID, "", short, "", cfg.NodeID, "")
	env := map[string]string{}
	for name, value := range cfg.Env {
		if !ofAllocation(name) {
			env[name] = own.Replace(value)
		}
	}
	content := map[string]any{"config": replaced(config, own), "env": env, "user": cfg.User}
	r := cfg.Resources
	if r != nil && r.NomadResources != nil && r.LinuxResources != nil {
		content["memory"], content["cpu"] = r.NomadResources.Memory, r.NomadResources.Cpu.CpuShares
		cores := r.LinuxResources.CpusetCpus // with reserved cores, CpuShares depends on the node, so use their number
		if cores != "" {
			content["cpu"] = fmt.Sprintf("%d cores", strings.Count(cores, ",")+1)
		}
	}
	text, err := json.Marshal(content) // equal maps give the same text, because Marshal sorts their keys
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), err
}

// ofAllocation reports whether a variable has a different value in each allocation, or is a secret.
func ofAllocation(name string) bool {
	secrets := []string{"VAULT_TOKEN", "VAULT_NAMESPACE", "VAULT_ADDR"}
	return strings.HasPrefix(name, "NOMAD_") && !strings.HasPrefix(name, "NOMAD_META_") ||
		strings.HasPrefix(name, "CONSUL_") || slices.Contains(secrets, name)
}

// hostConfig returns a task's configuration for its host, and its hash. Paths in the allocation's directory, which
// Nomad has interpolated into the environment and the job's options, are changed to paths on the host. AllocDir itself
// stays the path on this node: the host replaces it.
func hostConfig(cfg *drivers.TaskConfig, dir string) (onHost *drivers.TaskConfig, hash string, err error) {
	if len(cfg.Devices) > 0 || len(cfg.Mounts) > 0 {
		return nil, "", errors.New("devices and volumes of the Nomad node can't be used on a remote host: remove them")
	}
	c := cfg.Copy()
	c.NetworkIsolation, c.DNS = nil, nil
	replace := strings.NewReplacer(cfg.AllocDir, shim.AllocDir(dir, cfg.AllocID))
	env := map[string]string{}
	for name, value := range c.Env {
		own, set := os.LookupEnv(name)
		ofNomad := strings.HasPrefix(name, "NOMAD_")
		if set && own == value && !ofNomad || name == "NOMAD_PARENT_CGROUP" {
			continue // the agent's own environment and cgroup are only for tasks on this node
		}
		env[name] = replace.Replace(value)
	}
	c.Env = env
	var config map[string]any
	err = cfg.DecodeDriverConfig(&config)
	if err == nil {
		err = c.EncodeConcreteDriverConfig(replaced(config, replace))
	}
	if err == nil {
		hash, err = hashOf(c, config)
	}
	return c, hash, err
}

// replaced applies a replacer to all texts in a value.
func replaced(value any, replace *strings.Replacer) any {
	switch v := value.(type) {
	case string:
		return replace.Replace(v)
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
