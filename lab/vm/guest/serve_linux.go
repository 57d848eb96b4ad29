// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/outrider-dev/outrider/lab/vm/wire"
)

// serve answers requests until the host is gone. Then it switches the machine off.
func serve(port *os.File) {
	defer powerOff()
	_ = os.Setenv("PATH", strings.TrimPrefix(path, "PATH="))
	go hotplug()
	if err := answer(port); err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, "guest:", err)
	}
}

// answer is an SSH server for the only client that can reach the port. It needs no authentication, and makes a new
// key.
func answer(port *os.File) error {
	kernel, err := release()
	if err != nil {
		return err
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return err
	}
	config := &ssh.ServerConfig{NoClientAuth: true, ServerVersion: wire.Version + kernel}
	config.AddHostKey(signer)
	conn, channels, requests, err := ssh.NewServerConn(wire.Conn{File: port}, config)
	if err != nil {
		return err
	}
	go ssh.DiscardRequests(requests) // answers them, too: the host asks whether the guest lives
	for c := range channels {
		switch c.ChannelType() { // what is started ends with its channel, or with the machine
		case "session":
			go session(c)
		case "direct-tcpip":
			go dial(c)
		default:
			c.Reject(ssh.UnknownChannelType, "")
		}
	}
	return conn.Wait()
}

func dial(c ssh.NewChannel) {
	var to struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(c.ExtraData(), &to); err != nil {
		c.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	conn, err := net.Dial("tcp", net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port))))
	if err != nil {
		c.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	defer conn.Close()
	ch, requests, err := c.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	go ssh.DiscardRequests(requests)
	go func() { // ends when either is closed, which the other direction does
		io.Copy(conn, ch)
		conn.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(ch, conn)
}
