package logs

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

func TestNothingIsLostOrRepeatedWhenThePumpIsKilled(t *testing.T) {
	const kills = 20
	for name, c := range map[string]struct {
		bytes int // a line
		rate  int // lines a second, 0: as fast as it can
		count int
		size  string
	}{
		"bulk, files of 1 MiB":               {100, 0, 1 << 20, "1048576"},
		"bulk, files of 3000 bytes":          {100, 0, 100_000, "3000"},
		"a line now and then, files of 8 kB": {20, 20_000, 20_000, "8000"},
	} {
		t.Run(name, func(t *testing.T) {
			alloc, logs := allocDir(t)
			path := fifo(t)
			held, err := OpenTaskEnd(path) // as the plugin does, so that the FIFO keeps its bytes
			must(t, err)
			task := helper(t, "lines", fmt.Sprint(c.count), fmt.Sprint(c.bytes), fmt.Sprint(c.rate))
			task.Stdout = held
			must(t, task.Start())
			ended := make(chan error, 1)
			go func() { ended <- task.Wait() }()

			during := 0
			for range kills {
				p := helper(t, "pump", path, alloc, c.size)
				must(t, p.Start())
				time.Sleep(5*time.Millisecond + rand.N(60*time.Millisecond))
				must(t, p.Process.Kill())
				p.Wait()
				select {
				case err := <-ended:
					ended <- err
				default:
					during++
				}
			}
			fd, err := OpenReadEnd(path) // before the last writer goes
			must(t, err)
			held.Close()
			size, err := strconv.ParseInt(c.size, 10, 64)
			must(t, err)
			last, err := Open(fd, Config{AllocDir: alloc, Name: "web.stdout", MaxFiles: 100000, MaxFileSize: size})
			must(t, err)
			defer last.Close()
			pump(last)
			if err := <-ended; err != nil {
				t.Error("the writer: ", err)
			}
			all, names := concatenation(t, logs)
			numbered(t, all, c.count)
			for _, n := range names {
				if b, err := os.ReadFile(n); err != nil || len(b) > 0 && b[len(b)-1] != '\n' {
					t.Errorf("%s ends within a line (%v)", n, err)
				}
			}
			t.Logf("%d kills while the writer wrote, %d bytes in %d files", during, len(all), len(names))
			if during < kills/2 {
				t.Errorf("only %d of %d kills came while the writer wrote", during, kills)
			}
		})
	}
}
