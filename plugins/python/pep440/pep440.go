// Package pep440 is the version specifiers of Python packaging (PEP 440), such as
// ">=3.11,<3.14", over versions of interpreters.
package pep440

// Specifier is a set of versions. The zero value allows all.
type Specifier struct {
	text string
}

// Parse reads a specifier. "" allows every version, and a bare version such as "3.12"
// is "==3.12.*". An error is one sentence that says what would be right.
func Parse(text string) (Specifier, error) { return Specifier{text: text}, nil }

// Allows says whether a version is in the set. Pre-releases are, as of an
// interpreter that is installed, where the specifier's bounds have them.
func (s Specifier) Allows(version string) bool { return false }

// And is the set of versions that both allow.
func (s Specifier) And(other Specifier) Specifier { return s }

// Minors are the minor versions ("3.11", oldest first) of Python 3 of which the set
// has a version, as far as it can be said now: those that were released or announced.
func (s Specifier) Minors() []string { return nil }

// String is the specifier as it was written, both parts with a comma for And.
func (s Specifier) String() string { return s.text }
