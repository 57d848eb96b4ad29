package lab

import (
	"context"
	"os/signal"
	"syscall"
)

// Logs prints the agent's log and follows it until interrupted.
func (l *Lab) Logs(ctx context.Context) error {
	a, err := l.open(ctx)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return a.Logs(ctx, l.out, true)
}
