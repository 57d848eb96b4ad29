// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"testing"

	"github.com/hashicorp/hcl"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// decode reads a configuration as an agent does.
func decode(t *testing.T, text string) (Config, error) {
	t.Helper()
	var body map[string]any
	must.NoError(t, hcl.Decode(&body, text))
	return schema.Of[Config]().DecodeAgent(body)
}

func TestConfig_ErrorsAreOneSentence(t *testing.T) {
	const unknownKind = `, which is not a kind of nodes: use one of ["usb" "tty" "hidraw" "input" "video" "media" ` +
		`"sound" "printer" "storage" "sg" "bsg" "other"]`
	const kernelsName = `or list "other" in nodes and use the kernel's name`
	const exclusive = `: neither can be inside the other: use different paths`
	for name, c := range map[string]struct{ config, want string }{
		"hex without quotes": {`device "zwave" { id = 0x0658 }`, `device "zwave": id must be a string, but is the ` +
			`number 1624 (0x0658): put it in quotes`},
		"hex read as decimal": {`device "zwave" { id = "1624" }`, `device "zwave": id "1624" is not vendor and product ` +
			`as lsusb writes them, four hex digits each: use for example "10c4:ea60" or "10c4:*"`},
		"no matcher": {`device "zwave" {}`, `device "zwave": no option selects devices: set id, ` +
			`serial, class, port, driver or udev`},
		"an empty exclude": {`exclude "mice" {}`, `exclude "mice": no option selects devices: set id, ` +
			`serial, class, port, driver or udev`},
		"an option misspelt": {`device "zwave" { serail = "1" }`, `device "zwave": Invalid label: No argument or block ` +
			`type is named "serail". Did you mean "serial"?`},
		"udev, empty": {zigbee(`udev { ID_MODEL = "" }`), `device "x": udev: ID_MODEL "" is empty and matches ` +
			`nothing: leave it out`},
		"udev, no property": {zigbee(`udev = { "ID MODEL" = "x" }`), `device "x": udev has "ID MODEL", which is not a ` +
			`property: use a name that "udevadm info" shows, such as ID_MODEL`},
		"known_as": {zigbee(`known_as = "1a86"`), `device "x": known_as "1a86" is not vendor and product as ` +
			`lsusb writes them: use for example "10c4:ea60"`},
		"known_as of another device": {zigbee(`known_as = "10c4:ea60"`), `device "x": known_as "10c4:ea60" does not match ` +
			`id: set known_as to the device's id at plug-in, and add it to id`},
		"mode": {zigbee(`mode = "rw"`), `device "x": mode "rw" is not a file mode: use four octal digits ` +
			`in quotes, such as "0660"`},
		"mode without quotes": {zigbee(`mode = 0660`), `device "x": mode "432" is not a file mode: use four octal ` +
			`digits in quotes, such as "0660"`},
		"mode with setuid": {zigbee(`mode = "4755"`), `device "x": mode "4755" is not a file mode: use four octal ` +
			`digits in quotes, such as "0660"`},
		"user": {zigbee(`user = "zigby"`), `device "x": user "zigby" does not exist on this host: use an ` +
			`existing name, or a number`},
		"group": {zigbee(`group = "dailout"`), `device "x": group "dailout" does not exist on this host: ` +
			`use an existing name, or a number`},
		"node kind":       {zigbee(`nodes = ["ttty?"]`), `device "x": nodes has "ttty?"` + unknownKind},
		"node kind twice": {zigbee(`nodes = ["tty", "tty?"]`), `device "x": nodes has "tty" twice: list it once`},
		"path, relative": {zigbee(`path = "dev/zigbee"`), `device "x": path "dev/zigbee" is not absolute: begin ` +
			`it with /, such as "/dev/zigbee"`},
		"path, not clean": {zigbee(`path = "/dev/../etc"`), `device "x": path "/dev/../etc" is not in its shortest ` +
			`form: use "/etc"`},
		"path, of all devices": {zigbee(`path = "/dev"`), `device "x": path "/dev" is not a separate directory: use ` +
			`for example "/dev/zigbee"; for one node, use names`},
		"path, taken": {`device "null" { id = "1a86:*" }`, `device "null": its nodes would be in /dev/null, ` +
			`which exists in each task: set path`},
		"names, key": {zigbee(`names { ttyy = "/dev/x" }`), `device "x": names has "ttyy", which is not a node: use a ` +
			`kind, such as "tty", or a kind and an interface, such as "tty-if01"; ` + kernelsName},
		"names, interface": {zigbee(`names = { "tty-1f" = "/dev/x" }`),
			`device "x": names has "tty-1f", which is not a node: use a kind, such as "tty", or a kind and an interface, such as ` +
				`"tty-if01"; ` + kernelsName},
		"names of an unlisted kind": {zigbee("nodes = [\"usb\"]\nnames { tty = \"/dev/x\" }"),
			`device "x": names has "tty", of a kind that nodes does not list: add "tty" to nodes`},
		"names, relative": {zigbee(`names { tty = "ttyUSB0" }`), `device "x": names: "tty" "ttyUSB0" is not ` +
			`absolute: begin it with /, such as "/dev/ttyACM0"`},
		"names with equal paths": {zigbee("names {\ntty = \"/dev/x\"\nusb = \"/dev/x\"\n}"),
			`device "x": names: "tty" is at "/dev/x", and names: "usb" at "/dev/x"` + exclusive},
		"permissions": {zigbee(`cgroup_permissions = "rx"`), `device "x": cgroup_permissions "rx" is not known: ` +
			`use "r", "w", "rw", "rm", "wm" or "rwm"`},
		"count": {zigbee(`count = 0`), `device "x": count 0 is too small: use 1 to 1000`},
		"libusb without usb": {zigbee("nodes = [\"tty\"]\nlibusb = true"),
			`device "x": libusb needs the usb node: add "usb" to nodes`},
		"mount, relative": {zigbee(`mount { host_path = "lib" }`), `device "x": mount[0].host_path "lib" is not ` +
			`absolute: begin it with /, such as "/run/pcscd"`},
		"mount, task path": {zigbee("mount {\nhost_path = \"/lib\"\ntask_path = \"lib\"\n}"),
			`device "x": mount[0].task_path "lib" is not absolute: begin it with /, such as "/run/pcscd"`},
		"mount, twice": {zigbee("mount { host_path = \"/a\" }\nmount {\nhost_path = \"/b\"\ntask_path = \"/a\"\n}"),
			`device "x": mount[0] is at "/a", and mount[1] at "/a"` + exclusive},
		"mount, nothing": {zigbee(`mount {}`), `device "x": Missing required argument: The argument "host_path" is ` +
			`required, but no definition was found.`},
		"name with a slash": {`device "a/b" { id = "1a86:*" }`, `device "a/b": jobs request devices by this ` +
			`name: use letters, digits, "-", "_" and ".", with a letter or digit first`},
		"empty name": {`device "" { id = "1a86:*" }`, `device "": jobs request devices by this name: ` +
			`use letters, digits, "-", "_" and ".", with a letter or digit first`},
		"name with dots": {`device ".." { id = "1a86:*" }`, `device "..": jobs request devices by this ` +
			`name: use letters, digits, "-", "_" and ".", with a letter or digit first`},
		"no name": {`device { id = "1a86:*" }`, `device has no label: write device "TYPE" { … }`},
		"name of match_all": {"match_all = true\ndevice \"usb\" { id = \"1a86:*\" }",
			`device "usb": match_all publishes its devices under this name: use another name`},
		"names with one variable": {"device \"a-b\" { id = \"1a86:*\" }\ndevice \"a_b\" { id = \"1a87:*\" }",
			`device "a_b": its variables in a task, USB_A_B…, would have the same names ` +
				`as for device "a-b": use another name`},
		"twice": {"device \"a\" { id = \"1a86:*\" }\ndevice \"a\" { id = \"1a87:*\" }",
			`device "a" is declared twice: give each its own type`},
		"shadow_dir, relative": {`shadow_dir = "usb"`, `shadow_dir "usb" is not absolute: begin it with /, such as ` +
			`"/dev/nomad-usb"`},
		"shadow_dir with other files": {`shadow_dir = "/dev"`, `shadow_dir "/dev" contains other files: use a separate ` +
			`directory, such as "/dev/nomad-usb"`},
		"root, relative": {`root = "sim"`, `root "sim" is not absolute: begin it with /, such as "/"`},
		"shadow_dir on a kernel file system": {`shadow_dir = "/proc/usb"`, `shadow_dir "/proc/usb" is on a kernel file ` +
			`system: use for example "/dev/nomad-usb"`},
		"several": {"shadow_dir = \"usb\"\n" + zigbee("nodes = [\"ttty\", \"tty\", \"vidio\"]\ngroup = \"dailout\""),
			`device "x": nodes has "ttty"` + unknownKind + `; device "x": nodes has "vidio"` + unknownKind + `; ` +
				`device "x": group "dailout" does not exist on this host: use an existing name, or a number; ` +
				`shadow_dir "usb" is not absolute: begin it with /, such as "/dev/nomad-usb"`},
		"names in a mount": {zigbee("names { tty = \"/data/tty\" }\nmount {\nhost_path = \"/srv\"\ntask_path = " +
			"\"/data\"\n}"), `device "x": mount[0] is at "/data", and names: "tty" at "/data/tty"` + exclusive},
		"names in names": {zigbee("names {\ntty = \"/dev/x\"\nusb = \"/dev/x/usb\"\n}"),
			`device "x": names: "tty" is at "/dev/x", and names: "usb" at "/dev/x/usb"` + exclusive},
		"a mount over nodes": {zigbee("mount {\nhost_path = \"/srv\"\ntask_path = \"/dev\"\n}"),
			`device "x": mount[0] is at "/dev" and would hide the nodes, which are in /dev/x: use another task_path, or path`},
		"rescan":            {`rescan = "10ms"`, `rescan "10ms" is too small: use "200ms" or more`},
		"rescan of nothing": {`rescan = "0s"`, `rescan "0s" is too small: use "200ms" or more`},
		"rescan, negative":  {`rescan = "-1s"`, `rescan "-1s" is not a duration: use for example "30s" or "5m"`},
		"grace":             {`grace = "1h"`, `grace "1h" is too large: use "5m" or less`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := decode(t, c.config)
			must.Error(t, err, must.Sprint("accepted"))
			test.Eq(t, c.want, err.Error(), test.Sprintf("got  %s\nwant", err))
		})
	}
}

