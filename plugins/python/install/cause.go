package install

// Cause is why an installer failed.
type Cause int

const (
	Unknown      Cause = iota
	Unreachable        // an index did not answer: it may later, or on another node
	NoSpace            // the disk is full
	TimedOut           // ctx ended
	NotFound           // no such package or version
	Conflict           // the requirements contradict each other
	HashMismatch       // a file is not the one that was locked
	NoWheel            // there is no wheel, and sdists are not allowed
	RefusedHost        // an index sent the installer to a host that is not allowed
	Malicious          // a package wants to install outside of the environment
	Unauthorized       // an index does not know the credentials, or wants some
	TooLarge           // the packages are larger than an environment may be
)

// Error is an installer's failure.
type Error struct {
	Cause Cause
	Tool  string   // "uv 0.8.13"
	Words string   // one sentence for the job's author
	Lines []string // the installer's last lines, without credentials
}

func (e *Error) Error() string { return e.Words }

// Temporary says whether the same may succeed later or elsewhere.
func (e *Error) Temporary() bool {
	return e.Cause == Unreachable || e.Cause == NoSpace || e.Cause == TimedOut
}
