// Package traceback finds out of a Python program's last output why it ended.
package traceback

// Failure is why a program failed.
type Failure struct {
	Text string // "ModuleNotFoundError: No module named 'requests'"
	File string // of the innermost frame that is the program's own: "app.py"
	Line int
}

// Last finds the failure that a program's standard error ends with; tail is its end. It
// is false where there is none, since the program wrote none or something else after it.
func Last(tail []byte) (Failure, bool) { return Failure{}, false }

// String is one line for people: "ModuleNotFoundError: No module named 'requests' (app.py:12)".
func (f Failure) String() string { return "" }
