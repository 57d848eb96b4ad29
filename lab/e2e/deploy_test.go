// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"archive/zip"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/rootfs"
)

const deployPage = "deploy/README.md"

// zipped puts exec-lite into a zip as a release has it, with its SHA256SUMS.
func zipped(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "nomad-driver-exec-lite_0.1.0_linux_amd64.zip")
	f, err := os.Create(path)
	must.NoError(t, err)
	w := zip.NewWriter(f)
	program, err := os.ReadFile(execLite)
	must.NoError(t, err)
	h := &zip.FileHeader{Name: filepath.Base(execLite), Method: zip.Store}
	h.SetMode(0o755)
	in, err := w.CreateHeader(h)
	must.NoError(t, err)
	_, err = in.Write(program)
	must.NoError(t, err)
	must.NoError(t, w.Close())
	must.NoError(t, f.Close())
	all, err := os.ReadFile(path)
	must.NoError(t, err)
	sums := fmt.Sprintf("%x  %s\n", sha256.Sum256(all), filepath.Base(path))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums), 0o644))
	return path
}

// section are the blocks of the page below a heading.
func section(t *testing.T, heading string) (found []fence) {
	t.Helper()
	text, err := os.ReadFile("../../" + deployPage)
	must.NoError(t, err)
	_, after, there := strings.Cut(string(text), "\n## "+heading+"\n")
	must.True(t, there)
	after, _, _ = strings.Cut(after, "\n## ")
	found, wrong := fences(deployPage, after)
	must.SliceEmpty(t, wrong)
	return found
}

// ssh stands in for OpenSSH's program: it runs a command, its last argument, in a root.
const ssh = `#!/bin/sh
for command; do :; done
exec env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin %s sh -c "$command"
`

// TestDeploy_AnsibleInstallsAndRemoves has a node as Nomad's package makes it, without Ansible.
func TestDeploy_AnsibleInstallsAndRemoves(t *testing.T) {
	testsupport.Long(t, "Ansible takes its time, and so does a job that restarts its agent")
	if _, err := exec.LookPath("ansible-playbook"); err != nil {
		t.Skip(err)
	}
	if err := rootfs.Missing(); err != nil {
		t.Skip(err)
	}
	t.Parallel()
	dir := shortDir(t)
	r, err := rootfs.New(t.Context(), filepath.Join(dir, "root"), nomadBinary, t.Logf)
	must.NoError(t, err)
	defer func() { test.NoError(t, r.Close()) }()
	on := func(commands string) string {
		out, err := r.Run(t.Context(), commands)
		must.NoError(t, err)
		return out
	}
	on("systemctl start nomad")
	const files = "mkdir -p /root/.ansible/tmp; find /opt/nomad/data /etc/nomad.d /tmp /root/.ansible -path " +
		"'*/plugins*' -o -not -path '/opt/*'"
	before := on(files)

	archive := zipped(t, dir)
	blocks := section(t, "Ansible")
	for name, text := range map[string]string{
		"outrider.yml": strings.ReplaceAll(blocks[0].text, "/srv/outrider/", dir+"/"),
		"hosts": "[nomad_clients]\nnode ansible_connection=ssh ansible_user=root ansible_ssh_transfer_method=piped " +
			"ansible_ssh_executable=" + dir + "/ssh\n",
		"ssh": fmt.Sprintf(ssh, strings.Join(r.Enter(), " ")),
	} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	roles, err := filepath.Abs("../../deploy/ansible/roles")
	must.NoError(t, err)
	env := append(os.Environ(), "ANSIBLE_ROLES_PATH="+roles, "ANSIBLE_HOME="+dir+"/ansible", "LC_ALL=C.UTF-8")

	runFences(t, blocks[:2], dir, env, nil)
	test.StrContains(t, on("nomad node status -self"), "exec-lite", test.Sprint("the agent was not restarted"))
	test.StrContains(t, on(files), "/etc/nomad.d/nomad-driver-exec-lite.hcl\n")
	const play = "ansible-playbook -i hosts outrider.yml"
	out, err := shell(t, dir, env, play)
	must.NoError(t, err, must.Sprint(out))
	test.StrContains(t, out, "changed=0", test.Sprint("a second run"))

	runFences(t, blocks[2:], dir, env, nil)
	test.Eq(t, before, on(files))
	test.StrNotContains(t, on("nomad node status -self"), "exec-lite", test.Sprint("the agent was not restarted"))

	f, err := os.OpenFile(archive, os.O_WRONLY, 0)
	must.NoError(t, err)
	_, err = f.WriteAt([]byte{'x'}, 1000)
	must.NoError(t, err)
	must.NoError(t, f.Close())
	out, err = shell(t, dir, env, play)
	test.Error(t, err, test.Sprint("a flipped byte"))
	test.StrContains(t, out, "is not as "+dir+"/SHA256SUMS says")
}

// TestDeploy_JobInstallsOnEachClient: the job restarts the agent that runs it.
func TestDeploy_JobInstallsOnEachClient(t *testing.T) {
	testsupport.Long(t, "Ansible takes its time, and so does a job that restarts its agent")
	needRootAgent(t)
	t.Parallel()
	n := newPlainNode(t)
	zipped(t, n.work)
	server := httptest.NewServer(http.FileServer(http.Dir(n.work)))
	defer server.Close()
	file, err := filepath.Abs("../../deploy/nomad/rollout.nomad.hcl")
	must.NoError(t, err)
	asked, done := filepath.Join(n.work, "asked"), filepath.Join(n.work, "done")
	restart := fmt.Sprintf("touch %s; until test -e %s; do sleep 0.1; done", asked, done)
	pid, err := n.PID(t.Context())
	must.NoError(t, err)
	places := strings.NewReplacer("https://files.example.com", server.URL, "rollout.nomad.hcl",
		fmt.Sprintf("-var arch=%s -var flags='-pid %d' -var restart='%s' %s", runtime.GOARCH, pid, restart, file))
	runFences(t, section(t, "A Nomad job"), n.work, n.env(), places)

	testsupport.Within(t, time.Minute, func() error {
		_, err := os.Stat(asked)
		return err
	})
	n.again(t)
	must.NoError(t, os.WriteFile(done, nil, 0o644))
	testsupport.Within(t, time.Minute, func() error {
		list, _, err := n.Client().Jobs().Allocations("outrider-rollout", true, nil)
		if err != nil || len(list) != 1 || list[0].ClientStatus != "complete" {
			return fmt.Errorf("the job's allocations are %+v: %w", list, err)
		}
		return nil
	})
	n.version(t, printedVersion(t, execLite))
}
