package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/hashicorp/yamux"

	"github.com/outrider-dev/outrider/lab/vm/wire"
)

// serve says that the machine is ready and answers requests until the host is
// gone. Then it switches the machine off.
func serve(port *os.File) {
	defer powerOff()
	go hotplug()
	if err := answer(port); err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, "guest:", err)
	}
}

func answer(port *os.File) error {
	kernel, err := release()
	if err != nil {
		return err
	}
	if err := wire.WriteLine(port, wire.Ready{Kernel: kernel}); err != nil {
		return err
	}
	session, err := yamux.Server(port, wire.Config())
	if err != nil {
		return err
	}
	for {
		stream, err := session.Accept()
		if err != nil {
			return err
		}
		go func() { // ends with the stream, or with the machine
			defer stream.Close()
			if err := handle(stream); err != nil && !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, "guest:", err)
			}
		}()
	}
}

func handle(stream net.Conn) error {
	var r wire.Request
	if err := wire.ReadLine(stream, &r); err != nil {
		return fmt.Errorf("failed to read a request: %w", err)
	}
	switch {
	case r.Run != nil:
		return run(stream, r.Run)
	case r.Dial != "":
		return dial(stream, r.Dial)
	}
	return errors.New("a request for nothing")
}

func dial(stream net.Conn, address string) error {
	to, err := net.Dial("tcp", address)
	if err != nil {
		return wire.WriteLine(stream, wire.Dialed{Error: err.Error()})
	}
	defer to.Close()
	if err := wire.WriteLine(stream, wire.Dialed{}); err != nil {
		return err
	}
	go func() { // ends when either is closed, which the other direction does
		io.Copy(to, stream)
		to.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, to)
	return err
}
