// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
)

func TestCapabilities_NeedTheOperatorsPermission(t *testing.T) {
	nobody, root := &task.User{UID: 65534}, &task.User{}
	list := func(names ...string) []string { return names }
	for name, row := range map[string]struct {
		allow, add, drop []string
		user             *task.User
		want             task.Capabilities
		refused          string
	}{
		"none":    {nil, nil, nil, nobody, task.Capabilities{}, ""},
		"allowed": {list("net_raw", "kill"), list("CAP_KILL"), nil, nobody, task.Capabilities{Add: 1 << 5}, ""},
		"not allowed": {list("net_raw"), list("kill", "net_raw"), nil, nobody, task.Capabilities{},
			"does not allow kill (allow_caps)"},
		"all":           {list("all"), list("all"), nil, nobody, task.Capabilities{Add: 1<<41 - 1}, ""},
		"all but chown": {nil, nil, list("chown"), nobody, task.Capabilities{Drop: 1}, ""},
		"only kill": {list("kill"), list("kill"), list("all"), nobody,
			task.Capabilities{Drop: 1<<41 - 1 - 1<<5, Add: 1 << 5}, ""},
		"of root":      {list("kill"), list("kill"), list("all"), root, task.Capabilities{Drop: 1<<41 - 1 - 1<<5}, ""},
		"unknown":      {nil, list("kil"), nil, nobody, task.Capabilities{}, `cap_add: "kil" is not a capability`},
		"unknown drop": {nil, nil, list("0"), nobody, task.Capabilities{}, `cap_drop: "0" is not a capability`},
	} {
		options := TaskOptions{CapAdd: row.add, CapDrop: row.drop}
		got, err := capabilities(PluginOptions{AllowCaps: row.allow}, options, row.user)
		if row.refused != "" {
			test.ErrorContains(t, err, row.refused, test.Sprint(name))
			continue
		}
		must.NoError(t, err, must.Sprint(name))
		test.Eq(t, row.want, got, test.Sprint(name))
	}
}
