// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"encoding/json"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

func TestTrim_KeepsOnlyOptionsThatDifferFromTheirDefault(t *testing.T) {
	for written, want := range map[string]string{
		`{"command": "true"}`: `{"command":"true"}`,
		`{"command": "true", "kill_mode": "process", "pid": true, "args": [], "logs": {"max_files": 10}}`: `{"command":` +
			`"true"}`,
		`{"command": "true", "kill_mode": "all", "pid": false, "args": ["10"], "nice": 0, "wait": "60s",
			"logs": {"max_files": 3}, "debug": {"max_files": 10}, "mount": [{"source": "/a", "depth": 2}]}`: `{"args":["10"],` +
			`"command":"true","debug":{},"kill_mode":"all","logs":{"max_files":3},"mount":[{"source":"/a"}],"nice":0,` +
			`"pid":false,"wait":"60s"}`,
	} {
		var block, body map[string]any
		must.NoError(t, json.Unmarshal([]byte(written), &block))
		value, errs := Value(testSchema.Spec(), block)
		must.SliceEmpty(t, errs)
		var task drivers.TaskConfig
		must.NoError(t, task.EncodeDriverConfig(value))
		must.NoError(t, task.DecodeDriverConfig(&body))
		testSchema.Trim(body)
		got, err := json.Marshal(body)
		must.NoError(t, err)
		must.Eq(t, want, string(got))
	}
}
