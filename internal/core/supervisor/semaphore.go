// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

// semaphore bounds how many goroutines do something at once. Go gives each goroutine that
// waits in a system call a thread, and never ends a thread: a burst of a thousand requests
// would leave a thousand threads, and be no faster.
type semaphore chan struct{}

func (s semaphore) acquire() { s <- struct{}{} }
func (s semaphore) release() { <-s }
