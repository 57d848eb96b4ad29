// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

// Builder is the user and group that build. No task may run as it: it could change what is being built.
type Builder struct{ UID, GID uint32 }
