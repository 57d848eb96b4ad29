package install

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAnUVThatIsLateIsNotKnown(t *testing.T) {
	uv := filepath.Join(t.TempDir(), "uv")
	if err := os.WriteFile(uv, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var e *NotKnownError
	if version, err := uvVersion(t.Context(), uv, nil, 100*time.Millisecond); !errors.As(err, &e) || !strings.Contains(err.Error(), "it did not answer within 100ms") {
		t.Errorf("it is %q: %v", version, err)
	}
}
