// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"encoding/base64"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func profile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "profile.json")
	must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestSeccomp_AppliesToTheTaskAndItsSessions(t *testing.T) {
	testsupport.NeedRoot(t)
	path := profile(t, `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
		{"names": ["mkdir", "mkdirat", "not_on_this_machine"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
		{"names": ["kill"], "action": "SCMP_ACT_ERRNO",
			"args": [{"index": 1, "value": 10, "op": "SCMP_CMP_EQ"}]}]}`)
	const script = "mkdir d 2>&1 | sed 's/.*: //'; kill -USR1 $$ 2>/dev/null || echo no USR1; kill -0 $$ && " +
		"echo others; sed -n 's/^NoNewPrivs:.//p; s/^Seccomp:.//p' /proc/self/status; "
	const want = "Function not implemented\nno USR1\nothers\n1\n2\n"
	a := startInstance(t, testInstance{}, map[string]any{"seccomp": path})
	cfg := a.shell(script+"sleep 600", "", func(c *drivers.TaskConfig) { c.User = "nobody" })
	a.run(cfg)
	testsupport.Eventually(t, "the task has run the script", func() bool { return len(a.output(cfg)) >= len(want) })
	test.Eq(t, want, a.output(cfg))
	r, err := a.ExecTask(cfg.ID, []string{"/bin/sh", "-c", script}, time.Minute)
	must.NoError(t, err)
	test.Eq(t, want, string(r.Stdout))
	must.NoError(t, a.StopTask(cfg.ID, 0, ""))
	a.destroy(cfg.ID)
}

func TestSeccomp_DefaultDeniesUserNamespacesToUsers(t *testing.T) {
	testsupport.NeedRoot(t)
	const script = "unshare -U true 2>/dev/null && echo entered || echo denied; (exec 2>&1; echo works)"
	for _, row := range []struct{ option, user, want string }{
		{"default", "nobody", "denied\nworks\n"},
		{"default", "root", "entered\nworks\n"}, // root has the capabilities for which the profile allows unshare
		{"unconfined", "nobody", "entered\nworks\n"},
	} {
		a := startInstance(t, testInstance{}, map[string]any{"seccomp": row.option})
		out, _ := a.result(a.shell(script, "", func(c *drivers.TaskConfig) { c.User = row.user }))
		test.Eq(t, row.want, out, test.Sprintf("%+v", row))
	}
}

func TestSeccomp_RulesDependOnCapabilities(t *testing.T) {
	none, err := seccompFilter(seccompDefault, 0)
	must.NoError(t, err)
	all, err := seccompFilter(seccompDefault, task.AllCapabilities())
	must.NoError(t, err)
	test.NotEq(t, none, all)
	unconfined, err := seccompFilter(seccompUnconfined, 0)
	must.NoError(t, err)
	test.Eq(t, "", unconfined)
}

func TestSeccomp_RefusalsAreOneSentence(t *testing.T) {
	rule := func(text string) string {
		return profile(t, `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [`+text+`]}`)
	}
	for option, want := range map[string]string{
		"strict":                 `seccomp = "strict": use "unconfined", "default" or the absolute path of a profile`,
		"/proc/nothing":          "no such file or directory",
		profile(t, "{}"):         "the profile has no rules",
		profile(t, "no profile"): "invalid character",
		profile(t, "{}"+strings.Repeat(" ", 1<<20)):               "the profile is larger than 1048576 bytes",
		rule(`{"names": ["mkdir"], "action": "SCMP_ACT_NOTIFY"}`): `the action "SCMP_ACT_NOTIFY" is not supported`,
		rule(`{"names": ["kill"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 1, "value": 7,
			"op": "SCMP_CMP_OR"}]}`): `the operator "SCMP_CMP_OR" is not supported`,
		rule(`{"names": ["kill"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 6, "value": 7, "op": "SCMP_CMP_EQ"}]}`): "the argument 6 does not exist",
	} {
		_, err := seccompFilter(option, 0)
		test.ErrorContains(t, err, want, test.Sprint(option))
	}
}

