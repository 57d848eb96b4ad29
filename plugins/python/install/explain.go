package install

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// explain makes an *Error of what the installer said and what the proxy saw.
func (b *build) explain(ctx context.Context, err error, lines []string) error {
	last := slices.DeleteFunc(slices.Clone(lines), setUp.MatchString)
	e := &Error{Tool: b.with.tool(b.Python), Lines: last[max(0, len(last)-10):]}
	text := flat(lines) + "\n" + err.Error()
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		e.Cause, e.Words = TimedOut, "the environment was not built in time"
	case ctx.Err() != nil:
		e.Cause, e.Words = TimedOut, "the build of the environment was given up"
	case b.match(e, decisive, text, lines):
	case b.network(e):
	case b.match(e, mismatch, text, lines):
		b.notWhole(e)
	case b.match(e, likely, text, lines):
	case b.with.Name == "pip" && b.Python.Pip == nil && strings.Contains(text, "Traceback (most recent call last)"):
		e.Words = fmt.Sprintf("%s of %s does not run on Python %s: the node needs a pip of that interpreter's own, or uv", e.Tool, b.with.Python.Path, b.Python.Minor)
	default:
		e.Words = fmt.Sprintf("%s failed: %s", e.Tool, err)
		if len(lines) > 0 {
			e.Words = fmt.Sprintf("%s failed: %s", e.Tool, strings.TrimPrefix(strings.TrimSpace(lines[len(lines)-1]), "ERROR: "))
		}
	}
	return e
}

// network tells of hosts that were refused or did not answer.
func (b *build) network(e *Error) bool {
	refused, failed := b.egress.seen()
	if len(refused) > 0 {
		e.Cause, e.Words = RefusedHost, fmt.Sprintf(
			"the index sends the installer to %s, where it may not go: the operator of the node can allow that by allowed_hosts", strings.Join(refused, ", "))
		return true
	}
	for _, host := range slices.Sorted(maps.Keys(failed)) {
		e.Cause, e.Words = Unreachable, redact(fmt.Sprintf("%s did not answer as it should: %s", host, clean(failed[host].Error())), b.source.secrets)
		return true
	}
	return false
}

// notWhole takes back that a file is another where a connection ended right after something had come: pip takes what it
// got for the whole file, and in a tunnel nobody else sees how long that should have been.
func (b *build) notWhole(e *Error) {
	b.egress.mu.Lock()
	defer b.egress.mu.Unlock()
	if len(b.egress.hungUp) > 0 {
		e.Cause, e.Words = Unreachable, fmt.Sprintf("%s closed the connection while packages were downloaded, and a file is not whole, or another than expected",
			short(b.egress.hungUp[len(b.egress.hungUp)-1]))
	}
}

// seen is what became of the installer's ways out, with hosts as a person would write them.
func (e *egress) seen() (refused []string, failed map[string]error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, address := range e.refused {
		refused = append(refused, short(address))
	}
	failed = map[string]error{}
	for _, f := range e.failed {
		failed[short(f.address)] = f.err
	}
	return refused, failed
}

// short leaves out a port that goes without saying.
func short(address string) string {
	if host, port, err := net.SplitHostPort(address); err == nil && (port == "443" || port == "80") {
		return host
	}
	return address
}

// match finds the first pattern that fits.
func (b *build) match(e *Error, patterns []pattern, text string, lines []string) bool {
	for _, p := range patterns {
		m := p.re.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		about := ""
		for _, group := range m[1:] {
			if group != "" {
				about = strings.TrimRight(group, ".,:")
				break
			}
		}
		if quarrel := quarrel(lines); p.cause == Conflict && quarrel != "" {
			about = quarrel
		}
		e.Cause, e.Words = p.cause, b.words(p.cause, strings.ReplaceAll(about, ", we can conclude that", ", so"))
		if p.cause == NotFound && strings.Contains(m[0], "Python") {
			e.Words = b.wrongPython(about)
		}
		if p.cause == NotFound && b.with.Name == "pip" {
			b.skipped(e, about)
		}
		return true
	}
	return false
}

// quarrel is what pip says of a conflict, which it lists line by line.
func quarrel(lines []string) string {
	begin := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "The conflict is caused by:") })
	if begin < 0 {
		return ""
	}
	var sides []string
	for _, line := range lines[begin+1:] {
		if !strings.HasPrefix(line, " ") {
			break
		}
		sides = append(sides, strings.TrimSpace(line))
	}
	return strings.Join(sides, ", ")
}

