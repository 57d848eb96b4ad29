package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

// startError is what Nomad shows, and tells it which failures may be none later or on
// another node. Nomad takes that from the error itself and not from what it wraps
// (plugins/drivers/server.go). ctx is the plugin's own, which ends with it.
func startError(ctx context.Context, err error, limit time.Duration) error {
	temporary := false
	var may interface{ Temporary() bool }
	if errors.As(err, &may) {
		temporary = may.Temporary()
	}
	late := fmt.Errorf("failed to build the environment within %s (build_timeout)", limit)
	var failed *install.Error
	switch {
	case errors.As(err, &failed) && failed.Cause == install.TimedOut && ctx.Err() == nil:
		err = fmt.Errorf("%w%s", late, failed.LastLines())
	case failed != nil:
		err = fmt.Errorf("failed to build the environment: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		err = late
	}
	if temporary {
		return structs.NewRecoverableError(err, true)
	}
	return err
}

// choiceError is startError of an interpreter that is not there, while some files may be interpreters that
// were late to say so.
func choiceError(err error, late []string) error {
	var none *interpreter.NoneFitsError
	if errors.As(err, &none) && len(late) > 0 {
		err = fmt.Errorf("%w (not known yet, as they did not answer in time: %s)", err, strings.Join(late, ", "))
		return structs.NewRecoverableError(err, true)
	}
	return err
}
