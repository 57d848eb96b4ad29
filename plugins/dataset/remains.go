// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
	"github.com/outrider-dev/outrider/plugins/dataset/slot"
)

// remains is about the datasets of every class. With volumes or slots among them the plugin is
// in use: an agent that starts without it drops the volumes. So it is when that is not known.
func remains(c slot.Config) (what []string, inUse error) {
	f, err := policy.Load(c.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return []string{"Whether datasets stay is not known: " + err.Error()}, unknown(err)
	}
	used := 0
	for _, class := range slices.Sorted(maps.Keys(f.Classes)) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		list, err := datasets(ctx, f, class)
		cancel()
		if err != nil {
			what = append(what, fmt.Sprintf("Whether datasets of class %q stay is not known: %v", class, err))
			inUse = unknown(fmt.Errorf("class %q: %w", class, err))
			continue
		}
		if len(list) == 0 {
			continue
		}
		kinds := map[string]int{}
		for _, d := range list {
			if engine.InTrash(d.Name) {
				kinds["trash"]++
			} else {
				kinds[d.Tags[engine.Kind]]++
				used++
			}
		}
		what = append(what, fmt.Sprintf("%s stays, with datasets of class %q: %d volumes, %d slots, and %d in the trash",
			f.Classes[class].Root, class, kinds["volume"], kinds["slot"], kinds["trash"]))
	}
	if used > 0 {
		inUse = fmt.Errorf("there are volumes or slots (%d), and an agent that starts without the plugin drops its volumes: "+
			"stop the jobs and delete the volumes (nomad volume delete -type host)", used)
	}
	return what, inUse
}

func unknown(err error) error {
	return fmt.Errorf("whether there are volumes or slots is not known, and an agent that starts without the plugin "+
		"drops its volumes: %w", err)
}

func datasets(ctx context.Context, f *policy.File, class string) ([]engine.Dataset, error) {
	e, err := f.Engine(class)
	if err != nil {
		return nil, err
	}
	return e.List(ctx)
}
