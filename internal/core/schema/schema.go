// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package schema makes one Go struct the only declaration of a plugin's options.
// From it come the HCL specification that Nomad checks a configuration against
// (plugins/shared/hclspec), the defaults, the decoded value, the validation with
// one sentence for each mistake, and the rows of the documentation.
//
//	type Config struct {
//		KillMode string `codec:"kill_mode" default:"process" enum:"process,group,all" doc:"Who gets a stop signal."`
//		Logs     Logs   `codec:"logs" doc:"How output is kept."`
//	}
//
// Go type and what it is in HCL:
//
//	string, bool, int, int64   attribute; without a default, unset is the zero value
//	Size, Duration             attribute, a string such as "10MiB" or "30s"
//	*string, *bool, *int, …    attribute; unset is nil
//	[]string                   attribute, a list
//	Strings                    attribute, a string or a list of strings
//	map[string]string          block or attribute: env { A = "b" } and env = { A = "b" }
//	struct                     block; its defaults hold where the block is not written
//	*struct                    block; nil if it is not written
//	[]struct                   block that may be repeated
//	map[string]struct          block that may be repeated, with a label of its own
//	embedded struct            its options are those of the outer struct
//
// Tags: codec (the option's name), doc (required), label (what a block's label is).
// Of scalars: default, required:"true", enum:"a,b" (strings), min and max (numbers,
// sizes and durations).
package schema

import (
	"fmt"
	"reflect"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// Described is a Schema of any type.
type Described interface {
	// Spec is the HCL specification: the answer to ConfigSchema or TaskConfigSchema.
	Spec() *hclspec.Spec
	// Doc has a row for every option, in the order of the struct, a block's own
	// row before those of its options.
	Doc() []Row
	// Markdown is Doc as a table.
	Markdown() string
	// Example is HCL to copy: every option with its default, commented out.
	Example(indent string) string
}

// Schema describes the options of a configuration of type T.
type Schema[T any] struct {
	options []*option
	refused []string // of a refuser
}

var _ Described = (*Schema[struct{}])(nil)

// Of reads the declaration. It panics where the struct is malformed (a missing
// or misspelt tag, a default that its own option would refuse), since that is a
// mistake of the program: call it in a package variable, and no test is needed
// to find it.
func Of[T any]() *Schema[T] {
	t := reflect.TypeFor[T]()
	if t.Kind() != reflect.Struct {
		panic(fmt.Sprintf("schema: %s is not a struct", t))
	}
	s := &Schema[T]{options: optionsOf(t)}
	var zero T
	if r, ok := any(&zero).(refuser); ok {
		s.refused = refusedOf(r, s.options)
	}
	return s
}

// Spec is the HCL specification.
func (s *Schema[T]) Spec() *hclspec.Spec {
	spec := specOf(s.options)
	if len(s.refused) > 0 {
		admit(spec.GetObject().Attributes, s.refused, s.options)
	}
	return spec
}

// Default is a configuration in which nothing is written.
func (s *Schema[T]) Default() T {
	var t T
	setDefaults(reflect.ValueOf(&t).Elem(), s.options)
	return t
}

// Decode reads the configuration that SetConfig brings (base.Config.PluginConfig)
// and validates it. None at all, as from a harness, is the default one.
func (s *Schema[T]) Decode(msgpack []byte) (T, error) {
	if len(msgpack) == 0 {
		t := s.Default()
		return t, s.Validate(&t)
	}
	return s.decode(func(out any) error { return base.MsgPackDecode(msgpack, out) })
}

// DecodeTask reads the configuration of a task and validates it. src is a
// *drivers.TaskConfig.
func (s *Schema[T]) DecodeTask(src interface{ DecodeDriverConfig(any) error }) (T, error) {
	return s.decode(src.DecodeDriverConfig)
}

func (s *Schema[T]) decode(into func(any) error) (T, error) {
	var t, none T
	var body map[string]any
	if err := into(&body); err != nil {
		return none, fmt.Errorf("failed to decode configuration: %w", err)
	}
	if err := refuse(any(&t), s.refused, body); err != nil {
		return none, err
	}
	if p := assign("", reflect.ValueOf(&t).Elem(), s.options, body); len(p) > 0 {
		return none, p
	}
	return t, s.Validate(&t)
}
