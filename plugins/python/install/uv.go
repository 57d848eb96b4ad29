package install

import "path/filepath"

// uvGlobal is what holds for each uv command: nothing of the node's configuration, no interpreter but ours.
func (b *build) uvGlobal(command ...string) []string {
	argv := append([]string{b.with.UV}, command...)
	argv = append(argv, "--no-config", "--no-python-downloads", "--color", "never")
	if b.Downloads == "" {
		return append(argv, "--no-cache")
	}
	return append(argv, "--cache-dir", b.source.downloads(b.Downloads, "uv"))
}

func (b *build) uvVenv() []string {
	return append(b.uvGlobal("venv"), "--no-project", "--python", b.Python.Path, b.Dir)
}

func (b *build) uvInstall() []string {
	strategy := "first-index" // a name of a private index is never taken from another
	if b.Requirements.Hashed {
		strategy = "unsafe-best-match" // a lock may be of several indexes, and its hashes say which file is meant
	}
	argv := append(b.uvGlobal("pip", "install"),
		"--python", filepath.Join(b.Dir, "bin/python"),
		"--link-mode", "copy", // a hard link would be sealed, or changed, in both places
		"--index-strategy", strategy,
		"--keyring-provider", "disabled",
		"-r", b.source.requirements)
	if b.Refresh { // pip asks in any case
		argv = append(argv, "--refresh")
	}
	if !b.AllowSdists {
		argv = append(argv, "--no-build")
	}
	return append(argv, b.common()...)
}
