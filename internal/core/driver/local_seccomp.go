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

	"github.com/elastic/go-seccomp-bpf/arch"
	profiles "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	asm "golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// The values of the plugin option seccomp that do not name a file.
const (
	seccompUnconfined = "unconfined"
	seccompDefault    = "default"
)

// seccompFilter compiles the profile that the plugin option seccomp names, and returns a value for
// task.Command.Seccomp. The profile's rules may depend on the task's capabilities (a mask of 1<<number).
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
	program, err := programOf(profile)
	if err != nil {
		return "", err
	}
	raw, err := asm.Assemble(program)
	if err != nil {
		return "", err
	}
	if len(raw) > task.MaxSeccomp {
		return "", fmt.Errorf("the profile has %d instructions, but the kernel allows only %d", len(raw), task.MaxSeccomp)
	}
	var b []byte
	for _, i := range raw { // struct sock_filter of linux/filter.h, in this machine's byte order
		b = binary.NativeEndian.AppendUint16(b, i.Op)
		b = append(b, i.Jt, i.Jf)
		b = binary.NativeEndian.AppendUint32(b, i.K)
	}
	return base64.StdEncoding.EncodeToString(b), nil
}

// readProfile reads an operator's profile of at most 1 MiB.
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
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if len(b) > most {
		return "", fmt.Errorf("the profile is larger than %d bytes", most)
	}
	return string(b), err
}

var seccompActions = map[specs.LinuxSeccompAction]uint32{
	specs.ActAllow: unix.SECCOMP_RET_ALLOW, specs.ActLog: unix.SECCOMP_RET_LOG, specs.ActErrno: unix.SECCOMP_RET_ERRNO,
	specs.ActTrap: unix.SECCOMP_RET_TRAP, specs.ActKill: unix.SECCOMP_RET_KILL_THREAD,
	specs.ActKillThread: unix.SECCOMP_RET_KILL_THREAD, specs.ActKillProcess: unix.SECCOMP_RET_KILL_PROCESS,
}

// Offsets in struct seccomp_data of linux/seccomp.h, on little-endian machines.
const (
	dataNumber    = 0
	dataMachine   = 4
	dataArguments = 16
)

func load(offset uint32) asm.Instruction { return asm.LoadAbsolute{Off: offset, Size: 4} }

