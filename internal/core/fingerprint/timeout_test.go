package fingerprint

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestLoop_HasNoTimeoutUnlessOneIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		values := Loop[string]{Period: time.Hour, Probe: func(ctx context.Context) (string, error) {
			if ctx.Err() != nil {
				return "over", nil
			}
			return "in time", nil
		}}.Run(t.Context())
		if v := next(t, values); v != "in time" {
			t.Errorf("the probe is %s", v)
		}
	})
}