func zigbee(line string) string {
	return "device \"x\" {\nid = \"1a86:7523\"\n" + line + "\n}"
}

func TestConfig_AcceptsValidConfigurations(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":                              ``,
		"everything else":                      `match_all = true`,
		"a list and a glob":                    `device "radio" { id = ["10c4:ea60", "1a86:*", "0403:60??"] }`,
		"a device named usb without match_all": `device "usb" { id = "1a86:7523" }`,
		"a path for a name that is taken": `device "null" {
			id   = "1a86:7523"
			path = "/dev/sticks/null"
		}`,
		"all": `
			enabled = false
			match_all = true
			rescan = "1m"
			grace = "0s"
			shadow_dir = "/dev/sticks"
			root = "/tmp/sim"
			exclude "mice" { class = "03/01/02" }
			device "zigbee" {
				id     = "10c4:ea60"
				serial = "000?"
				class  = ["vendor-specific", "02"]
				port   = "1-1.*"
				driver = "cp210x"
				nodes  = ["tty", "hidraw?", "usb"]
				path   = "/zigbee"
				names {
					tty = "/dev/ttyACM0"
				}
				mode   = "0600"
				user   = "nobody"
				group  = "20"
				cgroup_permissions = "rwm"
				by_id  = false
				libusb = true
				count  = 3
				mount {
					host_path = "/run/pcscd"
					read_only = false
				}
			}`,
	} {
		t.Run(name, func(t *testing.T) {
			c, err := decode(t, text)
			must.NoError(t, err)
			_, err = NewPlan(c)
			must.NoError(t, err)
		})
	}
}