func (b *build) wrongPython(about string) string {
	return fmt.Sprintf("no version of %s that fits is for Python %s", about, b.Python.Minor)
}

// words is the sentence for a cause; about is what it is about, often empty.
func (b *build) words(cause Cause, about string) string {
	thing := about
	if about == "" {
		thing = "a package"
	}
	switch cause {
	case NoSpace:
		return "the disk is full"
	case TooLarge:
		return fmt.Sprintf("a file of the packages is larger than the %d MiB that an environment may take on this node", b.MaxSize>>20)
	case HashMismatch:
		return fmt.Sprintf("%s is not the file that was locked: its hash is another, or missing", thing)
	case Malicious:
		return fmt.Sprintf("%s wants to install files outside of the environment", thing)
	case Unauthorized:
		return "the index wants other credentials"
	case Conflict:
		if about == "" {
			return "the requirements contradict each other"
		}
		return "the requirements contradict each other: " + about
	case NoWheel:
		return fmt.Sprintf("no wheel of %s fits %s, and this node builds no packages from source (allow_sdists)", thing, b.python())
	case NotFound:
		if b.Indexes.Offline {
			return fmt.Sprintf("%s is not in find_links, and no index is used (offline)", thing)
		}
		return fmt.Sprintf("no index has %s for %s", thing, b.python())
	case Unreachable:
		if about == "" {
			return "the package index did not answer"
		}
		return "the package index did not answer as it should: " + about
	}
	return ""
}

// python is the interpreter as a package index would say: "CPython 3.11 on linux-x86_64".
func (b *build) python() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s on %s", b.Python.Name(), b.Python.Minor, b.Python.Platform))
}

// skipped looks in pip's log for the reason that pip itself keeps quiet about: it had files of the package, but none that fits.
func (b *build) skipped(e *Error, about string) {
	root, err := os.OpenRoot(b.Work) // a package's code may have put anything there
	if err != nil {
		return
	}
	defer root.Close()
	f, err := root.OpenFile(filepath.Base(b.pipLog()), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return
	}
	name := normalised(about)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if m := skippedIndex.FindStringSubmatch(line); m != nil {
			// pip goes on as if that index had nothing.
			if of := likelyCause(m[2]); of == Unauthorized || of == Unreachable {
				e.Cause, e.Words = of, redact(b.words(of, "")+": "+clean(m[2]), b.source.secrets)
				return
			}
		}
		if !strings.Contains(normalised(fileOf(line)), name+"-") {
			continue
		}
		switch {
		case skippedWheel.MatchString(line), skippedSource.MatchString(line):
			e.Cause, e.Words = NoWheel, b.words(NoWheel, about)
			return
		case skippedPython.MatchString(line):
			e.Words = b.wrongPython(about)
		}
	}
}

func likelyCause(text string) Cause {
	for _, p := range likely {
		if p.re.MatchString(text) {
			return p.cause
		}
	}
	return Unknown
}

var linkOf = regexp.MustCompile(`(?:https?|file)://\S+`)

// fileOf is the file name of the first link in a line.
func fileOf(line string) string {
	link, _, _ := strings.Cut(linkOf.FindString(line), "#")
	return path.Base(strings.TrimSuffix(link, ")"))
}

// normalised is the project's name that a requirement begins with, as names are compared.
func normalised(text string) string {
	name := requirement.ProjectName(text)
	if i := strings.IndexAny(name, " [<>=!~;@("); i > 0 {
		name = name[:i]
	}
	return name
}

// flat is a tool's lines as one, without the frames that uv draws.
func flat(lines []string) string {
	text := strings.NewReplacer("│", " ", "├─▶", " ", "╰─▶", " ", "×", " ").Replace(strings.Join(lines, " "))
	return strings.Join(strings.Fields(text), " ")
}

// progress is what a line says to people of how far it is, "" where it says nothing.
func progress(line string) string {
	m := steps.FindStringSubmatch(line)
	switch {
	case m == nil:
		return ""
	case m[2] != "":
		if n := len(strings.Fields(m[3])); n > 1 {
			return fmt.Sprintf("Installed %d packages", n)
		}
		return "Installed " + m[3]
	case m[1] == "Downloading":
		// pip names the URL, and has its size after it.
		what, size, _ := strings.Cut(m[3], " ")
		return strings.TrimSpace("Downloading " + path.Base(what) + " " + size)
	}
	return strings.TrimSpace(line)
}
