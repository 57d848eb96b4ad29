package requirement

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// maxLock bounds a TOML lock, in bytes; those of large projects have one MiB.
const maxLock = 4 << 20

// decode reads a file that is TOML; what is the word for it: "lock".
func decode(what, name string, read Reader, into any) error {
	content, err := read(name)
	if err != nil {
		return fmt.Errorf("failed to read %s %s: %w", what, name, err)
	}
	if len(content) > maxLock {
		return fmt.Errorf("%s is larger than %d MiB, which no %s is", name, maxLock>>20, what)
	}
	err = toml.Unmarshal(content, into)
	var at *toml.DecodeError
	if errors.As(err, &at) {
		line, _ := at.Position()
		why := strings.TrimPrefix(plain(at.Error()), "toml: ")
		return fmt.Errorf("%s:%d: this is not TOML, or not such a %s: %s", name, line, what, why)
	}
	if err != nil {
		return fmt.Errorf("%s is not such a %s: %s", name, what, plain(err.Error()))
	}
	return nil
}
