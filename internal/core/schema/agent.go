// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/zclconf/go-cty/cty/msgpack"
)

// DecodeAgent reads a plugin's config block as it comes out of an agent's
// configuration file (HCL1 or JSON, decoded without a type; nil is none) and
// validates it, with the result and in the words of an agent that starts.
func (s *Schema[T]) DecodeAgent(config any) (T, error) {
	if config == nil {
		config = map[string]any{}
	}
	data, errs := encode(s.options, config)
	if len(errs) > 0 {
		var none T
		return none, Problems(errs)
	}
	return s.Decode(data)
}

// encode checks a body against its specification and makes of it what plugins get
// (nomad/helper/pluginutils/loader/init.go, validatePluginConfig).
func encode(options []*option, body any) ([]byte, []error) {
	spec, diags := hclspecutils.Convert(specOf(options))
	if diags.HasErrors() {
		return nil, diags.Errs()
	}
	value, _, errs := hclutils.ParseHclInterface(body, spec, nil)
	if len(errs) > 0 {
		return nil, errs
	}
	data, err := msgpack.Marshal(value, value.Type())
	if err != nil {
		return nil, []error{err}
	}
	return data, nil
}
