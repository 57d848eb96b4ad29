package driver

import (
	"fmt"
	"os"

	"github.com/outrider-dev/outrider/internal/core/builders"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// refuseBuilders refuses a task that would have the id of a builder, as its user, its group or one of its other
// groups; nil is the agent's own user. dir is builders.Dir, but in tests.
func refuseBuilders(dir string, u *task.User) error {
	if u == nil {
		own, err := os.Getgroups()
		if err != nil {
			return err
		}
		u = &task.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
		for _, g := range own {
			u.Groups = append(u.Groups, uint32(g))
		}
	}
	refuse := func(what string, id uint32) error {
		is, err := builders.Is(dir, id)
		if is {
			err = fmt.Errorf("%s id %d builds what tasks of this node use (ids %d to %d, and build_user of the python driver), and runs no tasks: "+
				"set the task's user to another", what, id, builders.First, builders.Last)
		}
		return err
	}
	if err := refuse("user", u.UID); err != nil {
		return err
	}
	for _, g := range append([]uint32{u.GID}, u.Groups...) {
		if err := refuse("group", g); err != nil {
			return err
		}
	}
	return nil
}
