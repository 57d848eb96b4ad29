// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package upload copies the plugin's program to a host. The copy has the program's checksum in its name, so several
// versions can share a host: <dir>/bin/nomad-driver-remote-<sum>.
package upload

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/plugins/remote/ssh"
)

// Host is what a program needs to know of a host.
type Host struct {
	Arch string // as in GOARCH: amd64 or arm64
	UID  int    // of the user who is logged in
	Home string // of that user
	Dir  string // the plugin's directory, absolute; it may not exist yet
}

// architectures are the supported ones by their names in uname(1).
var architectures = map[string]string{"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}

// Look asks a host what it is. An empty dir is /var/lib/outrider-remote for root, and .local/share/outrider-remote in
// the home directory for other users.
func Look(ctx context.Context, c *ssh.Conn, dir string) (Host, error) {
	out, err := c.Run(ctx, nil, `uname -s && uname -m && id -u && printf '%s\n' "$HOME"`)
	if err != nil {
		return Host{}, fmt.Errorf("failed to look at the host: %w", err)
	}
	lines := strings.Split(string(out), "\n")
	if len(lines) != 5 {
		return Host{}, fmt.Errorf("failed to look at the host: it answered %q", plain.Line(string(out), 300))
	}
	system, machine, home := plain.Line(lines[0], 100), plain.Line(lines[1], 100), lines[3]
	uid, err := strconv.Atoi(lines[2])
	if err != nil {
		return Host{}, fmt.Errorf("failed to look at the host: id -u answered %q", plain.Line(lines[2], 100))
	}
	if dir == "" && uid == 0 {
		dir = "/var/lib/outrider-remote"
	}
	if dir == "" {
		dir = home + "/.local/share/outrider-remote"
	}
	switch {
	case system != "Linux":
		return Host{}, fmt.Errorf("the host runs %s: only Linux is supported", system)
	case architectures[machine] == "":
		return Host{}, fmt.Errorf("the host has the architecture %s: only x86_64 and aarch64 are supported", machine)
	case !strings.HasPrefix(dir, "/"):
		return Host{}, errors.New("the user has no home directory on the host: set dir")
	}
	return Host{Arch: architectures[machine], UID: uid, Home: home, Dir: dir}, nil
}

// prelude is the beginning of both scripts. They have the directory, the name, the size, and both checksums of the
// program as arguments, print a word that says how it went and, in the next line, why.
//
// sum succeeds if a file has the content of the program.
const prelude = `LC_ALL=C; export LC_ALL; umask 077
say() { printf '%s\n' "$@"; exit 0; }
sum() {
	[ "$(wc -c <"$1")" -eq "$size" ] || return 1
	if command -v sha256sum >/dev/null 2>&1; then s=$(sha256sum <"$1"); [ "${s%% *}" = "$sha256" ]; return; fi
	s=$(cksum <"$1"); [ "${s%% *}" = "$cksum" ]
}
dir=$1 name=$2 size=$3 sha256=$4 cksum=$5
`

// checkScript makes the directory. It prints "there" or "missing" and the directory without symbolic links, or what is
// wrong. A directory is unsafe if another user owns it or can write to it or a directory above. Group write is accepted
// above for the user's private group, sticky directories such as /tmp too.
const checkScript = prelude + `
e=$(mkdir -p "$dir/bin" 2>&1) || say mkdir "$e"
cd -P "$dir/bin" 2>/dev/null || say mkdir "it is not accessible"
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
t=$6
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
	hash, crc := sha256.New(), cksum{}
	size, err := io.Copy(io.MultiWriter(hash, &crc), file)
	if err != nil {
		return "", fmt.Errorf("failed to read the program for the host: %w", err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	name := "nomad-driver-remote-" + sum[:16]
	args := []string{h.Dir, name, strconv.FormatInt(size, 10), sum, strconv.FormatUint(uint64(crc.sum()), 10)}

	word, text, err := run(ctx, c, nil, checkScript, args)
	if err != nil {
		return "", fmt.Errorf("failed to look for the program on the host: %w", err)
	}
	if word != "there" && word != "missing" {
		return "", explain(h.Dir+"/bin", size, word, text)
	}
	bin := text
	if word == "missing" {
		args[0] = bin
		args = append(args, name+".tmp-"+rand.Text())
		word, text, err = run(ctx, c, io.LimitReader(file, size), sendScript, args)
		if err != nil {
			return "", fmt.Errorf("failed to copy the program to the host: %w", err)
		}
		if word != "sent" {
			return "", explain(bin, size, word, text)
		}
	}
	return bin + "/" + name, nil
}

func run(ctx context.Context, c *ssh.Conn, in io.Reader, script string, args []string) (word, text string, err error) {
	out, err := c.Run(ctx, in, script, args...)
	word, text, _ = strings.Cut(strings.TrimSuffix(string(out), "\n"), "\n")
	return word, text, err
}

// explain returns the error for a word of a script.
func explain(bin string, size int64, word, text string) error {
	text = plain.Line(text, 300)
	switch word {
	case "mkdir":
		return fmt.Errorf("the directory %s can't be made on the host: set dir to one that the user can make (%s)", bin, text)
	case "unsafe":
		return fmt.Errorf("other users of the host can change %s, so %s is not safe: set dir to a directory that only the "+
			"user can change", text, bin)
	case "noexec":
		return fmt.Errorf("the host runs no programs from %s, which may be mounted noexec: set dir to another directory (%s)",
			bin, text)
	case "write":
		if strings.Contains(text, "No space left") || strings.Contains(text, "quota") {
			return fmt.Errorf("the host has no space for the program of %d MiB in %s (%s)", size>>20+1, bin, text)
		}
		return fmt.Errorf("the program can't be written to %s on the host (%s)", bin, text)
	case "differs":
		return fmt.Errorf("the copy of the program in %s has %s bytes of %d, or other content", bin, text, size)
	}
	return fmt.Errorf("failed to copy the program to %s: the host answered %q", bin, plain.Line(word+" "+text, 300))
}

// cksum computes the checksum of cksum(1), for hosts without sha256sum.
type cksum struct {
	crc  uint32
	size uint64
}

func (c *cksum) Write(b []byte) (int, error) {
	for _, next := range b {
		c.crc = c.crc<<8 ^ cksumTable[byte(c.crc>>24)^next]
	}
	c.size += uint64(len(b))
	return len(b), nil
}

func (c *cksum) sum() uint32 {
	end := *c
	for size := c.size; size > 0; size >>= 8 {
		_, _ = end.Write([]byte{byte(size)})
	}
	return ^end.crc
}

var cksumTable = func() (table [256]uint32) {
	for i := range table {
		crc := uint32(i) << 24
		for range 8 {
			crc = crc<<1 ^ (crc>>31)*0x04c11db7
		}
		table[i] = crc
	}
	return table
}()
