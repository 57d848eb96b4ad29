// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package schema derives everything about a plugin's options from one Go struct: the HCL
// specification that Nomad checks a configuration against (plugins/shared/hclspec), the defaults,
// decoding, validation with one message for each mistake, and the rows of the documentation.
//
//	type Config struct {
//		KillMode string `codec:"kill_mode" default:"process" enum:"process,group,all" doc:"Who gets a stop signal."`
//		Logs     Logs   `codec:"logs" doc:"How output is kept."`
//	}
//
// Go types and their form in HCL:
//
//	string, bool, int, int64   attribute; without a default, unset is the zero value
//	Size, Duration             attribute, a string such as "10MiB" or "30s"
//	*string, *bool, *int, …    attribute; unset is nil
//	[]string                   attribute, a list
//	Strings                    attribute, a string or a list of strings
//	map[string]string          block or attribute: env { A = "b" } and env = { A = "b" }
//	struct                     block; its defaults apply if the block is absent
//	*struct                    block; nil if the block is absent
//	[]struct                   block that may be repeated
//	map[string]struct          block that may be repeated, each with its own label
//	embedded struct            its options belong to the outer struct
//
// Tags: codec (the option's name), doc (required), label (the name of a block's label).
// For scalars: default, required:"true", enum:"a,b" (strings), min and max (numbers,
// sizes and durations).
package schema

import (
	"fmt"
	"reflect"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// Described is implemented by every Schema, whatever its type parameter is.
type Described interface {
	// Spec returns the HCL specification. A plugin returns it from ConfigSchema or TaskConfigSchema.
	Spec() *hclspec.Spec
	// Doc returns a row for every option, in the order of the struct. A block's row precedes those of
	// its options.
	Doc() []Row
	// Example returns HCL for users to copy. It has every option with its default. Optional ones are commented out.
	Example(indent string) string
}

// Schema describes the options of a configuration of type T.
type Schema[T any] struct {
	options []*option
}

var _ Described = (*Schema[struct{}])(nil)

// Of returns the schema of the struct T. It panics if T is malformed: if a tag is missing or misspelled, or if an
// option would refuse its own default. Use Of to initialize a package variable. Every start of the program then checks
// T, and no test is needed.
func Of[T any]() *Schema[T] {
	t := reflect.TypeFor[T]()
	if t.Kind() != reflect.Struct {
		panic(fmt.Sprintf("schema: %s is not a struct", t))
	}
	return &Schema[T]{options: optionsOf(t)}
}

// Spec returns the HCL specification.
func (s *Schema[T]) Spec() *hclspec.Spec { return specOf(s.options) }

// Default returns the configuration in which no option is set.
func (s *Schema[T]) Default() T {
	var t T
	setDefaults(reflect.ValueOf(&t).Elem(), s.options)
	return t
}

// Decode decodes and validates the configuration that SetConfig gets (base.Config.PluginConfig). If msgpack is empty,
// as in a test harness, every option has its default.
func (s *Schema[T]) Decode(msgpack []byte) (T, error) {
	if len(msgpack) == 0 {
		t := s.Default()
		return t, s.Validate(&t)
	}
	return s.decode(func(out any) error { return base.MsgPackDecode(msgpack, out) })
}

// DecodeTask decodes and validates the configuration of a task. src is a *drivers.TaskConfig.
func (s *Schema[T]) DecodeTask(src interface{ DecodeDriverConfig(any) error }) (T, error) {
	return s.decode(src.DecodeDriverConfig)
}

func (s *Schema[T]) decode(into func(any) error) (T, error) {
	var t, none T
	var body map[string]any
	if err := into(&body); err != nil {
		return none, fmt.Errorf("failed to decode configuration: %w", err)
	}
	if p := assign("", reflect.ValueOf(&t).Elem(), s.options, body); len(p) > 0 {
		return none, p
	}
	return t, s.Validate(&t)
}
