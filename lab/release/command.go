// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"context"
	"os"
	"path/filepath"

	"github.com/outrider-dev/outrider/lab/internal/term"
)

// printed sets the options' Progress and Say to lines of the terminal.
func (o *Options) printed() *term.Printer {
	p := term.New(os.Stdout)
	o.Progress, o.Say = p.Progress, p.Println
	return p
}

// BuildCommand is Build, or BuildTag if there is a version, for a person: it prints the files that it made.
func BuildCommand(ctx context.Context, o Options, version string) error {
	p := o.printed()
	end := p.Step("Making the release")
	var results []Result
	var err error
	if version != "" {
		var r Result
		r, err = BuildTag(ctx, o, version)
		results = []Result{r}
	} else {
		results, err = Build(ctx, o)
	}
	end(err, "")
	if err != nil {
		return err
	}
	for _, r := range results {
		for _, name := range r.Files {
			p.Println("%s", filepath.Join(r.Dir, name))
		}
	}
	return nil
}

// VerifyCommand is VerifyFile, or VerifyTwice if no file is named, for a person.
func VerifyCommand(ctx context.Context, o Options, file string) error {
	p := o.printed()
	if file != "" {
		end := p.Step("Building what %s was built from", filepath.Base(file))
		_, err := VerifyFile(ctx, o, file)
		end(err, "the same, byte for byte")
		return err
	}
	end := p.Step("Building the last commit twice")
	results, err := VerifyTwice(ctx, o)
	end(err, "all files are the same, byte for byte")
	for _, r := range results {
		for _, name := range r.Files {
			p.Println("%s", name)
		}
	}
	return err
}
