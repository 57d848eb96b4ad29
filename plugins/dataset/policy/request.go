// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// Request is a request for a volume. The caller has validated the names.
type Request struct {
	ID, Name, Namespace string

	Min, Max   int64 // limits of the capacity in bytes; 0 if not requested
	Parameters map[string]string
}

// parameters are the parameters of a volume that its class may allow.
var parameters = []string{"uid", "gid", "mode", "clone_from"}

// Ids and namespaces become parts of dataset names and file names, so only these characters are allowed.
var (
	id        = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	namespace = regexp.MustCompile(`^[A-Za-z0-9-]{1,128}$`)
)

// IsID reports whether a text has the form of Nomad's ids.
func IsID(text string) bool { return id.MatchString(text) }

// IsNamespace reports whether a text can be the name of a namespace.
func IsNamespace(text string) bool { return namespace.MatchString(text) }

// Volume describes the volume to make for a request.
type Volume struct {
	Class string
	Spec  engine.Spec // the caller sets Spec.Dir
	Owner Owner
	Clone *Origin // snapshot whose content the volume gets, or nil
	Adopt string  // key of the waiting dataset that becomes the volume, or empty
}

// Owner is the ownership and mode of a volume's directory.
type Owner struct {
	UID, GID int
	Mode     uint32
}

// Origin is a snapshot of a volume in the same class and namespace.
type Origin struct {
	Volume   string // the volume's id or name
	Snapshot string
}

// Volume returns the volume for a request. If the class does not allow it, the error is for the request's author.
func (f *File) Volume(r Request) (*Volume, error) {
	name, c, err := f.class(r)
	if err != nil {
		return nil, err
	}
	v := &Volume{Class: name}
	if v.Owner, v.Clone, err = c.parameters(name, r.Parameters); err != nil {
		return nil, err
	}
	if v.Adopt = r.Parameters[engine.Adopt]; v.Adopt != "" && v.Clone != nil {
		return nil, errors.New("the parameters \"adopt\" and \"clone_from\" are mutually exclusive: use one of them")
	}
	if v.Spec.Limits, err = f.Limits(name, r.Min, r.Max); err != nil {
		return nil, err
	}
	v.Spec.Tags = engine.Tags{
		engine.Kind: "volume", engine.ID: r.ID, engine.Volume: r.Name, engine.Namespace: r.Namespace,
	}
	return v, nil
}

// class returns the class that a request names, if the request's namespace may use the class.
func (f *File) class(r Request) (string, Class, error) {
	name, named := r.Parameters["class"]
	c, known := f.Classes[name]
	if known && c.serves(r.Namespace) {
		return name, c, nil
	}
	var may []string // classes that the namespace may use
	for _, other := range slices.Sorted(maps.Keys(f.Classes)) {
		if f.Classes[other].serves(r.Namespace) {
			may = append(may, strconv.Quote(other))
		}
	}
	use := "use " + strings.Join(may, ", ")
	if len(may) == 0 {
		use = "ask the operator for a class that allows the namespace"
	}
	switch {
	case !named:
		return "", Class{}, fmt.Errorf("the parameter \"class\" is missing: %s", use)
	case known:
		return "", Class{}, fmt.Errorf("class %q does not allow namespace %q: %s", name, r.Namespace, use)
	}
	return "", Class{}, fmt.Errorf("class %q does not exist on this node: %s", name, use)
}

// serves reports whether volumes of a namespace may use the class.
func (c Class) serves(namespace string) bool {
	return len(c.Namespaces) == 0 || slices.ContainsFunc(c.Namespaces, func(pattern string) bool {
		matched, err := path.Match(pattern, namespace)
		return err == nil && matched
	})
}

// Limits returns the limits of a volume. Its capacity is the largest one from low to high that the class allows. If low
// or high is 0, the capacity is the other one; if both are 0, the capacity is the class's default.
func (f *File) Limits(class string, low, high int64) (engine.Limits, error) {
	c, known := f.Classes[class]
	least, most := c.MinCapacity.Bytes(), c.MaxCapacity.Bytes()
	capacity := high
	switch {
	case !known:
		return engine.Limits{}, fmt.Errorf("class %q does not exist on this node", class)
	case low < 0 || high < 0 || high > 0 && low > high:
		return engine.Limits{}, fmt.Errorf("capacity_min %s is above capacity_max %s: swap them", Size(low), Size(high))
	case low == 0 && high == 0:
		capacity = c.DefaultCapacity.Bytes()
	case high == 0:
		capacity = low
	case low > 0 && low <= most:
		capacity = min(high, most)
	}
	switch {
	case capacity > most:
		return engine.Limits{}, fmt.Errorf("a capacity of %s is more than class %q allows: use at most %s", Size(capacity),
			class, c.MaxCapacity)
	case capacity < least:
		return engine.Limits{}, fmt.Errorf("a capacity of %s is less than class %q allows: use at least %s", Size(capacity),
			class, c.MinCapacity)
	}
	return c.limits(capacity), nil
}

// limits returns the limits of a dataset with this capacity, plus the class's reserve for snapshots.
func (c Class) limits(capacity int64) engine.Limits {
	return engine.Limits{Data: capacity, Snapshots: capacity / 100 * int64(c.SnapshotReserve)}
}

// parameters validates the parameters of a volume, and returns the owner and the snapshot to clone.
func (c Class) parameters(class string, all map[string]string) (o Owner, clone *Origin, err error) {
	mode := c.Mode
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := all[name]
		switch {
		case name == "class", name == engine.Adopt: // adopt is always allowed: its value is a secret
			continue
		case !slices.Contains(c.Allow, name):
			use := "leave it out"
			if len(c.Allow) > 0 {
				use = "use " + strings.Join(c.Allow, ", ")
			}
			return o, nil, fmt.Errorf("class %q does not allow the parameter %q: %s", class, name, use)
		}
		switch name {
		case "uid":
			o.UID, err = parseID(value)
		case "gid":
			o.GID, err = parseID(value)
		case "mode":
			mode, err = value, checkMode(value)
		case "clone_from":
			clone, err = parseOrigin(value)
		}
		if err != nil {
			return o, nil, fmt.Errorf("the parameter %s %w", name, err)
		}
	}
	bits, err := strconv.ParseUint(mode, 8, 32)
	o.Mode = uint32(bits)
	return o, clone, err
}

// parseID parses the number of a user or group. The highest number means "unchanged" in chown(2).
func parseID(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 1<<32-1 {
		return 0, fmt.Errorf("%q is not the number of a user or group: use 0 to %d", text, uint32(1<<32-2))
	}
	return int(n), nil
}

func parseOrigin(text string) (*Origin, error) {
	at := strings.LastIndex(text, "@")
	if at < 1 || at == len(text)-1 {
		return nil, fmt.Errorf("%q is not a snapshot of a volume: use <id or name of the volume>@<snapshot>", text)
	}
	return &Origin{text[:at], text[at+1:]}, nil
}

// Size returns a human-readable number of bytes.
func Size(n int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.bytes {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/float64(u.bytes)), ".0") + " " + u.name
		}
	}
	return fmt.Sprintf("%d B", n)
}
