package install

import "regexp"

// The words of the tools that tell causes apart: those of pip 23.0 and uv 0.6 are tested, and
// those of other versions not. They are matched against all of a tool's last lines joined by single spaces (uv wraps its sentences); a group is what
// the words are about.

type pattern struct {
	cause Cause
	re    *regexp.Regexp
}

// decisive are causes whose words leave no doubt, whatever else went wrong on the way.
var decisive = []pattern{
	{NoSpace, regexp.MustCompile(`(?i)no space left on device|disk quota exceeded|\bos error (?:28|122)\b|\bErrno (?:28|122)\b`)},
	{TooLarge, regexp.MustCompile(`(?i)file too large|\bos error 27\b|\bErrno 27\b|signal: file size limit exceeded`)},
	{Malicious, regexp.MustCompile(`For req: (\S+?)\. (?:The wheel|Unexpected file|Unknown scheme key)`)},              // pip
	{Malicious, regexp.MustCompile(`Failed to install: \S+ \((\S+?)\) .*(?:Read-only file system|Permission denied)`)}, // uv, where nothing else is writable
	{Malicious, regexp.MustCompile(`(?i)read-only file system`)},
	{Malicious, regexp.MustCompile(`(?i)(?:trying to install|extract\w*|path|points?|escapes?) outside (?:of )?(?:the )?(?:target|destination|environment|archive|wheel|install)`)},
}

// mismatch is what a file that was cut off looks like, too.
var mismatch = []pattern{
	{HashMismatch, regexp.MustCompile("Hash mismatch for `([^`]+)`")},                                                                          // uv
	{HashMismatch, regexp.MustCompile(`DO NOT MATCH THE HASHES.*?tampered with them\.(?: unknown package:)? (\S+)(?: from |: Expected| Exp)`)}, // pip
	{HashMismatch, regexp.MustCompile(`DO NOT MATCH THE HASHES`)},
	{HashMismatch, regexp.MustCompile("(?i)In `?--require-hashes`? mode, all requirements must (?:have|be).*?(?:: |These do not: )(\\S+)")},
	{HashMismatch, regexp.MustCompile("(?i)Hashes are required in `?--require-hashes`? mode, but they are missing|In `?--require-hashes`? mode")},
}

// likely are looked for in this order when the network did its part.
var likely = []pattern{
	{Unauthorized, regexp.MustCompile(`(?i)\b40[13] (?:Unauthorized|Forbidden|Client Error)|\b40[13] Error, Credentials not correct|could not be queried due to a lack of valid authentication`)},
	{Conflict, regexp.MustCompile(`The conflict is caused by:? (.*?) (?:To fix this|Additionally,|ERROR: ResolutionImpossible)`)}, // pip
	{Conflict, regexp.MustCompile(`(Cannot install .*? because these package versions have conflicting dependencies)`)},
	{Conflict, regexp.MustCompile(`ResolutionImpossible|(Double requirement given: .*?\))|(Requirements contain conflicting URLs for package .*)`)},
	{NoWheel, regexp.MustCompile("Wheels are required for `([^`]+)`")}, // uv
	{NoWheel, regexp.MustCompile(`(?:Because |and )(\S+) has no (?:usable )?wheels`)},
	{NoWheel, regexp.MustCompile(`building packages from source is disabled`)},
	{NoWheel, regexp.MustCompile("(?i)building(?: source distributions)?(?: for)? `?(\\S+?)`? (?:is|from source is) disabled")},
	{NotFound, regexp.MustCompile(`Because the current Python version \(\S+\) does not satisfy Python\S* and (\S+) depends on Python`)},
	{NotFound, regexp.MustCompile(`Package '([^']+)' requires a different Python`)}, // pip
	{NotFound, regexp.MustCompile(`Because (\S+) was not found in `)},
	{NotFound, regexp.MustCompile(`Because there (?:is|are) no versions? of (\S+?),? `)},
	{Conflict, regexp.MustCompile(`(?s)No solution found when resolving dependencies:? (?:Because )?(.*are incompatible)`)},
	{NotFound, regexp.MustCompile(`Because only \S+ (?:is|are) available and (?:you require|\S+ depends on) (\S+?)[, ]`)},
	{Conflict, regexp.MustCompile(`No solution found when resolving dependencies:? (?:Because )?(.*?),? (?:we can conclude that your|hint:)`)},
	{Conflict, regexp.MustCompile(`(Requirements contain conflicting .*)`)},
	{NotFound, regexp.MustCompile(`(?m)No matching distribution found for (.+?)(?: \(from .*| ERROR: .*)?$`)}, // pip
	{NotFound, regexp.MustCompile(`Could not find a version that satisfies the requirement (.+?) \(from `)},
	{Unreachable, regexp.MustCompile(`(?i)(CERTIFICATE_VERIFY_FAILED|invalid peer certificate: \w+)`)},
	{Unreachable, regexp.MustCompile(`(?i)(connection refused|failed to establish a new connection|timed out|connection (?:reset|aborted|broken|closed)|max retries exceeded|name or service not known|name resolution|tunnel connection failed|ProxyError|too many 5\d\d error|\b(?:408|425|429|5\d\d) (?:Client|Server) Error|HTTP error (?:408|425|429|5\d\d)\b|HTTP status \w+ error \((?:408|425|429|5\d\d)[^)]*|error sending request|dns error|connect error|error decoding response body|unexpected (?:EOF|end of file)|IncompleteRead|incomplete message|SSLError)`)},
}

// Why pip left out a file, in its log.
var (
	skippedSource = regexp.MustCompile(`Skipping link: No sources permitted for|Skipping link: not a wheel|No binaries permitted`)
	skippedWheel  = regexp.MustCompile(`Skipping link: (?:none of the wheel's tags|it is not compatible with this Python)`)
	skippedPython = regexp.MustCompile(`[Rr]equires a different Python`)
	skippedIndex  = regexp.MustCompile(`Could not fetch URL (\S+): (.*?)(?: - skipping)?$`)
)

// steps are the lines that tell a person how far it is.
var steps = regexp.MustCompile(`^\s*(?:(Collecting|Downloading|Building|Installing|Resolved|Prepared|Installed|Downloaded|Built) |(Successfully installed) )(\S.*)$`)

// setUp are pip's lines about what it was told, which have paths of the build in them.
var setUp = regexp.MustCompile(`^(?:Looking in (?:links|indexes): |INFO: adding trusted host|adding trusted host|\[notice\])`)
