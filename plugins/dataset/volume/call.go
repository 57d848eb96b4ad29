// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// call is one call by Nomad: a create or a delete.
type call struct {
	policy.Request
	file    string // path of the operator's file
	dir     string // mount point of the volume
	records records
	answer  answer // writes the result of create
	log     io.Writer
}

const maxName = 128

func isName(name string) bool {
	return name != "" && len(name) <= maxName &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// newCall parses the environment variables that Nomad has set. The names may be missing in a delete:
// Nomad omits them when it undoes a create that it could not save.
func newCall(env func(string) (string, bool), answer answer, log io.Writer) (*call, error) {
	value := func(name string) string {
		v, _ := env("DHV_" + name)
		return v
	}
	c := &call{answer: answer, log: log, Request: policy.Request{
		ID: value("VOLUME_ID"), Name: value("VOLUME_NAME"), Namespace: value("NAMESPACE"),
	}}
	create := value("OPERATION") == "create"
	volumes, plugins := value("VOLUMES_DIR"), value("PLUGIN_DIR")
	switch {
	case !policy.IsID(c.ID):
		return nil, fmt.Errorf("DHV_VOLUME_ID %q is not the id of a volume: Nomad's ids are UUIDs", c.ID)
	case !policy.IsNamespace(c.Namespace) && (create || c.Namespace != ""):
		return nil, fmt.Errorf("DHV_NAMESPACE %q is not a namespace: use letters, digits and -, at most 128", c.Namespace)
	case !isName(c.Name) && (create || c.Name != ""):
		return nil, fmt.Errorf("%q can't be the name of a volume: use at most %d printable bytes", c.Name, maxName)
	case !filepath.IsAbs(volumes):
		return nil, fmt.Errorf("DHV_VOLUMES_DIR %q is not an absolute path", volumes)
	}
	c.dir = filepath.Join(volumes, c.ID)
	c.records = records{filepath.Join(volumes, recordsDir)}
	c.file = policy.Path
	if beside := filepath.Join(plugins, "dataset.hcl"); filepath.IsAbs(plugins) {
		if _, err := os.Lstat(beside); !errors.Is(err, os.ErrNotExist) {
			c.file = beside
		}
	}
	if text := value("PARAMETERS"); text != "" { // "null" if the volume has no parameters
		if err := json.Unmarshal([]byte(text), &c.Parameters); err != nil {
			return nil, fmt.Errorf("DHV_PARAMETERS is not a JSON object of strings: %w", err)
		}
	}
	for name, n := range map[string]*int64{"CAPACITY_MIN_BYTES": &c.Min, "CAPACITY_MAX_BYTES": &c.Max} {
		text := value(name)
		if text == "" {
			continue
		}
		var err error
		if *n, err = strconv.ParseInt(text, 10, 64); err != nil || *n < 0 {
			return nil, fmt.Errorf("DHV_%s %q is not a number of bytes", name, text)
		}
	}
	return c, nil
}

func (c *call) logf(format string, args ...any) {
	fmt.Fprintln(c.log, plain.Line(fmt.Sprintf(format, args...), 0))
}
