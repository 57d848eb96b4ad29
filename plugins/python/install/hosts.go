package install

import (
	"net"
	"net/url"
	"slices"
	"strings"
)

// hosts are those that may be reached.
type hosts struct {
	exact    map[string]bool // host:port
	patterns []string        // of the operator
}

// add allows the host of a URL.
func (h *hosts) add(u *url.URL) {
	if h.exact == nil {
		h.exact = map[string]bool{}
	}
	if u.Host != "" {
		h.exact[address(u)] = true
	}
	if host, port, _ := net.SplitHostPort(address(u)); u.Scheme == "http" && port == "80" {
		h.exact[net.JoinHostPort(host, "443")] = true // where many send those on who come without encryption
	}
	if u.Hostname() == "pypi.org" {
		h.exact["files.pythonhosted.org:443"] = true
	}
}

func (h *hosts) allow(u *url.URL) bool {
	if h.exact[address(u)] {
		return true
	}
	return h.byOperator(strings.ToLower(u.Hostname()), address(u))
}

// byOperator says whether one of the operator's patterns has any of the names.
func (h *hosts) byOperator(names ...string) bool {
	return slices.ContainsFunc(h.patterns, func(p string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return wildcard(strings.ToLower(p), name) })
	})
}

// address is the host:port of a URL.
func address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "443"
		if u.Scheme == "http" {
			port = "80"
		}
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// wildcard says whether name is as pattern, in which * stands for any characters.
func wildcard(pattern, name string) bool {
	head, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == name
	}
	if !strings.HasPrefix(name, head) {
		return false
	}
	for i := len(head); i <= len(name); i++ {
		if wildcard(rest, name[i:]) {
			return true
		}
	}
	return false
}
