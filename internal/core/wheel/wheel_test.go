// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package wheel

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// The test's Python program imports directly from the wheel (zipimport).
func TestWheel_IsValidAndItsSourceDistributionRunsCode(t *testing.T) {
	testsupport.NeedPython(t)
	dir := t.TempDir()
	w := Wheel{Name: "moon_phase", Version: "1.2", Requires: []string{"sun>=2"},
		Files: map[string]string{"more/words.txt": "full\n"}}
	must.NoError(t, w.Write(dir))
	must.NoError(t, w.WriteSource(dir, "import builtins; builtins.ran = True"))
	const check = `import base64, builtins, csv, hashlib, os, sys, tarfile, zipfile
dir, file = sys.argv[1:]
wheel = os.path.join(dir, file)
sys.path.insert(0, wheel)
import moon_phase
assert moon_phase.VERSION == "1.2"
z = zipfile.ZipFile(wheel)
record = {path: sum for path, sum, size in csv.reader(z.read("moon_phase-1.2.dist-info/RECORD").decode().splitlines())}
assert set(record) == set(z.namelist()) >= {"moon_phase.py", "more/words.txt"}, record
for path, sum in record.items():
    if sum:
        digest = hashlib.sha256(z.read(path)).digest()
        assert sum == "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("="), path
assert "Requires-Dist: sun>=2\n" in z.read("moon_phase-1.2.dist-info/METADATA").decode()
tarfile.open(os.path.join(dir, "moon_phase-1.2.tar.gz")).extractall(dir)
sys.path.insert(0, os.path.join(dir, "moon_phase-1.2"))
import backend
assert builtins.ran
`
	out, err := exec.Command(testsupport.Python, "-I", "-c", check, dir, w.File()).CombinedOutput()
	test.NoError(t, err, test.Sprintf("%v: %s", err, out))
	must.NoError(t, (Wheel{Name: "package", Version: "1",
		Files: map[string]string{"package/__init__.py": ""}}).Write(dir))
	out, err = exec.Command(testsupport.Python, "-I", "-m", "zipfile", "-e",
		filepath.Join(dir, "package-1-py3-none-any.whl"), filepath.Join(dir, "out")).CombinedOutput()
	must.NoError(t, err, must.Sprintf("%v: %s", err, out))
	_, err = os.Stat(filepath.Join(dir, "out/package.py"))
	test.Error(t, err, test.Sprint("the wheel has both a package and a module of this name"))
}
