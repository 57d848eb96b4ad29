// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package uevent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

const soon = time.Minute // enough for a busy machine

func TestMessage_AcceptsOnlyUSB(t *testing.T) {
	for message, want := range map[string]bool{
		"add@/devices/pci0000:00/0000:00:14.0/usb1/1-1 ACTION=add DEVPATH=/devices/pci0000:00/0000:00:14.0/usb1/1-1 " +
			"SUBSYSTEM=usb MAJOR=189 MINOR=3 DEVNAME=bus/usb/001/004 DEVTYPE=usb_device PRODUCT=10c4/ea60/100 TYPE=0/0/0 " +
			"BUSNUM=001 DEVNUM=004 SEQNUM=2214 ": true,
		"bind@/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0 ACTION=bind " +
			"DEVPATH=/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0 SUBSYSTEM=usb DEVTYPE=usb_interface DRIVER=cp210x " +
			"SEQNUM=2220 ": true,
		"add@/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/ttyUSB0/tty/ttyUSB0 ACTION=add SUBSYSTEM=tty MAJOR=188 " +
			"MINOR=0 DEVNAME=ttyUSB0 " +
			"SEQNUM=2217 ": true,
		"remove@/devices/platform/dummy_hcd.0/usb3/3-1/3-1:1.2/0003:1D6B:0104.0001/hidraw/hidraw1 ACTION=remove " +
			"SUBSYSTEM=hidraw MAJOR=245 MINOR=1 DEVNAME=hidraw1 " +
			"SEQNUM=2300 ": true,
		"add@/devices/platform/scb/fd500000.pcie/pci0000:00/0000:00:00.0/0000:01:00.0/usb12" +
			"/12-1/12-1.4/12-1.4:1.0/sound/card1/pcmC1D0p ACTION=add SUBSYSTEM=sound ": true,
		"change@/devices/virtual/mem/null ACTION=change DEVPATH=/devices/virtual/mem/null SUBSYSTEM=mem SYNTH_UUID=0 " +
			"MAJOR=1 MINOR=3 DEVNAME=null DEVMODE=0666 " +
			"SEQNUM=2803 ": false,
		"add@/devices/virtual/block/loop0 ACTION=add SUBSYSTEM=block " +
			"DEVNAME=loop0 ": false,
		"add@/module/usbserial ACTION=add DEVPATH=/module/usbserial " +
			"SUBSYSTEM=module ": false,
		"add@/bus/usb/drivers/cp210x ACTION=add " +
			"SUBSYSTEM=drivers ": false,
		"add@/devices/platform/soc/fe800000.usb ACTION=add " +
			"SUBSYSTEM=platform ": false,
		"libudev \xfe\xed\xca\xfe(   (   DEVPATH_OLD=/devices/x SUBSYSTEM=tty ACTION=add " +
			"DEVPATH=/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/ttyUSB0/tty/ttyUSB0 " +
			"DEVLINKS=/dev/serial/by-id/x ": true,
		"libudev \xfe\xed\xca\xfe ACTION=add DEVPATH=/devices/virtual/tty/tty1 SUBSYSTEM=tty " +
			"ID_PATH=@/devices/usb1/x ": false,
		"libudev \xfe\xed\xca\xfe ACTION=add " +
			"DEVPATH=/devices/pci0000:00/0000:00:14.0/usb1/1-1": false,
		"add@/devices/pci0000:00/0000:00:14.0/usb1/1-1": false, // cut short
		"": false,
	} {
		test.Eq(t, want, ofUSB([]byte(strings.ReplaceAll(message, " ", "\x00"))),
			test.Sprintf("%q is a kick", message))
	}
}

func TestMessage_HasTheNodeNumber(t *testing.T) {
	for message, want := range map[string]Number{
		"remove@/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/ttyUSB0/tty/ttyUSB0 ACTION=remove DEVPATH=/x " +
			"SUBSYSTEM=tty MAJOR=188 MINOR=0 DEVNAME=ttyUSB0 SEQNUM=9 ": {Major: 188},
		"remove@/devices/pci0000:00/0000:00:14.0/usb1/1-1 ACTION=remove SUBSYSTEM=usb MAJOR=189 MINOR=389 " +
			"DEVNAME=bus/usb/004/006 DEVTYPE=usb_device ": {Major: 189, Minor: 389},
		"remove@/devices/x/usb1/1-1/block/sda ACTION=remove SUBSYSTEM=block MAJOR=8 MINOR=0 DEVNAME=sda " +
			"DEVTYPE=disk ": {Major: 8, Block: true},
		"remove@/devices/x/usb1/1-1/1-1:1.0 ACTION=remove SUBSYSTEM=usb " +
			"DEVTYPE=usb_interface ": {},
		"remove@/devices/x/usb1/1-1 ACTION=remove SUBSYSTEM=tty " +
			"MAJOR=188 ": {},
		"remove@/devices/x/usb1/1-1 ACTION=remove SUBSYSTEM=tty MAJOR=188 " +
			"MINOR=-1 ": {},
		"add@/devices/x/usb1/1-1 ACTION=add SUBSYSTEM=tty MAJOR=188 " +
			"MINOR=2 ": {Major: 188,
			Minor: 2}, "change@/devices/x/usb1/1-1 SUBSYSTEM=tty MAJOR=188 MINOR=2 ": {},
		"libudev \xfe\xed\xca\xfe ACTION=remove DEVPATH=/devices/x/usb1/1-1 MAJOR=188 MINOR=0 ": {},
		"": {},
	} {
		got, removed, ok := node([]byte(strings.ReplaceAll(message, " ", "\x00")))
		if ok != (want != Number{}) || ok && (got != want || removed != strings.HasPrefix(message, "remove")) {
			t.Errorf("%q is of %+v, %t, %t", message, got, removed, ok)
		}
	}
}