// programOf compiles a profile. It skips system calls that this machine does not have, as libseccomp does. All
// conditional rules of a call come before its unconditional ones. A process that uses another machine's ABI is killed,
// whatever the profile says, because the numbers of its system calls have other meanings.
//
//nolint:gosec // numbers of system calls, and lengths of short blocks
func programOf(profile *specs.LinuxSeccomp) ([]asm.Instruction, error) {
	machine, err := arch.GetInfo("")
	if err != nil {
		return nil, err
	}
	standard, err := actionOf(profile.DefaultAction, profile.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	const x32 = 0x40000000 // __X32_SYSCALL_BIT
	program := []asm.Instruction{
		load(dataMachine),
		asm.JumpIf{Cond: asm.JumpEqual, Val: uint32(machine.ID), SkipTrue: 1},
		asm.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		load(dataNumber),
		asm.JumpIf{Cond: asm.JumpLessThan, Val: x32, SkipTrue: 1},
		asm.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
	}
	var always []asm.Instruction
	for _, rule := range profile.Syscalls {
		action, err := actionOf(rule.Action, rule.ErrnoRet)
		if err != nil {
			return nil, err
		}
		sets, err := alternatives(rule.Args)
		if err != nil {
			return nil, fmt.Errorf("the rule for %q: %w", rule.Names, err)
		}
		var numbers []int
		for _, name := range rule.Names {
			number, known := machine.SyscallNames[name]
			if known {
				numbers = append(numbers, number)
			}
		}
		if len(sets) == 0 {
			always = append(always, anyOf(numbers, action)...)
		}
		for _, conditions := range sets {
			block := ifMet(conditions, action)
			for _, number := range numbers {
				program = append(program, asm.JumpIf{Cond: asm.JumpNotEqual, Val: uint32(number), SkipTrue: uint8(len(block))})
				program = append(program, block...)
			}
		}
	}
	return append(append(program, always...), asm.RetConstant{Val: standard}), nil
}

// anyOf returns instructions that return an action for any of these system calls.
//
//nolint:gosec // numbers of system calls, and lengths up to 200
func anyOf(numbers []int, action uint32) (block []asm.Instruction) {
	const most = 200 // a jump is limited to 255 instructions
	for some := range slices.Chunk(numbers, most) {
		for i, number := range some[1:] {
			block = append(block, asm.JumpIf{Cond: asm.JumpEqual, Val: uint32(number), SkipTrue: uint8(len(some) - 1 - i)})
		}
		block = append(block, asm.JumpIf{Cond: asm.JumpNotEqual, Val: uint32(some[0]), SkipTrue: 1},
			asm.RetConstant{Val: action})
	}
	return block
}

// actionOf converts an action to the filter's return value. A missing errno means EPERM, as with runc.
func actionOf(action specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	a, known := seccompActions[action]
	switch {
	case !known:
		return 0, fmt.Errorf("the action %q is not supported", action)
	case a == unix.SECCOMP_RET_ERRNO && errno != nil:
		a |= uint32(*errno & unix.SECCOMP_RET_DATA) //nolint:gosec // 16 bits
	case a == unix.SECCOMP_RET_ERRNO:
		a |= uint32(unix.EPERM)
	}
	return a, nil
}

// alternatives returns the conditions of a rule as one or more sets. The rule applies if all conditions of any one set
// are met. All conditions form a single set, unless several are for the same argument: then each condition is its own
// set, as with runc.
func alternatives(args []specs.LinuxSeccompArg) ([][]specs.LinuxSeccompArg, error) {
	if len(args) == 0 {
		return nil, nil
	}
	indexes := map[uint]bool{}
	for _, arg := range args {
		if arg.Index > 5 {
			return nil, fmt.Errorf("the argument %d does not exist: use 0 to 5", arg.Index)
		}
		if _, known := comparisons[arg.Op]; !known {
			return nil, fmt.Errorf("the operator %q is not supported", arg.Op)
		}
		indexes[arg.Index] = true
	}
	if len(indexes) < len(args) {
		return slices.Collect(slices.Chunk(args, 1)), nil
	}
	return [][]specs.LinuxSeccompArg{args}, nil
}

// ifMet returns instructions that return an action if all conditions are met, and otherwise reload the call's number.
func ifMet(conditions []specs.LinuxSeccompArg, action uint32) []asm.Instruction {
	block := []asm.Instruction{asm.RetConstant{Val: action}}
	allows := action == unix.SECCOMP_RET_ALLOW || action == unix.SECCOMP_RET_LOG
	for _, arg := range slices.Backward(conditions) {
		block = append(compare(arg, allows, len(block)), block...)
	}
	return append(block, load(dataNumber))
}

// comparisons define how a 64-bit argument is compared in two halves. A condition is met if high is true for the high
// half, or if the high halves are equal and low is true for the low half. If high is JumpEqual, only the second case
// counts. The field large is set if all arguments from 1<<32 up meet a condition on a smaller value.
var comparisons = map[specs.LinuxSeccompOperator]struct {
	high, low asm.JumpTest
	large     bool
}{
	specs.OpEqualTo:      {asm.JumpEqual, asm.JumpEqual, false},
	specs.OpMaskedEqual:  {asm.JumpEqual, asm.JumpEqual, false},
	specs.OpNotEqual:     {asm.JumpNotEqual, asm.JumpNotEqual, true},
	specs.OpLessThan:     {asm.JumpLessThan, asm.JumpLessThan, false},
	specs.OpLessEqual:    {asm.JumpLessThan, asm.JumpLessOrEqual, false},
	specs.OpGreaterThan:  {asm.JumpGreaterThan, asm.JumpGreaterThan, true},
	specs.OpGreaterEqual: {asm.JumpGreaterThan, asm.JumpGreaterOrEqual, true},
}

// compare returns instructions that skip the next instructions unless the condition arg is met. The number to skip is
// in more, and allows is set if the rule allows the call. The kernel ignores the high half of many arguments, such as
// ints. So if the value's high half is 0, an argument's high half must not permit a call that its low half forbids.
//
//nolint:gosec // halves of 64 bits, and lengths of short blocks
func compare(arg specs.LinuxSeccompArg, allows bool, more int) []asm.Instruction {
	with, mask, value := comparisons[arg.Op], ^uint64(0), arg.Value
	if arg.Op == specs.OpMaskedEqual {
		mask, value = arg.Value, arg.ValueTwo
	}
	offset := dataArguments + 8*uint32(arg.Index)
	low := []asm.Instruction{
		load(offset),
		asm.ALUOpConstant{Op: asm.ALUOpAnd, Val: uint32(mask)},
		asm.JumpIf{Cond: with.low, Val: uint32(value), SkipFalse: uint8(more)},
	}
	if arg.Value>>32 == 0 && with.large == allows {
		return low
	}
	high := []asm.Instruction{
		load(offset + 4),
		asm.ALUOpConstant{Op: asm.ALUOpAnd, Val: uint32(mask >> 32)},
	}
	if with.high != asm.JumpEqual {
		high = append(high, asm.JumpIf{Cond: with.high, Val: uint32(value >> 32), SkipTrue: uint8(1 + len(low))})
	}
	high = append(high, asm.JumpIf{Cond: asm.JumpNotEqual, Val: uint32(value >> 32), SkipTrue: uint8(len(low) + more)})
	return append(high, low...)
}
