// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import "strings"

// Plain removes from a message of Nomad's the prefix that gRPC puts before each error of a plugin.
func Plain(message string) string {
	return strings.ReplaceAll(message, "rpc error: code = Unknown desc = ", "")
}
