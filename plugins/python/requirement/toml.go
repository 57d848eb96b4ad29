package requirement

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// maxLock bounds a TOML lock, in bytes; those of large projects have one MiB.
const maxLock = 4 << 20

// decode reads a lock that is TOML.
func decode(name string, read Reader, into any) error {
	content, err := read(name)
	if err != nil {
		return fmt.Errorf("failed to read lock %s: %w", name, err)
	}
	if len(content) > maxLock {
		return fmt.Errorf("%s is larger than %d MiB, which no lock is", name, maxLock>>20)
	}
	err = toml.Unmarshal(content, into)
	var at *toml.DecodeError
	if errors.As(err, &at) {
		line, _ := at.Position()
		return fmt.Errorf("%s:%d: this is not TOML, or not such a lock: %s", name, line, strings.TrimPrefix(plain(at.Error()), "toml: "))
	}
	if err != nil {
		return fmt.Errorf("%s is not such a lock: %s", name, plain(err.Error()))
	}
	return nil
}
