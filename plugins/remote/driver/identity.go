// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// keyOf is the same for a task of each allocation that takes the place of another one. It is made of names and the
// index: an allocation of a blocked evaluation has no previous one (hashicorp/nomad#10592). A system job has the same
// index on all nodes, so node is its node's id, and empty for other jobs.
func keyOf(cfg *drivers.TaskConfig, node string) string {
	key, _ := json.Marshal([]string{ // strings alone
		cfg.Env["NOMAD_REGION"], cfg.Namespace, cfg.JobID, cfg.TaskGroupName, cfg.Env["NOMAD_ALLOC_INDEX"], cfg.Name, node,
	})
	return string(key)
}

// Names are what a key is made of.
type Names struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Group     string `json:"group"`
	Index     string `json:"index"` // of the allocation in its group
	Task      string `json:"task"`
}

// NamesOf reads a key, which comes from a host. Those of another text are empty.
func NamesOf(key string) Names {
	var names []string
	if json.Unmarshal([]byte(key), &names) != nil || len(names) < 6 {
		return Names{}
	}
	return Names{names[1], names[2], names[3], names[4], names[5]}
}

// hashOf is of what a task runs, but for what each allocation has of its own. cfg is that for the host.
func hashOf(cfg *drivers.TaskConfig) (string, error) {
	var config map[string]any
	if err := cfg.DecodeDriverConfig(&config); err != nil {
		return "", err
	}
	short, _, _ := strings.Cut(cfg.AllocID, "-")
	own := strings.NewReplacer(cfg.AllocID, "", short, "", cfg.NodeID, "")
	env := map[string]string{}
	for name, value := range cfg.Env {
		if !ofAllocation(name) {
			env[name] = own.Replace(value)
		}
	}
	content := map[string]any{"config": replaced(config, own), "env": env, "user": cfg.User}
	if r := cfg.Resources; r != nil && r.NomadResources != nil {
		cpu := r.NomadResources.Cpu
		content["memory"], content["cores"] = r.NomadResources.Memory, len(cpu.ReservedCores)
		if len(cpu.ReservedCores) == 0 { // the shares of whole cores are the node's
			content["cpu"] = cpu.CpuShares
		}
	}
	text, err := json.Marshal(content) // with sorted names
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), err
}

// ofAllocation is whether Nomad gives a variable another value in each allocation, or a secret.
func ofAllocation(name string) bool {
	secrets := []string{"VAULT_TOKEN", "VAULT_NAMESPACE", "VAULT_ADDR"}
	return strings.HasPrefix(name, "NOMAD_") && !strings.HasPrefix(name, "NOMAD_META_") ||
		strings.HasPrefix(name, "CONSUL_") || slices.Contains(secrets, name)
}
