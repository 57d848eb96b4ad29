package install

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// explain makes an *Error of how the installer ended and of what the proxy saw. Where neither tells the cause, the
// installer's own words do: they are not interpreted, but for names of errors that stay the same (transport, errnos).
func (b *build) explain(ctx context.Context, err error, lines []string) error {
	if len(lines) == 0 {
		lines = []string{err.Error()}
	}
	e := &Error{Tool: b.with.Tool(b.Python), Lines: append(lastLines(lines), b.unfetched()...)}
	for n, line := range e.Lines {
		e.Lines[n] = strings.ReplaceAll(line, b.Work+"/", "") // where nobody finds anything later
	}
	text := strings.Join(e.Lines, " ")
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		e.Cause, e.Words = TimedOut, "the environment was not built in time"
	case ctx.Err() != nil:
		e.Cause, e.Words = TimedOut, "the build of the environment was given up"
	case b.limited(e, err, text):
	case b.network(e, text):
	default:
		e.Refused = refusal.MatchString(text)
		e.Words = fmt.Sprintf("%s failed: %s (for %s)", e.Tool, e.said(), b.wanted())
	}
	return e
}

// wanted is what the installer was asked for, besides the requirements: "CPython 3.11 on linux-x86_64, from wheels alone
// (allow_sdists)".
func (b *build) wanted() string {
	text := strings.TrimSpace(fmt.Sprintf("%s %s on %s", b.Python.Name(), b.Python.Minor, b.Python.Platform))
	if !b.AllowSdists {
		text += ", from wheels alone (allow_sdists)"
	}
	if b.Indexes.Offline {
		text += ", without an index (offline)"
	}
	return text
}

// errnos are numbers of the system's errors, as Python and Rust write them.
var errnos = regexp.MustCompile(`\[Errno (\d+)\]|\(os error (\d+)\)`)

// limited tells of a disk that is full and of a file that is too large.
func (b *build) limited(e *Error, err error, text string) bool {
	tooLarge := false
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		tooLarge = exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGXFSZ
	}
	for _, m := range errnos.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[1] + m[2]) // 0 is none
		switch syscall.Errno(n) {
		case syscall.ENOSPC, syscall.EDQUOT:
			e.Cause, e.Words = NoSpace, "the disk is full"
			return true
		case syscall.EFBIG:
			tooLarge = true
		}
	}
	if tooLarge {
		e.Cause, e.Words = TooLarge, fmt.Sprintf(
			"a file of the packages is larger than the %d MiB that an environment may take on this node", b.MaxSize>>20)
	}
	return tooLarge
}

// What a tunnel hides from the proxy, an installer tells by the names of its errors: HTTP's codes in the words of
// requests and reqwest, the classes of urllib3, and the kinds of reqwest's and hyper's errors.
var transport = regexp.MustCompile(`\b(?:408|425|429|5\d\d) (?:Client|Server) Error\b` +
	`|\bHTTP error (?:408|425|429|5\d\d)\b|too many 5\d\d error responses` +
	`|HTTP status (?:client|server) error \((?:408|425|429|5\d\d)\b` +
	`|\b(?:Protocol|NewConnection|ConnectTimeout|ReadTimeout|SSL|Proxy|Connection(?:Reset|Refused|Aborted))Error\b` +
	`|\b(?:IncompleteRead|RemoteDisconnected|incomplete-download)\b|Read timed out` +
	`|error sending request|error decoding response body|request or response body error|operation timed out` +
	`|UV_HTTP_TIMEOUT`)

// notWhole is what a file that was cut off looks like to pip, which takes what it got for the whole: HashMismatch,
// InvalidWheel and BadZipFile.
var notWhole = regexp.MustCompile(`DO NOT MATCH THE HASHES|Wheel '.*' located at .* is invalid|BadZipFile`)

