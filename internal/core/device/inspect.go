// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/hashicorp/nomad/plugins/shared/structs"
)

// unhealthySuffix is appended to the name of a group whose devices are unhealthy. Unhealthy devices have a separate
// group because of constraints on ${device.ids}: if a constraint names an unhealthy device in a group with healthy
// ones, the job is placed without any device (scheduler/feasible/device.go, createOffer).
const unhealthySuffix = " (unhealthy)"

// scan is the list of an instance without the parts that Nomad can't handle. After one invalid
// group, or text that is not UTF-8, Nomad drops the plugin with all of its devices until the agent
// is restarted.
type scan struct {
	devices    map[string]scanned
	attributes map[tuple]attributes
}

type scanned struct {
	Device
	group tuple
}

type attributes map[string]*structs.Attribute

// inspect returns the valid part of a list, and a message about each item that it left out. It accepts groups in any
// order, and merges groups of the same name.
func inspect(groups []Group) (scan, []string) {
	s := scan{map[string]scanned{}, map[tuple]attributes{}}
	var left []string
	leave := func(format string, args ...any) { left = append(left, fmt.Sprintf(format, args...)) }

	groups = slices.Clone(groups)
	slices.SortStableFunc(groups, func(a, b Group) int { return a.tuple().compare(b.tuple()) })
	differ := map[tuple]map[string]bool{}
	for _, g := range groups {
		name := g.tuple()
		if err := checkTuple(name); err != nil {
			leave("device group %q is left out: %v", name.String(), err)
			continue
		}
		if s.attributes[name] == nil {
			s.attributes[name], differ[name] = attributes{}, map[string]bool{}
		}
		for _, key := range slices.Sorted(maps.Keys(g.Attributes)) {
			a, err := cleanAttribute(key, g.Attributes[key])
			if err != nil {
				leave("attribute %q of device group %q is left out: %v", key, name.String(), err)
				continue
			}
			if other, there := s.attributes[name][key]; differ[name][key] || there && !reflect.DeepEqual(a, other) {
				leave("attribute %q of device group %q is left out: its devices have different values", key, name.String())
				differ[name][key] = true
				delete(s.attributes[name], key)
				continue
			}
			s.attributes[name][key] = a
		}
		devices := slices.Clone(g.Devices)
		slices.SortStableFunc(devices, func(a, b Device) int {
			return slices.Compare([]string{a.ID, a.Problem, a.PCIBusID}, []string{b.ID, b.Problem, b.PCIBusID})
		})
		for _, d := range devices {
			err := checkID(d.ID)
			if other, twice := s.devices[d.ID]; err == nil && twice {
				err = fmt.Errorf("group %q already has a device with this id", other.group.String())
			}
			if err != nil {
				leave("device %q of group %q is left out: %v", d.ID, name.String(), err)
				continue
			}
			d.Problem, d.PCIBusID = text(d.Problem), text(d.PCIBusID)
			s.devices[d.ID] = scanned{d, name}
		}
	}
	for id, d := range s.devices {
		if d.Problem == "" {
			continue
		}
		all := s.attributes[d.group]
		d.group.name += unhealthySuffix
		s.devices[id] = d
		if s.attributes[d.group] == nil {
			s.attributes[d.group] = all
		}
	}
	return s, left
}

func (g Group) tuple() tuple { return tuple{g.Vendor, g.Type, g.Name} }

func checkTuple(t tuple) error {
	for _, part := range []struct{ what, text string }{{"vendor", t.vendor}, {"type", t.kind}, {"name", t.name}} {
		switch {
		case part.text == "":
			return fmt.Errorf("the %s is empty", part.what)
		case !printable(part.text):
			return fmt.Errorf("the %s is not printable text", part.what)
		case part.what != "name" && strings.Contains(part.text, "/"):
			return fmt.Errorf("the %s has a slash, which separates vendor, type and name in a job", part.what)
		}
	}
	return nil
}

func checkID(id string) error {
	switch {
	case id == "":
		return errors.New("the id is empty")
	case !printable(id):
		return errors.New("the id is not printable text")
	case strings.Contains(id, ","):
		return errors.New("the id has a comma, which separates ids in a constraint")
	case strings.TrimSpace(id) != id:
		return errors.New("the id begins or ends with a space, which constraints ignore")
	case structs.ParseAttribute(id).String == nil:
		return errors.New("the id looks like a number or a truth value, which constraints never match")
	}
	return nil
}

func cleanAttribute(key string, a *structs.Attribute) (*structs.Attribute, error) {
	switch {
	case key == "" || !printable(key):
		return nil, errors.New("the name is empty or not printable text")
	case a == nil:
		return nil, errors.New("the attribute has no value")
	case a.Float != nil && (math.IsNaN(*a.Float) || math.IsInf(*a.Float, 0)):
		return nil, errors.New("the value is infinite or not a number") // Nomad's servers panic on it
	}
	if err := a.Validate(); err != nil {
		return nil, err
	}
	a = a.Copy()
	if a.String != nil {
		*a.String = text(*a.String)
	}
	return a, nil
}

func printable(s string) bool { return text(s) == s }

// text cleans a string that is sent to Nomad. If a string is not UTF-8, gRPC ends the stream, and
// Nomad drops the plugin. Unprintable characters could forge log lines or control a terminal.
func text(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, "\uFFFD"))
}