func TestConfig_DefaultsAreDocumented(t *testing.T) {
	c, err := decode(t, `device "zigbee" { id = "10c4:ea60" }`)
	must.NoError(t, err)
	p, err := NewPlan(c)
	must.NoError(t, err)
	b := p.Blocks["zigbee"]
	must.Eq(t, "/dev/zigbee", b.Dir, must.Sprintf("got %+v", b))
	must.Eq(t, 0o660, b.FileMode, must.Sprintf("got %+v", b))
	must.Eq(t, -1, b.UID, must.Sprintf("got %+v", b))
	must.Eq(t, -1, b.GID, must.Sprintf("got %+v", b))
	must.Eq(t, "rw", b.Permissions, must.Sprintf("got %+v", b))
	must.True(t, b.ByID, must.Sprintf("got %+v", b))
	must.Eq(t, 1, b.Count, must.Sprintf("got %+v", b))
	test.Nil(t, b.Libusb, test.Sprintf("got %+v", b))
	must.False(t, b.wants(sysfs.Device{}, "storage"), must.Sprint("the default kinds of nodes are different"))
	must.True(t, b.wants(sysfs.Device{}, "tty"), must.Sprint("the default kinds of nodes are different"))
	must.True(t, b.wants(sysfs.Device{}, "usb"), must.Sprint("the default kinds of nodes are different"))
	test.SliceEmpty(t, b.needs(), test.Sprint("the default kinds of nodes are different"))
	must.True(t, c.Enabled, must.Sprintf("got %+v", c))
	must.False(t, c.MatchAll, must.Sprintf("got %+v", c))
	must.True(t, c.MountsForAll, must.Sprintf("got %+v", c)) // docker and exec need them for libusb
	must.Eq(t, "30s", c.Rescan, must.Sprintf("got %+v", c))
	must.Eq(t, "10s", c.Grace, must.Sprintf("got %+v", c))
	must.Eq(t, "/dev/nomad-usb", c.ShadowDir, must.Sprintf("got %+v", c))
	test.Eq(t, "/", c.Root, test.Sprintf("got %+v", c))
}

func TestConfig_IsValidWithoutHardware(t *testing.T) {
	c, err := decode(t, `
		root       = "/nonexistent/machine"
		shadow_dir = "/nonexistent/shadow"
		match_all  = true`)
	must.NoError(t, err)
	_, err = NewPlan(c)
	test.NoError(t, err)
}
