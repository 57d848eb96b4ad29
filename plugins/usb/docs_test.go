package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/schema/schematest"
)

const page = "../../docs/usb.md"

func TestTheDocumentedOptionsAreThoseOfTheStructs(t *testing.T) {
	schematest.Document(t, page, map[string]schema.Described{"plugin options": schema.Of[Config]()})
}

func TestTheDocumentedConfigurationsAreRight(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, ``)
	n := 0
	for _, block := range regexp.MustCompile("(?s)```hcl\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if !strings.HasPrefix(block[1], "plugin ") && !strings.HasPrefix(block[1], "device ") || strings.Contains(block[1], "constraint") {
			continue // a job
		}
		n++
		if _, err := m.check(block[1]); err != nil {
			t.Errorf("%v:\n%s", err, block[1])
		}
	}
	if n < 3 {
		t.Errorf("%d configurations found", n)
	}
}

func TestTheDocumentedNamesAreThoseThatAreGiven(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, "match_all = true\n"+zigbeeBlock)
	m.plug("10c4:ea60", "0001", "1-1")
	m.plug("0403:6001", "A1", "1-2")
	for _, g := range m.scan() {
		for name := range g.Attributes {
			if !strings.Contains(string(text), "`"+name+"`") {
				t.Errorf("attribute %s is not documented", name)
			}
		}
	}
	for name := range m.reserve("10c4:ea60:0001").Envs {
		if name = strings.TrimPrefix(name, "USB_ZIGBEE"); !strings.Contains(string(text), "`"+name+"`") && !strings.Contains(string(text), "`USB_ZIGBEE"+name+"`") {
			t.Errorf("variable %s is not documented", name)
		}
	}
	stats, err := m.Stats(t.Context(), []string{"10c4:ea60:0001"})
	m.must(err)
	for name := range stats["10c4:ea60:0001"].Stats.Attributes {
		if !strings.Contains(string(text), name) {
			t.Errorf("statistic %s is not documented", name)
		}
	}
}
