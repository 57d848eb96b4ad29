package main

import (
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

// attributes are what nodes are chosen by.
func attributes(found []interpreter.Interpreter) map[string]*pstructs.Attribute {
	return map[string]*pstructs.Attribute{"driver.python.default": pstructs.NewStringAttribute(found[0].Version)}
}