// call runs a filter on a system call of a machine, and returns the action that the filter chooses.
func call(t *testing.T, filter string, machine *arch.Info, name string, args ...uint64) int {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(filter)
	must.NoError(t, err)
	var raw []bpf.RawInstruction
	for ; len(b) > 0; b = b[8:] {
		raw = append(raw, bpf.RawInstruction{Op: binary.NativeEndian.Uint16(b), Jt: b[2], Jf: b[3],
			K: binary.NativeEndian.Uint32(b[4:])})
	}
	program, _ := bpf.Disassemble(raw)
	vm, err := bpf.NewVM(program)
	must.NoError(t, err)
	// struct seccomp_data of a little-endian machine, but in the byte order of the virtual machine
	data := binary.BigEndian.AppendUint32(nil, uint32(machine.SyscallNames[name]))
	data = binary.BigEndian.AppendUint32(data, uint32(machine.ID))
	data = append(data, make([]byte, 8)...)
	for i := range 6 {
		arg := uint64(0)
		if i < len(args) {
			arg = args[i]
		}
		data = binary.BigEndian.AppendUint32(data, uint32(arg))
		data = binary.BigEndian.AppendUint32(data, uint32(arg>>32))
	}
	action, err := vm.Run(data)
	must.NoError(t, err)
	return action
}

func TestSeccomp_ArgumentsAreNotMistakenForSystemCalls(t *testing.T) {
	machine, err := arch.GetInfo("")
	must.NoError(t, err)
	number := func(name string) uint64 { return uint64(machine.SyscallNames[name]) }
	const denied = unix.SECCOMP_RET_ERRNO | int(unix.EPERM)

	filter, err := seccompFilter(seccompDefault, 0)
	must.NoError(t, err)
	test.Eq(t, unix.SECCOMP_RET_ALLOW, call(t, filter, machine, "personality", 8))
	test.Eq(t, denied, call(t, filter, machine, "personality", 0x40000))
	test.Eq(t, denied, call(t, filter, machine, "personality", number("clone")<<32|0x40000))

	filter, err = seccompFilter(profile(t, `{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
		{"names": ["socket"], "action": "SCMP_ACT_KILL", "args": [{"index": 0, "value": 16, "op": "SCMP_CMP_EQ"}]},
		{"names": ["open", "openat", "socketpair"], "action": "SCMP_ACT_ALLOW"}]}`), 0)
	must.NoError(t, err)
	test.Eq(t, denied, call(t, filter, machine, "socket", number("socketpair")))
	test.Eq(t, unix.SECCOMP_RET_ALLOW, call(t, filter, machine, "openat"))
}

func TestSeccomp_DeniesCallsOfOtherArchitectures(t *testing.T) {
	other := map[string]*arch.Info{"amd64": arch.I386, "arm64": arch.ARM}[runtime.GOARCH]
	for name, text := range map[string]string{
		"default": seccompDefault,
		"a list of denied calls": profile(t, `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
			{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}`),
	} {
		filter, err := seccompFilter(text, 0)
		must.NoError(t, err)
		test.NotEq(t, unix.SECCOMP_RET_ALLOW, call(t, filter, other, "mkdir"), test.Sprint(name))
		test.NotEq(t, unix.SECCOMP_RET_ALLOW, call(t, filter, other, "getpid"), test.Sprint(name))
	}
}

func TestSeccomp_ConditionsCoverAllBitsOfAnArgument(t *testing.T) {
	machine, err := arch.GetInfo("")
	must.NoError(t, err)
	const high = 1 << 32
	for operator, row := range map[string]struct{ met, not []uint64 }{
		"EQ": {[]uint64{high + 7}, []uint64{7, 2*high + 7, high + 6, high}},
		"NE": {[]uint64{7, 2*high + 7, high + 6}, []uint64{high + 7}},
		"LT": {[]uint64{0, 9, high + 6}, []uint64{high + 7, high + 8, 2 * high}},
		"LE": {[]uint64{0, 9, high + 7}, []uint64{high + 8, 2 * high}},
		"GT": {[]uint64{high + 8, 2 * high}, []uint64{0, 9, high + 7}},
		"GE": {[]uint64{high + 7, high + 8, 2 * high}, []uint64{0, 9, high + 6}},
		// the value is the mask: the masked bits must equal 3
		"MASKED_EQ": {[]uint64{3, 8 + 3, 2*high + 3}, []uint64{0, 7, 1, high + 3}},
	} {
		filter, err := seccompFilter(profile(t, `{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "syscalls": [
			{"names": ["dup"], "action": "SCMP_ACT_ERRNO"},
			{"names": ["kill", "mkdirat"], "action": "SCMP_ACT_ALLOW", "args": [
				{"index": 0, "value": 5, "op": "SCMP_CMP_EQ"},
				{"index": 2, "value": 4294967303, "valueTwo": 3, "op": "SCMP_CMP_`+operator+`"}]}]}`), 0)
		must.NoError(t, err)
		for _, value := range row.met {
			test.Eq(t, unix.SECCOMP_RET_ALLOW, call(t, filter, machine, "kill", 5, 0, value), test.Sprint(operator, value))
			test.Eq(t, unix.SECCOMP_RET_ERRNO|int(unix.ENOSYS), call(t, filter, machine, "kill", 6, 0, value),
				test.Sprint(operator, value, "but not the other"))
		}
		for _, value := range row.not {
			test.Eq(t, unix.SECCOMP_RET_ERRNO|int(unix.ENOSYS), call(t, filter, machine, "mkdirat", 5, 0, value),
				test.Sprint(operator, value))
		}
		test.Eq(t, unix.SECCOMP_RET_ERRNO|int(unix.EPERM), call(t, filter, machine, "dup"))
	}
}

