// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import "strings"

// Plain is a message of Nomad's without what gRPC puts before each error of a plugin's, which
// says nothing.
func Plain(message string) string {
	return strings.ReplaceAll(message, "rpc error: code = Unknown desc = ", "")
}