// A kick starts a scan, and the scan must already know which nodes were removed.
func TestListen_ReportsRemovalBeforeKick(t *testing.T) {
	socket := opened(t)
	ctx, cancel := context.WithCancel(t.Context())
	reported, ended := make(chan string, 100), make(chan error, 1)
	bus := fmt.Sprintf("/usb%d/", os.Getpid())
	h := Handler{
		Removed: func(n Number) { reported <- fmt.Sprintf("-%d:%d", n.Major, n.Minor) },
		Added:   func(n Number) { reported <- fmt.Sprintf("+%d:%d", n.Major, n.Minor) },
		Missed:  func() { reported <- "missed" },
		Kick:    func() { reported <- "kick" },
	}
	about := func(message []byte) bool { return ofUSB(message) && bytes.Contains(message, []byte(bus)) }
	go func() { ended <- h.listen(ctx, socket, about) }()
	defer func() { cancel(); <-ended }()
	want := []string{"missed", "kick"}
	text := "remove@/devices/pci0000:00/0000:00:14.0" + bus + "1-1\x00ACTION=remove\x00MAJOR=188\x00MINOR=7\x00"
	if send(t, text, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: udevGroup}) {
		want = append(want, "-188:7", "kick")
	}
	text = strings.ReplaceAll(text, "remove", "add")
	if send(t, text, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: udevGroup}) {
		want = append(want, "+188:7", "kick")
	}
	for _, want := range want {
		select {
		case got := <-reported:
			test.Eq(t, want, got, test.Sprint("it reported"))
		case <-time.After(soon):
			t.Fatalf("it did not report %s", want)
		}
	}
}

// kicker reports only kicks.
func kicker(kicks chan<- struct{}) Handler {
	return Handler{Removed: func(Number) {}, Added: func(Number) {}, Missed: func() {},
		Kick: func() { kicks <- struct{}{} }}
}

// sendHarmless makes the kernel send an event about /dev/null. It returns false without root.
func sendHarmless(t *testing.T) bool {
	t.Helper()
	text := fmt.Sprintf("change 00000000-0000-4000-8000-000000000000 RUN=%d", os.Getpid())
	err := os.WriteFile("/sys/class/mem/null/uevent", []byte(text), 0)
	if err != nil && !errors.Is(err, os.ErrPermission) && !errors.Is(err, unix.EROFS) {
		t.Fatal(err)
	}
	return err == nil
}

func ofNull(message []byte) bool {
	return bytes.HasPrefix(message, []byte("change@/devices/virtual/mem/null"))
}

// own reports whether a message is an event of sendHarmless in this process, not of another run of this test.
func own(message []byte) bool {
	return ofNull(message) && bytes.Contains(message, fmt.Appendf(nil, "\x00SYNTH_ARG_RUN=%d\x00", os.Getpid()))
}

func TestListen_EndsWithContext(t *testing.T) {
	opened(t).SetReadDeadline(time.Time{}) // makes the runtime open its own descriptors before the count
	descriptors := testsupport.Descriptors(t)
	goroutines := runtime.NumGoroutine()
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		kicks, ended := make(chan struct{}, 100), make(chan error, 1)
		go func() { ended <- Listen(ctx, kicker(kicks)) }()
		within(t, "the first kick", kicks)
		if sendHarmless(t) {
			time.Sleep(10 * time.Millisecond)
		}
		test.False(t, len(kicks) > 0, test.Sprint("an event that is not about USB was a kick"))
		cancel()
		select {
		case err := <-ended:
			if err != context.Canceled {
				t.Errorf("it ended with %v", err)
			}
		case <-time.After(soon):
			t.Fatal("it still runs after the end of its context")
		}
	}
	now := testsupport.Descriptors(t)
	test.False(t, now > descriptors, test.Sprintf("%d descriptors have become %d", descriptors, now))
	// a goroutine may still run for a moment after its last send
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if runtime.NumGoroutine() <= goroutines {
			return
		}
	}
	t.Errorf("%d goroutines have become %d", goroutines, runtime.NumGoroutine())
}

