package install

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// What a package's code writes and asks for must not fill the memory of a plugin that other tasks need.
func TestOfWhatAPackagesCodeWritesLittleIsKept(t *testing.T) {
	b := &build{with: Installer{Name: "pip"}, Request: Request{Work: t.TempDir()}, source: &source{}, egress: &egress{}}
	b.source.secrets = []string{"s3cr3t"}
	f, err := os.Create(filepath.Join(b.Work, "pip.log"))
	if err != nil {
		t.Fatal(err)
	}
	line := "DEBUG Could not fetch URL https://host/" + strings.Repeat("x", 64<<10) + " s3cr3t\n"
	for range 1 << 10 {
		if _, err := io.WriteString(f, line); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(f, "Could not fetch URL https://last/: NewConnectionError s3cr3t\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	lines := b.unfetched()
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 40 {
		t.Errorf("a log of 64 MiB took %d MiB", took)
	}
	if text := strings.Join(lines, " "); len(lines) != 3 || len(text) > 16<<10 || strings.Contains(text, "s3cr3t") ||
		!strings.HasSuffix(text, " Could not fetch URL https://last/: NewConnectionError ****") {
		t.Errorf("got %d lines of %d bytes", len(lines), len(text))
	}

	for n := range 1000 {
		b.warned(fmt.Sprintf("WARNING: %d %s", n, strings.Repeat("é", 10_000)))
	}
	if text := strings.Join(b.warnings, ""); len(b.warnings) != 20 || len(text) > 20*600 {
		t.Errorf("got %d warnings of %d bytes", len(b.warnings), len(text))
	}
}

func TestOfWhatAPackagesCodeAsksForLittleIsKept(t *testing.T) {
	e := &egress{failed: map[string]failure{}}
	for n := range 1000 {
		host := fmt.Sprintf("host%d:443", n)
		target := &url.URL{Scheme: "https", Host: host}
		e.refuse(host)
		e.remember(target, io.ErrUnexpectedEOF)
		answers := &tlsReader{Reader: strings.NewReader("\x17\x03\x03\x00\x01x"), heard: func(int) {}}
		if _, err := io.Copy(io.Discard, answers); err != nil {
			t.Fatal(err)
		}
		e.closedByOther(target, answers)
	}
	refused, failed, hungUp := e.seen()
	if len(refused) != 100 || len(failed) != 100 || len(hungUp) != 100 {
		t.Errorf("%d are refused, %d failed and %d hung up", len(refused), len(failed), len(hungUp))
	}
}
