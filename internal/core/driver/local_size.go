package driver

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// What execve(2) takes (fs/exec.c): one string of 32 pages, and of all together, with
// a pointer for each, a quarter of the soft limit of the stack, at least 128 KiB and at
// most three quarters of 8 MiB.
const (
	leastArguments = 128 << 10
	mostArguments  = 6 << 20
)

// checkSize refuses arguments and an environment that no program can be given. The
// launcher would find that out, too: this is before anything is made of them.
func checkSize(cmd *task.Command) error {
	longest := 32 * os.Getpagesize()
	total := 0
	add := func(what, s string) error {
		if total += len(s) + 1 + 8; len(s) >= longest {
			return fmt.Errorf("%s is %d KiB long, and the kernel takes %d KiB at most", what, len(s)>>10, longest>>10)
		}
		return nil
	}
	for i, arg := range append([]string{cmd.Path}, cmd.Args...) {
		if err := add(fmt.Sprintf("argument %d", i), arg); err != nil {
			return err
		}
	}
	for _, v := range cmd.Env {
		if err := add("environment variable "+variable(v), v); err != nil {
			return err
		}
	}
	if most := mostOfAll(cmd.Rlimits); total > most {
		return fmt.Errorf("the %d arguments and %d environment variables are %d KiB together, and the kernel takes %d KiB at most, a quarter of the stack's limit (ulimit stack)",
			len(cmd.Args), len(cmd.Env), total>>10, most>>10)
	}
	return nil
}

// variable is the name of one, or its beginning.
func variable(v string) string {
	for i := range v {
		if v[i] == '=' || i >= 64 {
			return v[:i]
		}
	}
	return v
}

func mostOfAll(limits []task.Rlimit) int {
	stack := task.Unlimited
	var own unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_STACK, &own) == nil {
		stack = own.Cur
	}
	for _, l := range limits {
		if l.Resource == unix.RLIMIT_STACK {
			stack = l.Soft
		}
	}
	return int(min(max(stack/4, leastArguments), mostArguments))
}