// refusal is what the installers say of a hash, and of an answer 401 or 403.
var refusal = regexp.MustCompile(`(?i)DO NOT MATCH THE HASHES|\bhash mismatch\b|--require-hashes` +
	`|\b40[13] (?:Client )?(?:Error|Unauthorized|Forbidden)\b|\bHTTP error 40[13]\b`)

// network tells of hosts that were refused, or did not answer or end their answer.
func (b *build) network(e *Error, text string) bool {
	refused, failed, hungUp := b.egress.seen()
	switch {
	case len(refused) > 0:
		e.Cause, e.Words = RefusedHost, fmt.Sprintf(
			"the index sends the installer to %.1000s, where it may not go: the operator of the node can allow that by allowed_hosts", strings.Join(refused, ", "))
	case len(failed) > 0:
		e.Cause, e.Words = Unreachable, redact(fmt.Sprintf("%s did not answer as it should: %s",
			short(failed[0].address), clean(failed[0].err.Error())), b.secrets())
	case len(hungUp) > 0 && notWhole.MatchString(text):
		e.Cause, e.Words = Unreachable, fmt.Sprintf(
			"%s closed the connection while packages were downloaded, and a file is not whole, or another than expected",
			strings.Join(hungUp, ", "))
	case transport.MatchString(text):
		e.Cause, e.Words = Unreachable, "the package index did not answer as it should"
	default:
		return false
	}
	return true
}

// seen is what became of the installer's ways out, with hosts as a person would write them.
func (e *egress) seen() (refused []string, failed []failure, hungUp []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, address := range e.refused {
		refused = append(refused, short(address))
	}
	for _, address := range e.hungUp {
		hungUp = append(hungUp, short(address))
	}
	for _, f := range e.failed {
		failed = append(failed, f)
	}
	slices.SortFunc(failed, func(a, b failure) int { return strings.Compare(a.address, b.address) })
	return refused, failed, hungUp
}

// short leaves out a port that goes without saying.
func short(address string) string {
	if host, port, err := net.SplitHostPort(address); err == nil && (port == "443" || port == "80") {
		return host
	}
	return address
}

// errorLine is how a tool begins to tell of an error: the level of pip's log, and uv's own and its frame.
var errorLine = regexp.MustCompile(`^(?:ERROR: |error: |\s*× )`)

// lastLines are those about the error, where a tool marks them, and otherwise the last ten. Where these are few, some
// before them tell what the tool was at.
func lastLines(lines []string) []string {
	const most, least = 20, 5
	from := slices.IndexFunc(lines, errorLine.MatchString)
	if from < 0 {
		from = len(lines) - 10
	}
	lines = slices.Clone(lines[max(0, min(from, len(lines)-least)):])
	if len(lines) > most {
		lines = append(append(lines[:most/2:most/2], "…"), lines[len(lines)-most/2:]...)
	}
	return lines
}

// unfetched are the last pages that pip did not get, which it says in its log alone, and goes on as if there were none.
func (b *build) unfetched() (lines []string) {
	if b.with.Name != "pip" {
		return nil
	}
	root, err := os.OpenRoot(b.Work) // a package's code may have put anything there
	if err != nil {
		return nil
	}
	defer root.Close()
	f, err := root.OpenFile(filepath.Base(b.pipLog()), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	const most, longest, end = 3, 4 << 10, 16 << 20 // a package's code may write anything, as much as fits on the disk
	log := bufio.NewScanner(io.NewSectionReader(f, max(0, info.Size()-end), end))
	log.Buffer(nil, 1<<20)
	for log.Scan() {
		if _, about, ok := bytes.Cut(log.Bytes(), []byte("Could not fetch URL ")); ok {
			lines = append(lines[max(0, len(lines)-most+1):], string(about))
		}
	}
	for n, about := range lines { // cut last: a secret that is cut is not known for one
		lines[n] = cut(redact(clean("Could not fetch URL "+about), b.secrets()), longest)
	}
	return lines
}