// The kernel ignores the high half of an argument of type int, so a task can put any value there.
func TestSeccomp_HighBitsOfAnArgumentDoNotBypassARule(t *testing.T) {
	machine, err := arch.GetInfo("")
	must.NoError(t, err)
	const high = 1 << 32
	filter, err := seccompFilter(seccompDefault, 0)
	must.NoError(t, err)
	test.Eq(t, unix.SECCOMP_RET_ALLOW, call(t, filter, machine, "socket", unix.AF_INET))
	for _, family := range []uint64{unix.AF_VSOCK, high + unix.AF_VSOCK} {
		test.NotEq(t, unix.SECCOMP_RET_ALLOW, call(t, filter, machine, "socket", family))
	}

	met := map[string][]uint64{ // for each comparison: the values from 6 to 11 that meet it
		"EQ": {7}, "NE": {6, 8, 9, 10, 11}, "LT": {6}, "LE": {6, 7}, "GT": {8, 9, 10, 11}, "GE": {7, 8, 9, 10, 11},
		"MASKED_EQ": {11},
	}
	for action, other := range map[string]string{"ALLOW": "ERRNO", "LOG": "ERRNO", "ERRNO": "ALLOW", "KILL": "LOG"} {
		for operator, values := range met {
			filter, err := seccompFilter(profile(t, `{"defaultAction": "SCMP_ACT_`+other+`", "syscalls": [
				{"names": ["kill"], "action": "SCMP_ACT_`+action+`", "args": [
					{"index": 1, "value": 7, "valueTwo": 3, "op": "SCMP_CMP_`+operator+`"}]}]}`), 0)
			must.NoError(t, err)
			for value := uint64(6); value < 12; value++ {
				allowed := isAllowed(call(t, filter, machine, "kill", 1, value))
				allows := action == "ALLOW" || action == "LOG"
				test.Eq(t, slices.Contains(values, value) == allows, allowed, test.Sprint(action, operator, value))
				large := isAllowed(call(t, filter, machine, "kill", 1, high+value))
				test.True(t, allowed || !large, test.Sprint(action, operator, value, "with a high half"))
			}
		}
	}
}

func isAllowed(verdict int) bool {
	return verdict == unix.SECCOMP_RET_ALLOW || verdict == unix.SECCOMP_RET_LOG
}

func TestSeccomp_SeveralConditionsOnOneArgumentAreAlternatives(t *testing.T) {
	machine, err := arch.GetInfo("")
	must.NoError(t, err)
	filter, err := seccompFilter(profile(t, `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
		{"names": ["kill"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 1, "value": 10, "op": "SCMP_CMP_EQ"},
			{"index": 1, "value": 12, "op": "SCMP_CMP_EQ"}]}]}`), 0)
	must.NoError(t, err)
	for sig, want := range map[uint64]int{10: unix.SECCOMP_RET_ERRNO | int(unix.EPERM), 12: unix.SECCOMP_RET_ERRNO |
		int(unix.EPERM), 9: unix.SECCOMP_RET_ALLOW} {
		test.Eq(t, want, call(t, filter, machine, "kill", 1, sig), test.Sprint(sig))
	}
}
