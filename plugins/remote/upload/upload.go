// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package upload copies the plugin's program to a host. The copy has the program's checksum in its name, so several
// versions can share a host: <dir>/bin/nomad-driver-remote-<sum>.
package upload

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/plugins/remote/ssh"
)

// Host is a host that programs can be copied to.
type Host struct {
	Arch string // as in GOARCH: amd64 or arm64
	Dir  string // the plugin's directory, absolute; it may not exist yet
}

// architectures are the supported ones by their names in uname(1).
var architectures = map[string]string{"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}

// lookScript prints the host's system, architecture and default directory.
const lookScript = `uname -s && uname -m && uid=$(id -u) || exit
if [ "$uid" = 0 ]; then echo /var/lib/outrider-remote; else printf '%s\n' "$HOME/.local/share/outrider-remote"; fi`

// Look asks a host what it is. An empty dir is /var/lib/outrider-remote for root, and .local/share/outrider-remote in
// the home directory for other users.
func Look(ctx context.Context, c *ssh.Conn, dir string) (Host, error) {
	out, err := c.Run(ctx, nil, lookScript)
	if err != nil {
		return Host{}, fmt.Errorf("failed to look at the host: %w", err)
	}
	lines := strings.Split(string(out), "\n")
	if len(lines) != 4 {
		return Host{}, fmt.Errorf("failed to look at the host: it answered %q", plain.Line(string(out), 300))
	}
	system, machine := plain.Line(lines[0], 100), plain.Line(lines[1], 100)
	host := Host{Arch: architectures[machine], Dir: cmp.Or(dir, lines[2])}
	switch {
	case system != "Linux":
		return Host{}, fmt.Errorf("the host runs %s: only Linux is supported", system)
	case host.Arch == "":
		return Host{}, fmt.Errorf("the host has the architecture %s: only x86_64 and aarch64 are supported", machine)
	case !path.IsAbs(host.Dir):
		return Host{}, errors.New("the user has no home directory on the host: set dir")
	}
	return host, nil
}

// prelude is the beginning of both scripts. Their arguments are the directory for programs, and the name, the size and
// the checksum of this one. They print a word that says how it went and, in the next line, why.
//
// sum succeeds if a file has the content of the program.
const prelude = `LC_ALL=C; export LC_ALL; umask 077
say() { printf '%s\n' "$@"; exit 0; }
sum() {
	[ "$(wc -c <"$1")" -eq "$size" ] || return 1
	s=$(sha256sum <"$1") && [ "${s%% *}" = "$sha256" ]
}
dir=$1 name=$2 size=$3 sha256=$4
command -v sha256sum >/dev/null 2>&1 || say tool sha256sum
`

// checkScript makes the directory. It prints "there" or "missing" and the directory without symbolic links, or what is
// wrong. A directory is unsafe if another user owns it or can write to it or a directory above. Group write is accepted
// above for the user's private group, sticky directories such as /tmp too.
const checkScript = prelude + `
e=$(mkdir -p "$dir" 2>&1) || say mkdir "$e"
cd -P "$dir" 2>/dev/null || say mkdir "it is not accessible"
bin=$(pwd -P) uid=$(id -u) p=$bin depth=0
while :; do
	set -- $(ls -ldn "$p/")
	case $3 in "$uid") ;; 0) [ $depth -ge 2 ] || say unsafe "$p";; *) say unsafe "$p";; esac
	case $depth:$1 in
	[2-9]*:?????????[tT]*) ;;
	*:????????w*) say unsafe "$p";;
	[2-9]*:?????w*) [ "$3" = 0 ] && [ "$4" = 0 ] || [ "$3:$4" = "$uid:$uid" ] || say unsafe "$p";;
	*:?????w*) say unsafe "$p";;
	esac
	[ "$p" = / ] && break
	p=${p%/*}; p=${p:-/}; depth=$((depth < 9 ? depth + 1 : 9))
done
if [ -f "$name" ] && [ ! -L "$name" ] && [ -x "$name" ] && sum "$name"; then
	touch "$name" 2>/dev/null
	say there "$bin"
fi
t=.try-$$; trap 'exit 1' HUP INT TERM PIPE; trap 'rm -f "$t"' EXIT
e=$({ printf '#!/bin/sh\n' >"$t" && chmod 700 "$t"; } 2>&1) || say write "$e"
e=$("./$t" 2>&1) || say noexec "$e"
say missing "$bin"
`

// sendScript reads the program from its input. It removes temporary files of attempts that have ended without that, and
// versions that no node has used for 30 days. A process goes on if its program is removed.
const sendScript = prelude + `
t=$5
cd "$dir" || exit
trap 'exit 1' HUP INT TERM PIPE; trap 'rm -f "$t"' EXIT
find . -name 'nomad-driver-remote-*.tmp-*' -mmin +60 -exec rm -f {} \; 2>/dev/null
e=$({ cat >"$t"; } 2>&1) || say write "$e"
sum "$t" || say differs "$(wc -c <"$t")"
e=$({ chmod 700 "$t" && { sync "$t" 2>/dev/null || :; } && mv -f "$t" "$name"; } 2>&1) || say write "$e"
sync . 2>/dev/null
find . -name 'nomad-driver-remote-*' ! -name "$name" -mtime +30 -exec rm -f {} \; 2>/dev/null
say sent
`

// Program makes sure that the host has the program, a local file, and returns its path there. An attempt that fails
// leaves nothing that can be run.
func Program(ctx context.Context, c *ssh.Conn, h Host, local string) (remotePath string, err error) {
	file, err := os.Open(local)
	if err != nil {
		return "", fmt.Errorf("failed to open the program for the host: %w", err)
	}
	defer file.Close()
	hash := sha256.New()
	size, err := io.Copy(hash, file)
	if err != nil {
		return "", fmt.Errorf("failed to read the program for the host: %w", err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	name := "nomad-driver-remote-" + sum[:16]
	args := []string{h.Dir + "/bin", name, strconv.FormatInt(size, 10), sum}

	word, bin, err := run(ctx, c, nil, checkScript, args)
	if err == nil && word == "missing" {
		args[0] = bin
		args = append(args, name+".tmp-"+rand.Text())
		_, _, err = run(ctx, c, io.LimitReader(file, size), sendScript, args)
	}
	if err != nil {
		return "", fmt.Errorf("failed to copy the program to the host: %w", err)
	}
	return bin + "/" + name, nil
}

func run(ctx context.Context, c *ssh.Conn, in io.Reader, script string, args []string) (word, text string, err error) {
	out, err := c.Run(ctx, in, script, args...)
	if err != nil {
		return "", "", err
	}
	word, text, _ = strings.Cut(strings.TrimSuffix(string(out), "\n"), "\n")
	return word, text, explain(args[0], args[2], word, text)
}

// explain returns the error for a word of a script.
func explain(bin, size, word, text string) error {
	text = plain.Line(text, 300)
	switch word {
	case "there", "missing", "sent":
		return nil
	case "tool":
		return fmt.Errorf("the host has no %s", text)
	case "mkdir":
		return fmt.Errorf("the directory %s can't be made on the host: set dir to one that the user can make (%s)", bin, text)
	case "unsafe":
		return fmt.Errorf("other users of the host can change %s, so %s is not safe: set dir to a directory that only the "+
			"user can change", text, bin)
	case "noexec":
		return fmt.Errorf("the host runs no programs from %s, which may be mounted noexec: set dir to another directory (%s)",
			bin, text)
	case "write":
		return fmt.Errorf("the program of %s bytes can't be written to %s there (%s)", size, bin, text)
	case "differs":
		return fmt.Errorf("the copy of the program in %s has %s bytes of %s, or other content", bin, text, size)
	}
	return fmt.Errorf("it answered %q", plain.Line(word+" "+text, 300))
}
