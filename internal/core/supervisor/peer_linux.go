package supervisor

import (
	"fmt"
	"net"

	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// dialOwn connects to the supervisor of a store, and to nobody else: a launch request
// has a task's secrets in it. Nobody but root and this user can have put the socket
// where it is, and one of the two has to be at its other end.
func dialOwn(store task.Store) (*wire.Conn, error) {
	if err := owndir.Check(store.Dir); err != nil {
		return nil, err
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: store.Socket(), Net: "unix"})
	if err != nil {
		return nil, err
	}
	w := wire.New(c)
	if err := w.OwnPeer(); err != nil {
		w.Shut()
		return nil, fmt.Errorf("%s is not the supervisor's: %w", store.Socket(), err)
	}
	return w, nil
}
