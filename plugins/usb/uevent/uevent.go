// Package uevent hears from the kernel that something was plugged in or out.
package uevent

import "context"

// Listen calls kick once it listens, and then whenever the kernel tells of a USB
// device or of what its drivers made of it. It returns with ctx, or when the kernel
// can't be heard. It needs no privilege.
func Listen(ctx context.Context, kick func()) error { panic("to come") }
