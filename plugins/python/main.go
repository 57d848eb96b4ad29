// Command nomad-driver-python runs Python programs under Nomad: the interpreter is
// chosen by version, what the program requires is in a sealed environment of the
// node's cache, and an exception that ends it is told among the task's events.
package main

import (
	"github.com/outrider-dev/outrider/internal/core/driver"
)

func main() { driver.Main(newDriver().workload()) }
