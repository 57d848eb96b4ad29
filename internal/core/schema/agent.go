// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/msgpack"
)

// DecodeAgent decodes and validates a plugin's config block from an agent's configuration file in HCL1 or JSON. config
// is the block as generic maps and lists. The result and the errors are the same as when an agent starts.
func (s *Schema[T]) DecodeAgent(config any) (T, error) {
	data, errs := Encode(s.Spec(), config)
	if len(errs) > 0 {
		var none T
		return none, Problems(errs)
	}
	return s.Decode(data)
}

// Encode checks a block against its specification and encodes it. The agent does the same before it sends the block to
// the plugin (nomad/helper/pluginutils/loader/init.go, validatePluginConfig).
func Encode(spec *hclspec.Spec, body any) ([]byte, []error) {
	value, errs := Value(spec, body)
	if len(errs) > 0 {
		return nil, errs
	}
	data, err := msgpack.Marshal(value, value.Type())
	if err != nil {
		return nil, []error{err}
	}
	return data, nil
}

// Value checks a block, given as generic maps and lists, against its specification, and returns the value that Nomad
// computes for it.
func Value(spec *hclspec.Spec, block any) (cty.Value, []error) {
	decoder, diags := hclspecutils.Convert(spec)
	if diags.HasErrors() {
		return cty.NilVal, diags.Errs()
	}
	value, _, errs := hclutils.ParseHclInterface(block, decoder, nil)
	return value, errs
}
