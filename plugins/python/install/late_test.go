package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAnUVThatIsLateIsNotKnownAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	uv, children := filepath.Join(dir, "uv"), filepath.Join(dir, "children")
	script := fmt.Sprintf("#!/bin/sh\nsleep 600 &\necho $! >%s.new; mv %[1]s.new %[1]s; wait\n", children)
	if err := os.WriteFile(uv, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	var e *NotKnownError
	for timeout := 100 * time.Millisecond; ; timeout *= 2 { // until it comes to have a child
		if version, err := uvVersion(context.Background(), uv, nil, timeout); !errors.As(err, &e) || !strings.Contains(err.Error(), "did not answer within") {
			t.Fatalf("it is %q: %v", version, err)
		}
		if _, err := os.Stat(children); err == nil {
			break
		}
	}
	child, err := os.ReadFile(children)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		status, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(child)), "stat"))
		if err != nil || strings.Contains(string(status), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("what it started still runs: %s", status)
		}
	}
}
