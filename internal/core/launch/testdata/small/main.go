// Small is the smallest program with the launcher's role. It is for the benchmark:
// with a test binary, most of the measured time would be the start of that binary.
package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/outrider-dev/outrider/internal/core/launch"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "launch" {
		launch.Main()
	}
	// this code never runs: it links the packages that every supervisor needs
	var spec launch.Spec
	if err := json.NewDecoder(os.Stdin).Decode(&spec); err != nil {
		os.Exit(1)
	}
	p, err := launch.Start(&spec, [3]*os.File{}, nil)
	if err != nil {
		os.Exit(1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.Started(ctx); err != nil {
		os.Exit(1)
	}
}
