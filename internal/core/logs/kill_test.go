// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestPump_LosesAndRepeatsNothingWhenKilled(t *testing.T) {
	const (
		kills = 20
		most  = 2_500_000 // lines that fit into the files; no test should need as many
	)
	for name, c := range map[string]struct {
		bytes int // per line
		rate  int // lines per second, 0: unlimited
		size  string
	}{
		"bulk, files of 1 MiB":               {100, 0, "1048576"},
		"bulk, files of 3000 bytes":          {100, 0, "3000"},
		"a line now and then, files of 8 kB": {20, 20_000, "8000"},
	} {
		t.Run(name, func(t *testing.T) {
			alloc, logs := allocDir(t)
			path := fifo(t)
			held, err := OpenTaskEnd(path) // keeps the FIFO's bytes between two readers, as the plugin does
			must.NoError(t, err)
			enough := filepath.Join(t.TempDir(), "enough")
			task := helper(t, "lines", fmt.Sprint(most), fmt.Sprint(c.bytes), fmt.Sprint(c.rate), enough)
			task.Stdout = held
			must.NoError(t, task.Start())
			defer task.Process.Kill() // if the test fails
			ended := make(chan error, 1)
			go func() { ended <- task.Wait() }()

			for range kills {
				p := helper(t, "pump", path, alloc, c.size)
				must.NoError(t, p.Start())
				time.Sleep(5*time.Millisecond + rand.N(60*time.Millisecond))
				must.NoError(t, p.Process.Kill())
				p.Wait()
			}
			must.NoError(t, os.WriteFile(enough, nil, 0o600)) // makes the writer end
			fd, err := OpenReadEnd(path)                      // while the writer still has the FIFO open
			must.NoError(t, err)
			held.Close()
			size, err := strconv.ParseInt(c.size, 10, 64)
			must.NoError(t, err)
			last, err := Open(fd, Config{AllocDir: alloc, Name: "web.stdout", MaxFiles: 100000, MaxFileSize: size})
			must.NoError(t, err)
			defer last.Close()
			pump(last)
			if err := <-ended; err != nil {
				t.Error("the writer: ", err)
			}
			b, err := os.ReadFile(enough)
			must.NoError(t, err)
			count, err := strconv.Atoi(string(b))
			must.NoError(t, err)
			all, names := concatenation(t, logs)
			numbered(t, all, count)
			for _, n := range names {
				if b, err := os.ReadFile(n); err != nil || len(b) > 0 && b[len(b)-1] != '\n' {
					t.Errorf("%s ends within a line (%v)", n, err)
				}
			}
			t.Logf("%d bytes in %d files", len(all), len(names))
		})
	}
}
