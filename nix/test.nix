# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Boots NixOS with the module, and runs a job of each plugin: nix build .#checks.x86_64-linux.vm
self: {
  name = "outrider";

  nodes.machine = {
    imports = [ self.nixosModules.default ];

    virtualisation.memorySize = 2048;
    # a serial stick (0403:6001), with nothing at its other end
    virtualisation.qemu.options = [
      "-device qemu-xhci,id=xhci"
      "-chardev null,id=stick"
      "-device usb-serial,bus=xhci.0,chardev=stick"
    ];

    services.nomad = {
      enable = true;
      enableDocker = false;
      settings = {
        server = {
          enabled = true;
          bootstrap_expect = 1;
        };
        client.enabled = true;
      };
    };
    services.outrider = {
      exec-lite.enable = true;
      python.enable = true;
      usb = {
        enable = true;
        settings.device.stick.id = "0403:6001";
      };
    };

    environment.etc."jobs/service.nomad.hcl".text = ''
      job "service" {
        group "service" {
          task "sleep" {
            driver = "exec-lite"
            config {
              command = "/bin/sh"
              args    = ["-c", "echo pid $$; exec sleep infinity"]
            }
          }
        }
      }
    '';
    environment.etc."jobs/python.nomad.hcl".text = ''
      job "python" {
        type = "batch"
        group "python" {
          task "python" {
            driver = "python"
            config {
              code = "import sys; print('Python', sys.version_info.major)"
            }
          }
        }
      }
    '';
    environment.etc."jobs/usb.nomad.hcl".text = ''
      job "usb" {
        type = "batch"
        group "usb" {
          task "usb" {
            driver = "exec-lite"
            config {
              command = "/bin/sh"
              args    = ["-c", "test -c \"$USB_STICK_TTY\" && echo the stick is $USB_STICK_TTY"]
            }
            resources {
              device "stick" {}
            }
          }
        }
      }
    '';
  };

  testScript = ''
    def runs(job, output):
        machine.wait_until_succeeds(f"nomad job run /etc/jobs/{job}.nomad.hcl", timeout=120)
        machine.wait_until_succeeds(f"nomad alloc logs -job {job} | grep '{output}'", timeout=120)

    machine.wait_for_unit("nomad.service")
    machine.wait_until_succeeds("nomad node status -self -verbose | grep -w ready", timeout=120)

    with subtest("exec-lite runs a task, which outlives a restart of the agent"):
        runs("service", "^pid ")
        pid = machine.succeed("nomad alloc logs -job service").split()[1]
        machine.succeed("systemctl restart nomad")
        machine.wait_until_succeeds("nomad job status service | grep -w running", timeout=120)
        machine.succeed(f"test $(cat /proc/{pid}/comm) = sleep")

    with subtest("python runs a program"):
        runs("python", "^Python 3")

    with subtest("usb passes a stick to a task"):
        runs("usb", "^the stick is /dev/")

    with subtest("a stopped task leaves nothing behind"):
        machine.succeed("nomad job stop -purge service")
        machine.wait_until_fails(f"test -e /proc/{pid}", timeout=60)
  '';
}
