// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	bpf "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	profiles "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	asm "golang.org/x/net/bpf"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// The values of the plugin option seccomp that are not a file.
const (
	seccompUnconfined = "unconfined"
	seccompDefault    = "default"
)

// seccompFilter compiles the plugin option of that name for a task with some capabilities (a mask of 1<<number), on
// which the rules of a profile depend. The result is for task.Command.
func seccompFilter(option string, capabilities uint64) (string, error) {
	if option == seccompUnconfined {
		return "", nil
	}
	filter, err := compile(option, capabilities)
	if err != nil {
		return "", fmt.Errorf("seccomp = %q: %w", option, err)
	}
	return filter, nil
}

func compile(option string, capabilities uint64) (string, error) {
	var names []string
	for _, name := range task.CapabilityList(capabilities) {
		names = append(names, "CAP_"+strings.ToUpper(name))
	}
	has := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: names}}}
	var profile *specs.LinuxSeccomp
	var err error
	if option == seccompDefault {
		profile, err = profiles.GetDefaultProfile(has)
	} else {
		var text string
		text, err = readProfile(option)
		if err == nil {
			profile, err = profiles.LoadProfile(text, has)
		}
	}
	if err != nil {
		return "", err
	}
	if profile == nil {
		return "", errors.New("the profile has no rules")
	}
	policy, err := policyOf(profile)
	if err != nil {
		return "", err
	}
	program, err := policy.Assemble()
	if err != nil {
		return "", err
	}
	raw, err := asm.Assemble(program)
	if err != nil {
		return "", err
	}
	if len(raw) > task.MaxSeccomp {
		return "", fmt.Errorf("the profile has %d instructions, more than the %d of the kernel", len(raw), task.MaxSeccomp)
	}
	var b []byte
	for _, i := range raw { // struct sock_filter of linux/filter.h, in this machine's byte order
		b = binary.NativeEndian.AppendUint16(b, i.Op)
		b = append(b, i.Jt, i.Jf)
		b = binary.NativeEndian.AppendUint32(b, i.K)
	}
	return base64.StdEncoding.EncodeToString(b), nil
}

// readProfile reads an operator's file, which is small.
func readProfile(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", errors.New("use \"unconfined\", \"default\" or the absolute path of a profile")
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	const most = 1 << 20
	b, err := io.ReadAll(io.LimitReader(f, most))
	return string(b), err
}

var seccompActions = map[specs.LinuxSeccompAction]bpf.Action{
	specs.ActAllow: bpf.ActionAllow, specs.ActLog: bpf.ActionLog, specs.ActErrno: bpf.ActionErrno,
	specs.ActTrap: bpf.ActionTrap, specs.ActKill: bpf.ActionKillThread, specs.ActKillThread: bpf.ActionKillThread,
	specs.ActKillProcess: bpf.ActionKillProcess,
}

var seccompOperations = map[specs.LinuxSeccompOperator]bpf.Operation{
	specs.OpEqualTo: bpf.Equal, specs.OpNotEqual: bpf.NotEqual, specs.OpLessThan: bpf.LessThan,
	specs.OpLessEqual: bpf.LessOrEqual, specs.OpGreaterThan: bpf.GreaterThan, specs.OpGreaterEqual: bpf.GreaterOrEqual,
}

// policyOf converts a profile. A system call that this machine does not have is left out, as libseccomp does. All
// conditional rules of a call come before its unconditional ones, and all rules of an action are one group.
func policyOf(profile *specs.LinuxSeccomp) (*bpf.Policy, error) {
	machine, err := arch.GetInfo("")
	if err != nil {
		return nil, err
	}
	standard, err := actionOf(profile.DefaultAction, profile.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	if standard > bpf.ActionErrno && standard < bpf.ActionTrace {
		return nil, errors.New("defaultErrnoRet is not supported, except for 1 (EPERM)")
	}
	var groups []bpf.SyscallGroup
	group := func(action bpf.Action) *bpf.SyscallGroup {
		i := slices.IndexFunc(groups, func(g bpf.SyscallGroup) bool { return g.Action == action })
		if i < 0 {
			groups = append(groups, bpf.SyscallGroup{Action: action})
			i = len(groups) - 1
		}
		return &groups[i]
	}
	for _, rule := range profile.Syscalls {
		action, err := actionOf(rule.Action, rule.ErrnoRet)
		if err != nil {
			return nil, err
		}
		conditions, err := conditionsOf(rule.Args)
		if err != nil {
			return nil, fmt.Errorf("the rule of %q: %w", rule.Names, err)
		}
		g := group(action)
		for _, name := range rule.Names {
			_, known := machine.SyscallNames[name]
			switch {
			case !known || slices.Contains(g.Names, name):
			case len(conditions) == 0:
				g.Names = append(g.Names, name)
			default:
				g.NamesWithCondtions = append(g.NamesWithCondtions, bpf.NameWithConditions{Name: name, Conditions: conditions})
			}
		}
	}
	for i := range groups { // a call that is allowed in any case needs no conditions
		g := &groups[i]
		g.NamesWithCondtions = slices.DeleteFunc(g.NamesWithCondtions, func(n bpf.NameWithConditions) bool {
			return slices.Contains(g.Names, n.Name)
		})
	}
	groups = slices.DeleteFunc(groups, func(g bpf.SyscallGroup) bool {
		return len(g.Names)+len(g.NamesWithCondtions) == 0
	})
	return &bpf.Policy{DefaultAction: standard, Syscalls: groups}, nil
}

// actionOf converts an action. For the library, an errno of 0 is EPERM, which is runc's default.
func actionOf(action specs.LinuxSeccompAction, errno *uint) (bpf.Action, error) {
	a, known := seccompActions[action]
	if !known {
		return 0, fmt.Errorf("the action %q is not supported", action)
	}
	if a == bpf.ActionErrno && errno != nil && *errno != uint(syscall.EPERM) {
		a |= bpf.Action(*errno & 0xffff)
	}
	return a, nil
}

func conditionsOf(args []specs.LinuxSeccompArg) (conditions bpf.ArgumentConditions, err error) {
	for _, arg := range args {
		if arg.Index > 5 {
			return nil, fmt.Errorf("the argument %d does not exist: they are 0 to 5", arg.Index)
		}
		c := bpf.Condition{Argument: uint32(arg.Index), Operation: seccompOperations[arg.Op], Value: arg.Value}
		if arg.Op == specs.OpMaskedEqual && arg.ValueTwo == 0 {
			c.Operation = bpf.BitsNotSet
		}
		if c.Operation == "" {
			return nil, fmt.Errorf("the operator %q is not supported, or not with this value", arg.Op)
		}
		conditions = append(conditions, c)
	}
	return conditions, nil
}
