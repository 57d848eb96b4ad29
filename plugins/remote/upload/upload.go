// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package upload copies the shim to a host and starts it there. The copy is named by its content, so that plugins of
// several versions share a host: <state_dir>/bin/outrider-shim-<sum>.
package upload

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/ssh"
)

// The limits of the two steps. A copy goes on while calls that wait for it give up, lest a slow link never has one.
const (
	lookTime = 30 * time.Second
	copyTime = 10 * time.Minute
)

// Host is where a shim runs.
type Host struct {
	client   *ssh.Client
	stateDir string // as configured
	programs programs

	mu   sync.Mutex
	copy *copying // nil: none under way
}

// New returns a host. An empty state directory is outrider-remote below the remote user's XDG_STATE_HOME or
// ~/.local/state.
func New(client *ssh.Client, stateDir string) *Host {
	return &Host{client: client, stateDir: stateDir, programs: own}
}

// Dial starts a shim, and returns a connection to its standard input and output. It copies the shim there first if the
// host does not have it.
func (h *Host) Dial(ctx context.Context) (net.Conn, error) {
	p, err := h.installed(ctx)
	if err != nil {
		return nil, err
	}
	return h.client.Start(ctx, p.path, "serve", "-state-dir", p.dir)
}

// place is where the shim is on the host.
type place struct{ path, dir string }

// copying is a search for the shim, and a copy if there is none, which all who wait for it share.
type copying struct {
	done  chan struct{} // closed at the end
	place place
	err   error
}

func (h *Host) installed(ctx context.Context) (place, error) {
	h.mu.Lock()
	c := h.copy
	if c == nil {
		c = &copying{done: make(chan struct{})}
		h.copy = c
		go func() { // ends with the client
			defer close(c.done)
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTime+copyTime)
			defer cancel()
			c.place, c.err = h.install(ctx)
			h.mu.Lock()
			defer h.mu.Unlock()
			h.copy = nil
		}()
	}
	h.mu.Unlock()
	select {
	case <-c.done:
		return c.place, c.err
	case <-ctx.Done():
		return place{}, fmt.Errorf("the shim is not on %s yet: %w", h.client, ctx.Err())
	}
}

// install looks for the shim on the host, and copies it if it is not there.
func (h *Host) install(ctx context.Context) (place, error) {
	found, err := h.look(ctx)
	if err != nil {
		return place{}, err
	}
	goarch := endpoint.Archs[found.arch]
	switch {
	case found.unsafe != "":
		return place{}, h.unsafe(found.dir, found.unsafe)
	case found.system != "Linux":
		return place{}, fmt.Errorf("%s runs %s: only Linux is supported", h.client, found.system)
	case h.programs[goarch] == nil:
		return place{}, fmt.Errorf("%s is of the architecture %s: the shim is there for %s", h.client, found.arch, h.programs)
	case !strings.HasPrefix(found.dir, "/"):
		return place{}, fmt.Errorf("the user %s has no home directory: set state_dir", h.client)
	}
	program := h.programs[goarch]
	sum, size, err := program.sum()
	if err != nil {
		return place{}, err
	}
	p := place{fmt.Sprintf("%s/bin/outrider-shim-%s", found.dir, sum), found.dir}
	if found.build == sum {
		return p, nil
	}
	return p, h.send(ctx, program, found, sum, size)
}

// seen is what look found.
type seen struct {
	system, arch string // as uname(1) has them
	gzip         bool   // whether the host has gzip
	dir          string // the state directory, empty without a home
	unsafe       string // a directory in its path by which others could replace the shim, empty if there is none
	build        string // of the shim that is there and runs, empty without one
}

// unsafeScript is a function that prints the directory by which another user of the host could replace what is in $1,
// which need not be there yet. The shim itself, which would be replaced, checks more, by package owndir: here the owner
// is all that counts of a symbolic link in $1, and its directory and links in its target do not.
const unsafeScript = `
unsafe() (
  set -f; p=$1; q=$1; n=0; [ -d "$1" ] && n=2 || { [ -d "${1%/*}" ] && n=1; }
  set -- $(ls -ldn /proc/self/); u=$3
  while [ -n "$q" ]; do
    if [ -L "$q" ]; then set -- $(ls -ldn "$q"); case $3 in 0|"$u") ;; *) echo "$q"; exit;; esac; fi
    q=${q%/*}
  done
  until [ -d "$p/" ]; do p=${p%/*}; done
  cd -P "$p/" 2>/dev/null || exit 0
  p=$(pwd)
  while :; do
    set -- $(ls -ldn "$p/")
    case $3 in 0|"$u") ;; *) echo "$p"; exit;; esac
    case $1:$n in
    ?????????[tT]*:0) ;; # as /tmp
    ????????w*) echo "$p"; exit;;
    ?????w*) [ "$3" != 0 ] && [ "$3" = "$4" ] || { echo "$p"; exit; };; # a group that each user has for themselves
    esac
    [ "$p" = / ] && exit
    p=${p%/*}; p=${p:-/}; n=$((n > 0 ? n - 1 : 0))
  done
)
`

// lookScript has the state directory and the sum for each architecture as arguments. That a shim is there is not
// enough: a loss of power can leave a file without its content, and one that others may change is not run.
const lookScript = unsafeScript + `
own() (
  f=$1; set -f; set -- $(ls -ldn /proc/self/); u=$3; set -- $(ls -ldn "$f")
  case $3 in 0|"$u") ;; *) exit 1;; esac
  case $1 in -????[!w]??[!w]*) ;; *) exit 1;; esac
)
LC_ALL=C; export LC_ALL
d=$1
if [ -z "$d" ]; then
  case ${XDG_STATE_HOME:-} in /*) d=$XDG_STATE_HOME;; *) d=${HOME:+$HOME/.local/state};; esac
  d=${d:+$d/outrider-remote}
fi
m=$(uname -m)
case $m in x86_64) s=$2;; aarch64) s=$3;; *) s=;; esac
f=$d/bin/outrider-shim-$s v= x=
case $d in /*) x=$(unsafe "$d/bin");; esac
[ -z "$x" ] && [ -n "$s" ] && [ -x "$f" ] && own "$f" && v=$("$f" version 2>/dev/null)
z=; command -v gzip >/dev/null 2>&1 && z=gzip
printf "%s\n" "$(uname -s)" "$m" "$z" "$d" "$x" "$v"
`