func TestListen_KicksForEachMessage(t *testing.T) {
	socket := opened(t)
	ctx, cancel := context.WithCancel(t.Context())
	kicks, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() { ended <- kicker(kicks).listen(ctx, socket, ofNull) }()
	defer func() { cancel(); <-ended }()
	within(t, "the first kick", kicks)
	for range 3 {
		if sendHarmless(t) {
			within(t, "the kernel's kick", kicks)
		}
	}
}

func TestListen_KicksAfterLostMessages(t *testing.T) {
	for range 50 {
		if kicksAfterLoss(t) {
			return
		}
	}
	t.Error("each time other events came in between")
}

// kicksAfterLoss makes a listener lose messages, and checks the kicks. It returns false, without the last check, if
// messages of other processes came in between, because they may be lost, too.
func kicksAfterLoss(t *testing.T) bool {
	t.Helper()
	socket := opened(t)
	conn, _ := socket.SyscallConn()
	conn.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) })
	lost := false
	for range 100 {
		lost = sendHarmless(t)
	}
	ctx, cancel := context.WithCancel(t.Context())
	kicks, ended := make(chan struct{}, 100), make(chan error, 1)
	h := kicker(kicks)
	missed, read, readBefore := 0, 0, 0 // readBefore is the value of read at the last call of Missed
	h.Missed = func() { missed, readBefore = missed+1, read }
	others := false
	about := func(message []byte) bool {
		read++
		others = others || !own(message)
		return false
	}
	go func() { ended <- h.listen(ctx, socket, about) }()
	within(t, "the first kick", kicks)
	if lost {
		within(t, "the kick for the loss", kicks)
	}
	cancel()
	<-ended
	if others {
		return false
	}
	// Missed must be called when the queue is empty: until then, the kernel may drop more messages without an error.
	if lost && (missed != 2 || read == 0 || readBefore != read) {
		t.Errorf("Missed was called %d times, the last time after %d of %d queued messages", missed, readBefore, read)
	}
	return true
}

// send sends a message as another process. It returns false without root.
func send(t *testing.T, text string, to *unix.SockaddrNetlink) bool {
	t.Helper()
	conn, _ := opened(t).SyscallConn()
	var err error
	conn.Control(func(fd uintptr) { err = unix.Sendto(int(fd), []byte(text), 0, to) })
	if err != nil && os.Geteuid() == 0 {
		t.Fatal(err)
	}
	return err == nil
}

func TestListen_KicksForMessagesOfUdev(t *testing.T) {
	socket := opened(t)
	ctx, cancel := context.WithCancel(t.Context())
	kicks, ended := make(chan struct{}, 100), make(chan error, 1)
	bus := fmt.Sprintf("/usb%d/", os.Getpid()) // unique to this run of the test
	about := func(message []byte) bool { return ofUSB(message) && bytes.Contains(message, []byte(bus)) }
	go func() { ended <- kicker(kicks).listen(ctx, socket, about) }()
	defer func() { cancel(); <-ended }()
	within(t, "the first kick", kicks)
	text := "libudev\x00\xfe\xed\xca\xfe\x00ACTION=add\x00DEVPATH=/devices/pci0000:00/0000:00:14.0" + bus + "1-1\x00"
	if send(t, text, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: udevGroup}) {
		within(t, "udev's kick", kicks)
	}
}

func TestListen_IgnoresOtherProcesses(t *testing.T) {
	socket := opened(t)
	conn, _ := socket.SyscallConn()
	var to unix.Sockaddr
	conn.Control(func(fd uintptr) { to, _ = unix.Getsockname(int(fd)) })
	const text = "add@/devices/pci0000:00/0000:00:14.0/usb1/1-1\x00ACTION=add\x00"
	if !send(t, text, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: to.(*unix.SockaddrNetlink).Pid}) {
		return
	}
	socket.SetReadDeadline(time.Now().Add(soon))
	for range 100 { // the kernel's own messages may come in between
		message, err := receive(conn, make([]byte, messageSize), func() {})
		must.NoError(t, err)
		must.NotEq(t, text, string(message), must.Sprint("taken for the kernel's"))
		if message == nil {
			return
		}
	}
	t.Error("it did not arrive")
}

func opened(t *testing.T) *os.File {
	t.Helper()
	socket, err := open()
	must.NoError(t, err)
	t.Cleanup(func() { socket.Close() })
	return socket
}

func within(t *testing.T, what string, kicks <-chan struct{}) {
	t.Helper()
	select {
	case <-kicks:
	case <-time.After(soon):
		t.Fatalf("%s did not come", what)
	}
}
