// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"os"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestDocs_HaveAttributesVariablesAndStatistics(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/usb.md")
	must.NoError(t, err)
	m := newMachine(t, "match_all = true\n"+zigbeeBlock)
	m.plug("10c4:ea60", "0001", "1-1")
	m.plug("0403:6001", "A1", "1-2")
	for _, g := range m.scan() {
		for name := range g.Attributes {
			test.StrContains(t, string(text), "`"+name+"`", test.Sprintf("attribute %s is not documented", name))
		}
	}
	for name := range m.reserve("10c4:ea60:0001").Envs {
		if name = strings.TrimPrefix(name, "USB_ZIGBEE"); !strings.Contains(string(text), "`"+name+"`") &&
			!strings.Contains(string(text), "`USB_ZIGBEE"+name+"`") {
			t.Errorf("variable %s is not documented", name)
		}
	}
	stats, err := m.Stats(t.Context(), []string{"10c4:ea60:0001"})
	m.must(err)
	for name := range stats["10c4:ea60:0001"].Stats.Attributes {
		test.StrContains(t, string(text), name, test.Sprintf("statistic %s is not documented", name))
	}
}
