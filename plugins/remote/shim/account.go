// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/account"
)

// accountOf resolves the user of a task, nil for the shim's own: only root may choose another.
func accountOf(name string) (*account.Account, error) {
	a, err := account.Resolve(name, nil)
	if unknown, ok := errors.AsType[*account.UnknownError](err); ok {
		return nil, fmt.Errorf("%s %q does not exist on the host", unknown.Kind, unknown.Name)
	}
	if err != nil || a == nil || os.Geteuid() == 0 {
		return a, err
	}
	if _, group, _ := strings.Cut(name, ":"); group != "" && a.GID != uint32(os.Getegid()) {
		return nil, fmt.Errorf("a task can run with group %q only where the connection's user on the host is root: it has "+
			"group id %d", group, os.Getegid())
	}
	if a.UID != uint32(os.Geteuid()) {
		return nil, fmt.Errorf("a task can run as user %q only where the connection's user on the host is root: it is "+
			"user id %d", name, os.Geteuid())
	}
	return nil, nil
}

// self is the shim's own account, nil if it is unknown.
func self() *account.Account {
	a, err := account.Resolve(strconv.Itoa(os.Geteuid()), nil)
	if err != nil {
		return nil
	}
	return a
}
