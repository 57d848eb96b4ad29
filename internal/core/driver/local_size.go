package driver

import (
	"fmt"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// maxCommand is more than execve(2) takes of arguments and environment together,
// with a pointer for each (fs/exec.c).
const maxCommand = 6 << 20

// checkSize keeps a flood from the supervisor. The launcher reports whatever else is
// too long for the kernel.
func checkSize(cmd *task.Command) error {
	size := 0
	for _, list := range [][]string{cmd.Args, cmd.Env} {
		for _, s := range list {
			size += len(s) + 1 + 8
		}
	}
	if size > maxCommand {
		return fmt.Errorf("arguments and environment are %d MiB together, and the kernel takes at most %d MiB",
			size>>20, maxCommand>>20)
	}
	return nil
}