func (h *Host) look(ctx context.Context) (s seen, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	var sums []string
	for _, arch := range []string{"amd64", "arm64"} {
		sum := ""
		if p := h.programs[arch]; p != nil {
			if sum, _, err = p.sum(); err != nil {
				return s, err
			}
		}
		sums = append(sums, sum)
	}
	out, err := h.client.Run(ctx, nil, lookScript, h.stateDir, sums[0], sums[1])
	if err != nil {
		return s, fmt.Errorf("failed to look for the shim on %s: %w", h.client, err)
	}
	lines := strings.SplitN(string(out), "\n", 6)
	if len(lines) < 6 || len(lines[3]) > unix.PathMax {
		return s, fmt.Errorf("failed to look for the shim on %s: it answered %q", h.client, plain.Line(string(out), 300))
	}
	_, build, _ := strings.Cut(lines[5], ", build ")
	build, _, _ = strings.Cut(build, "\n")
	short := func(text string) string { return plain.Line(text, 100) } // for messages
	return seen{short(lines[0]), short(lines[1]), lines[2] != "", lines[3], lines[4], build}, nil
}

// sendScript has the state directory, the sum, the size and "gzip" or "" as arguments, and the program as input. It
// prints ok, or what failed and why. The size is compared before the program is run, since the end of a lost connection
// looks like that of the program. After that it removes the programs of other versions that no process runs, and what
// is left of copies whose process has ended: not in the directory of another host, whose processes are not seen here.
const sendScript = unsafeScript + `
LC_ALL=C; export LC_ALL; umask 077
d=$1/bin; f=$d/outrider-shim-$2; t=$f.upload-$$
fail() { rm -f "$t"; printf "%s\n" "$@"; exit 0; }
e=$(mkdir -p "$d" 2>&1) || fail mkdir "$e"
e=$(unsafe "$d"); [ -z "$e" ] || fail unsafe "$e"
trap "exit 1" HUP INT TERM; trap "rm -f \"\$t\"" EXIT
if [ -n "$4" ]; then e=$({ gzip -dc >"$t"; } 2>&1); else e=$({ cat >"$t"; } 2>&1); fi || fail write "$e"
n=$(wc -c <"$t"); [ "$n" -eq "$3" ] || fail size "$n"
chmod 700 "$t"; sync "$t" 2>/dev/null
v=$("$t" version 2>&1)
case $v in *"build $2"*) ;; *) fail run "$v";; esac
e=$(mv -f "$t" "$f" 2>&1) || fail write "$e"
"$f" owns -state-dir "$1" >/dev/null 2>&1 || fail ok
used=$(ls -l /proc/[0-9]*/exe 2>/dev/null)
for o in "$d"/outrider-shim-*; do
  case $o in "$f") continue;; *.upload-*) [ -d "/proc/${o##*-}" ] && continue;; esac
  case $used in *"/${o##*/}"*) continue;; esac
  rm -f "$o"
done
echo ok
`

func (h *Host) send(ctx context.Context, p *program, found seen, sum string, size int64) error {
	ctx, cancel := context.WithTimeout(ctx, copyTime)
	defer cancel()
	packed := ""
	open := p.open
	if found.gzip && p.packed != nil {
		packed, open = "gzip", p.openPacked
	}
	content, err := open()
	if err != nil {
		return err
	}
	defer content.Close()
	out, err := h.client.Run(ctx, content, sendScript, found.dir, sum, strconv.FormatInt(size, 10), packed)
	if err != nil {
		return fmt.Errorf("failed to copy the shim to %s: %w", h.client, err)
	}
	step, why, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	why = plain.Line(why, 300)
	bin := found.dir + "/bin"
	switch {
	case step == "ok":
		return nil
	case step == "mkdir":
		return fmt.Errorf("%s can't make the directory %s: set state_dir to one that its user can make (%s)", h.client, bin,
			why)
	case step == "unsafe":
		return h.unsafe(found.dir, why)
	case step == "write" && (strings.Contains(why, "No space left") || strings.Contains(why, "quota")):
		return fmt.Errorf("%s has no space for the shim, %d MiB, in %s (%s)", h.client, size>>20+1, bin, why)
	case step == "write":
		return fmt.Errorf("%s can't write the shim in %s: set state_dir to a directory that its user can write (%s)",
			h.client, bin, why)
	case step == "run" && strings.Contains(why, "Permission denied"):
		return fmt.Errorf("%s runs no programs from %s, which is mounted noexec: set state_dir to a directory elsewhere (%s)",
			h.client, bin, why)
	case step == "run":
		return fmt.Errorf("the shim does not run on %s: %s", h.client, why)
	case step == "size":
		return fmt.Errorf("the copy of the shim to %s was cut off after %s of %d bytes", h.client, why, size)
	}
	return fmt.Errorf("failed to copy the shim to %s: it answered %q", h.client, plain.Line(string(out), 300))
}

func (h *Host) unsafe(dir, by string) error {
	return fmt.Errorf("others on %s could replace what is in %s, since %s is theirs or open to them: set state_dir to a "+
		"directory that only its user can change", h.client, dir, plain.Line(by, 300))
}
