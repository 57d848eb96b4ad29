// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package host

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
	"github.com/outrider-dev/outrider/plugins/remote/ssh"
)

// script runs on the host, with the plugin's directory as its argument. It makes the directory, receives the program if
// it is not there yet, and executes it. Each line that it prints begins with a word:
//   - "host", architecture and directory; the script then reads the program's size and checksum, and two arguments
//   - "there" if the directory has the program, otherwise "missing"; the script then reads the program
//   - "sent" when the program was received
//   - "error" and a message, instead of any other line; the script then ends
//
// The program's file name contains its checksum, so several versions can share a host. A copy gets this name when it is
// complete, and only the plugin's user can change the file, so the script checks only the size of an existing copy.
//
// A directory is unsafe if another user owns it or can write to it or a directory above. Directories above may be
// sticky, such as /tmp, or writable by the user's private group, unless that is root's or an ACL exists. The script
// removes temporary files of failed attempts, versions that no node has used for 30 days, and files of that age in the
// directory runs of package shim: *.taken, and .new-* of killed programs. Running processes survive the removal of
// their program.
const script = `
mask=$(umask); umask 077
fail() { printf 'error %s\n' "$1"; exit 0; }
sized() { [ "$(wc -c <"$1")" -eq "$size" ]; }
system=$(uname -s) && arch=$(uname -m) && uid=$(id -u) || exit
[ "$system" = Linux ] || fail "the host runs $system: only Linux is supported"
case $arch in
x86_64|amd64) arch=amd64;;
aarch64|arm64) arch=arm64;;
*) fail "the host has the architecture $arch: only x86_64 and aarch64 are supported";;
esac
home=$1
if [ -z "$home" ]; then
	home=$HOME/.local/share/outrider-remote
	[ "$uid" = 0 ] && home=/var/lib/outrider-remote
fi
case $home in /*) ;; *) fail "the user has no home directory on the host: set dir";; esac
printf '%s\n' "host $arch $home"
IFS= read -r size && IFS= read -r sha256 && IFS= read -r role && IFS= read -r options || exit
dir=$home/bin name=nomad-driver-remote-$(printf %.16s "$sha256")

refuse() { fail "the directory $dir can't be made on the host: set dir to a directory that the user can make ($1)"; }
unsafe() { fail "other users of the host can change $p, so $dir is not safe: set dir to a directory that only the user \
can change"; }
e=$(mkdir -p "$dir" 2>&1) || refuse "$e"
cd -P "$dir" 2>/dev/null || refuse "it is not accessible"
bin=$(pwd -P) p=$bin depth=0
while :; do
	set -- $(ls -ldn "$p/")
	case $3 in "$uid") ;; 0) [ $depth -ge 2 ] || unsafe;; *) unsafe;; esac
	case $depth:$1 in
	[2-9]*:?????????[tT]*) ;;
	*:????????w*|*:?????w????+*) unsafe;;
	[2-9]*:?????w*) [ "$3" != 0 ] && [ "$3:$4" = "$uid:$uid" ] || unsafe;;
	*:?????w*) unsafe;;
	esac
	[ "$p" = / ] && break
	p=${p%/*}; p=${p:-/}; depth=$((depth < 9 ? depth + 1 : 9))
done

find "$home/runs" \( -name '*.taken' -o -name '.new-*' \) -mtime +30 -exec rm -f {} \; 2>/dev/null
if [ -f "$name" ] && [ ! -L "$name" ] && [ -x "$name" ] && sized "$name"; then
	touch "$name" 2>/dev/null
	echo there
else
	command -v sha256sum >/dev/null 2>&1 || fail "the host has no sha256sum: install coreutils"
	t=$name.tmp-$$
	trap 'exit 1' HUP INT TERM PIPE; trap 'rm -f "$t"' EXIT
	full() { fail "the program can't be written to $bin on the host ($1)"; }
	e=$({ printf '#!/bin/sh\n' >"$t" && chmod 700 "$t"; } 2>&1) || full "$e"
	e=$("./$t" 2>&1) ||
		fail "the host runs no programs from $bin, which may be mounted noexec: set dir to another directory ($e)"
	echo missing
	find . -name 'nomad-driver-remote-*.tmp-*' -mmin +60 -exec rm -f {} \; 2>/dev/null
	e=$({ head -c "$size" >"$t"; } 2>&1) || full "$e"
	sized "$t" && s=$(sha256sum <"$t") && [ "${s%% *}" = "$sha256" ] ||
		fail "the copy of the program in $bin is damaged: it has $(wc -c <"$t") of $size bytes, or wrong content"
	e=$({ sync "$t" 2>/dev/null || :; } && mv -f "$t" "$name" 2>&1) || full "$e"
	sync . 2>/dev/null
	find . -name 'nomad-driver-remote-*' ! -name "$name" -mtime +30 -exec rm -f {} \; 2>/dev/null
	echo sent
fi
umask "$mask"
cd /; exec "$bin/$name" "$role" "$options"`

// upload starts the program on a host, and copies it first if the host does not have it. A failed attempt leaves no
// executable program on the host. The connection ends when ctx ends.
func upload(ctx context.Context, c Config) (*Link, error) {
	conn, err := c.SSH.Start(ctx, script, c.Options.Dir)
	if err != nil {
		return nil, err
	}
	l := &Link{conn: conn}
	if err := l.prepare(c.Programs, c.Options); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// prepare sends the program's arguments, and the program if the host does not have it.
func (l *Link) prepare(programs map[string]string, options shim.Options) error {
	_, about, err := answer(l.conn)
	if err != nil {
		return err
	}
	l.Arch, l.Dir, _ = strings.Cut(about, " ")
	path := programs[l.Arch]
	if path == "" {
		return fmt.Errorf("no program for the host's architecture %s: add one to \"programs\" in the plugin's "+
			"configuration", plain.Line(l.Arch, 100))
	}
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("failed to open the driver program for the host: %w", err)
	}
	defer file.Close()
	if f, err := elf.NewFile(file); err == nil && f.Machine != machines[l.Arch] {
		return fmt.Errorf("the driver program %s is for %v, but the host's architecture is %s", path, f.Machine, l.Arch)
	}
	hash := sha256.New()
	size, err := io.Copy(hash, file)
	if err != nil {
		return fmt.Errorf("failed to read the driver program for the host: %w", err)
	}

	options.Dir = l.Dir
	_, _ = fmt.Fprintf(l.conn, "%d\n%x\n%s\n", size, hash.Sum(nil), strings.Join(options.Args(), "\n"))
	word, _, err := answer(l.conn)
	if err != nil || word == "there" {
		return err
	}
	_, err = io.CopyN(l.conn, io.NewSectionReader(file, 0, size), size)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s was truncated while it was copied to the host", path)
	}
	if _, _, err = answer(l.conn); err != nil { // even if CopyN failed: the answer has the reason
		return fmt.Errorf("failed to copy the driver program to the host: %w", err)
	}
	return nil
}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// answer reads a line that the script prints: a word and a text. The word "error" becomes an error.
func answer(conn *ssh.Conn) (word, text string, err error) {
	line, err := conn.ReadLine()
	word, text, _ = strings.Cut(line, " ")
	if err != nil || slices.Contains([]string{"host", "there", "missing", "sent"}, word) {
		return word, text, err
	}
	rest, _ := io.ReadAll(io.LimitReader(conn, 4<<10)) // the message may have more lines, up to the end of the script
	text = plain.Line(text+" "+string(rest), 500)
	if word == "error" {
		return "", "", errors.New(text)
	}
	return "", "", fmt.Errorf("unexpected output of the host: %q", word+" "+text)
}
