// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// downloading is a build that finds some downloads, and adds one.
func downloading(t *testing.T, found *[]string, name string) Spec {
	return Spec{Key: name, Build: func(ctx context.Context, as *Builder, dir, scratch,
		downloads string) error {
		entries, err := os.ReadDir(downloads)
		if err != nil {
			return err
		}
		*found = nil
		for _, e := range entries {
			*found = append(*found, e.Name())
			if info, err := e.Info(); err != nil || as != nil && owner(info) != as.UID {
				t.Errorf("%s is not the builder's: %v, %v", e.Name(), info, err)
			}
		}
		sub := filepath.Join(downloads, name, "of", "it")
		if err := os.MkdirAll(sub, 0o777); err != nil {
			return err
		}
		if err := errors.Join(os.WriteFile(sub+"/wheel", []byte("content"), 0o666), os.Symlink("wheel",
			sub+"/link")); err != nil {
			return err
		}
		if as != nil {
			if err := chownTree(filepath.Join(downloads, name), as); err != nil {
				return err
			}
		}
		return building(3)(ctx, as, dir, scratch, downloads)
	}}
}

func TestDownloads_ServeTheNextBuildUntilTheMachineRestarts(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"nothing happened": nil,
		"the machine was restarted": func(dir string) error {
			return os.Rename(dir, filepath.Dir(dir)+"/0.3d1b8f2e-0000-4000-8000-000000000000")
		},
		"they were removed": func(dir string) error { (&store{}).removeTree(dir); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			c := testCache(t)
			var found []string
			mustGet(t, c, downloading(t, &found, "first")).Release()
			s, err := c.cfg.open()
			must.NoError(t, err)
			dir := s.path(s.downloadsName())
			want := "first"
			if change != nil {
				want = ""
				must.NoError(t, change(dir))
			}
			mustGet(t, c, downloading(t, &found, "second")).Release()
			test.Eq(t, want, strings.Join(found, " "), test.Sprintf("the next build found %q", found))
			mustTidy(t, c)
			mustBeTidy(t, c, 2)
			left, err := os.ReadDir(filepath.Dir(dir))
			must.NoError(t, err)
			test.SliceLen(t, 1, left)
		})
	}
}

func TestDownloads_AreSharedByBuildsAtATime(t *testing.T) {
	c := testCache(t)
	var inner, outer []string
	s := downloading(t, &outer, "outer")
	build := s.Build
	s.Build = func(ctx context.Context, as *Builder, dir, scratch, downloads string) error {
		e, err := c.Get(ctx, downloading(t, &inner, "inner"))
		e.Release()
		mustTidy(t, c)
		return errors.Join(err, build(ctx, as, dir, scratch, downloads))
	}
	mustGet(t, c, s).Release()
	test.Eq(t, "inner", strings.Join(outer, " "))
}

func TestTidy_RemovesLargeDownloadsThatNoBuildUses(t *testing.T) {
	c := testCache(t)
	var found []string
	s := downloading(t, &found, "first")
	mustGet(t, c, s).Release()
	c.cfg.MaxSize = 1
	mustTidy(t, c)
	left, err := os.ReadDir(filepath.Join(c.cfg.Dir, "downloads"))
	must.NoError(t, err)
	test.SliceEmpty(t, left)
}
