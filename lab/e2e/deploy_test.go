// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

const deployPage = "deploy/README.md"

// ssh replaces OpenSSH's program. It runs its last argument, a command, in a test's root (see newRoot).
const ssh = `#!/bin/sh
for command; do :; done
exec env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin %s sh -c "$command"
`

// TestDeploy_AnsibleInstallsAndRemoves runs the role on a node that has Nomad, but not Ansible.
func TestDeploy_AnsibleInstallsAndRemoves(t *testing.T) {
	testsupport.Long(t, "builds two releases, and runs Ansible, which is slow")
	if _, err := exec.LookPath("ansible-playbook"); err != nil {
		t.Skip(err)
	}
	t.Parallel()
	r, dir := newRoot(t), mkdir(t)
	r.sh("systemctl start nomad; mkdir -p /opt/nomad/data/plugins") // the role keeps the directory
	const files = "mkdir -p /root/.ansible/tmp; find /opt/nomad/data /etc/nomad.d /tmp /root/.ansible -path " +
		"'*/plugins*' -o -not -path '/opt/*'"
	before := r.sh(files)

	rel, err := getReleases()
	must.NoError(t, err)
	published := rel.file(t, older, "*.zip")
	archive := filepath.Join(dir, filepath.Base(published))
	content, err := os.ReadFile(published)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(archive, content, 0o644))
	must.NoError(t, share(rel.file(t, older, "SHA256SUMS"), filepath.Join(dir, "SHA256SUMS")))
	blocks := readFences(t, deployPage)
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
	test.StrContains(t, r.sh("nomad node status -self"), "exec-lite", test.Sprint("the agent was not restarted"))
	test.StrContains(t, r.sh(files), "/etc/nomad.d/nomad-driver-exec-lite.hcl\n")
	const play = "ansible-playbook -i hosts outrider.yml"
	out, err := shell(t, dir, env, play)
	must.NoError(t, err, must.Sprint(out))
	test.StrContains(t, out, "changed=0", test.Sprint("a second run"))

	runFences(t, blocks[2:], dir, env, nil)
	test.Eq(t, before, r.sh(files))
	test.StrNotContains(t, r.sh("nomad node status -self"), "exec-lite", test.Sprint("the agent was not restarted"))

	// the play fails if the agent does not come back, even when the play is run again
	for _, changed := range []string{"changed=3", "changed=0"} {
		out, err = shell(t, dir, env, play+` -e '{"outrider_plugin_restart": "systemctl stop nomad"}'`)
		test.Error(t, err)
		test.StrContains(t, out, "Wait until the agent is healthy")
		test.StrContains(t, out, changed)
	}
	r.sh("systemctl start nomad")

	content[1000] ^= 1
	must.NoError(t, os.WriteFile(archive, content, 0o644))
	out, err = shell(t, dir, env, play)
	test.Error(t, err, test.Sprint("a flipped byte"))
	test.StrContains(t, out, "does not match "+dir+"/SHA256SUMS")
}
