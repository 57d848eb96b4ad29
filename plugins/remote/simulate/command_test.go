// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulate

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestCommand_PrintsTheBlockAndEndsTheHost(t *testing.T) {
	if _, err := check(Options{}); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := filepath.Join(t.TempDir(), "host")
	r, w := io.Pipe()
	in, commands := io.Pipe()
	defer commands.Close()
	done := make(chan error, 1)
	go func() {
		done <- command(ctx, []string{"-name", "box", "-commands", dir}, in, w)
		w.Close()
	}()
	block := make([]byte, 4096)
	n, err := r.Read(block)
	must.NoError(t, err)
	text := string(block[:n])
	test.StrHasPrefix(t, "endpoint \"box\" {\n  ssh {\n", text)
	test.StrContains(t, text, `user      = "remote"`)
	_, port, _ := strings.Cut(text, "port      = ")
	port, _, _ = strings.Cut(port, "\n")
	c, err := net.Dial("tcp", "127.0.0.1:"+port)
	must.NoError(t, err)
	c.Close()
	boots := map[string]bool{}
	for _, c := range [][2]string{
		{"kill", ok}, {"start", ok}, {"halt", ok}, {"boot", ok}, {"boot", "the simulated host runs already"},
		{"down", "the simulated host has no network of its own"}, {"jump", `"jump" is not a command`},
	} {
		id, err := os.ReadFile(filepath.Join(dir, "boot_id"))
		must.NoError(t, err)
		boots[string(id)] = true
		_, err = io.WriteString(commands, c[0]+"\n")
		must.NoError(t, err)
		n, err = r.Read(block)
		must.NoError(t, err)
		test.Eq(t, c[1]+"\n", string(block[:n]), test.Sprint(c[0]))
	}
	test.MapLen(t, 2, boots)
	cancel()
	must.NoError(t, <-done)
	test.False(t, testsupport.Exists(dir))
}

func TestCommand_TellsWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "0 directories are given"},
		{[]string{"a", "b"}, "2 directories are given"},
		{[]string{"-user", "nobody", "a"}, "-user nobody is not remote or root"},
	} {
		must.ErrorContains(t, command(t.Context(), c.args, nil, io.Discard), c.want)
	}
}
