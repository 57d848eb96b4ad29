// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/outrider-dev/outrider/lab/nomad"
)

func (r *record) LogPath() string { return filepath.Join(r.info.Dir, "agent.log") }

func (r *record) mainConfig() string  { return filepath.Join(r.info.Dir, "agent.hcl") }
func (r *record) extraConfig() string { return filepath.Join(r.info.Dir, "extra.hcl") }

// arguments returns the arguments of the agent's process.
func (r *record) arguments() []string {
	return []string{"agent", "-config", r.mainConfig(), "-config", r.extraConfig()}
}

func (r *record) Reconfigure(o Options) error {
	main, err := config(o, r.layout, r.info)
	if err != nil {
		return fmt.Errorf("failed to render the agent's configuration: %w", err)
	}
	texts := map[string]string{r.mainConfig(): main, r.extraConfig(): o.Config} // contents of the files, by path
	err = errors.Join(os.MkdirAll(r.PluginDir(), 0o755), os.MkdirAll(r.HostVolumePluginDir(), 0o755))
	if err != nil {
		return fmt.Errorf("failed to create the agent's directory: %w", err)
	}
	r.info.Plugins, r.info.HostVolumes = nil, nil
	for _, p := range o.Plugins {
		installed := filepath.Join(r.PluginDir(), p.Name())
		if err := install(p.Binary, installed); err != nil {
			return err
		}
		r.info.Plugins = append(r.info.Plugins, p.Name())
		if p.HostVolume == "" {
			continue
		}
		r.info.HostVolumes = append(r.info.HostVolumes, p.HostVolume)
		link := filepath.Join(r.HostVolumePluginDir(), p.HostVolume)
		err := os.Symlink(installed, link)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("failed to install host volume plugin: %w", err)
		}
		if p.HostVolumeFile != "" {
			texts[link+".hcl"] = p.HostVolumeFile
		}
	}
	for path, text := range texts {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return fmt.Errorf("failed to write the agent's configuration: %w", err)
		}
	}
	return r.info.write()
}

func (r *record) Log() (string, error) {
	text, err := os.ReadFile(r.LogPath())
	return string(text), err
}

// install copies a program to a new file and renames it to dst, so a running program is not disturbed. It holds
// ForkLock while it writes: a child that is forked during the copy would have the file open for writing until its own
// exec, and executing the copy would fail (execve(2): ETXTBSY).
func install(src, dst string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	in, err := os.Open(src)
	if err != nil {
		return fmt.Errorf("failed to install plugin: %w", err)
	}
	defer in.Close()
	tmp := dst + ".new"
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return fmt.Errorf("failed to install plugin: %w", err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("failed to install plugin: %w", err)
	}
	return os.Rename(tmp, dst)
}

// logTail returns the last 20 lines of an agent's log.
func logTail(a Agent) string {
	log, err := a.Log()
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(log), "\n")
	return nomad.Plain(strings.Join(lines[max(len(lines)-20, 0):], "\n"))
}
