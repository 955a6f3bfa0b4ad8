"""Real LXC containers behind the nodes: unprivileged, with systemd or OpenRC as their first process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tests.real.images import FIRST_ID, IDS
from tests.real.keys import known_hosts, make_key, public
from tests.real.network import run
from tests.real.nodes import Node
from tests.real.polling import wait_until

_CONFIGURATION = f"""\
lxc.rootfs.path = dir:{{rootfs}}
lxc.uts.name = {{name}}
lxc.idmap = u 0 {FIRST_ID} {IDS}
lxc.idmap = g 0 {FIRST_ID} {IDS}
lxc.mount.auto = proc:mixed sys:mixed cgroup:mixed
lxc.autodev = 1
lxc.tty.max = 0
lxc.pty.max = 1024
lxc.apparmor.profile = unconfined
"""
_CARD = """\
lxc.net.{number}.type = veth
lxc.net.{number}.link = vmbr{number}
lxc.net.{number}.name = eth{number}
lxc.net.{number}.flags = up
lxc.net.{number}.ipv4.address = {address}/24
"""


class Container:
    """`address` can be reached from the tests, `inner_address` only through the node."""

    def __init__(self, vmid: int, name: str, node: Node, init: Literal["systemd", "openrc"], image: Path) -> None:
        self.vmid = vmid
        self.name = name
        self.node = node
        self.init = init
        self._image = image
        self._folder = node.lxc / str(vmid)
        self.address = node.cable.address(0, vmid)
        self.inner_address = node.cable.address(1, vmid)

    @property
    def rootfs(self) -> Path:
        """Its files from outside, where root inside is user 100000."""
        return self.node.folder / f"rootfs-{self.vmid}"

    @property
    def known_hosts(self) -> str:
        """The lines of known_hosts for the SSH server inside, at both of its addresses."""
        return "".join(known_hosts(each, 22, self._host_key) for each in (self.address, self.inner_address))

    def set_up(self) -> None:
        self._folder.mkdir()
        self._lay_files()
        gateway = self.node.cable.gateway(0)
        cards = [
            _CARD.format(number=0, address=self.address) + f"lxc.net.0.ipv4.gateway = {gateway}\n",
            _CARD.format(number=1, address=self.inner_address),
        ]
        text = _CONFIGURATION.format(rootfs=self.rootfs, name=self.name) + "".join(cards)
        (self._folder / "config").write_text(text)
        ostype = "debian" if self.init == "systemd" else "alpine"
        (self._folder / "pve.conf").write_text(
            f"arch: amd64\ncores: 1\nhostname: {self.name}\nmemory: 512\n"
            f"net0: name=eth0,bridge=vmbr0,gw={gateway},ip={self.address}/24,type=veth\n"
            f"ostype: {ostype}\nrootfs: local-lvm:vm-{self.vmid}-disk-0,size=8G\nswap: 512\nunprivileged: 1\n"
        )
        if self.init == "systemd":
            self._let_in()
        self.start()

    def start(self) -> None:
        """Start it and wait until its services are up."""
        log = self._folder / "lxc.log"
        started = subprocess.run([*self._tool("lxc-start"), "-l", "INFO", "-o", str(log)], capture_output=True)
        assert started.returncode == 0, log.read_text()
        wait_until(self._is_up, f"container {self.vmid} to come up")

    def stop(self) -> None:
        run(*self._tool("lxc-stop"), "-k")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It does not run."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command inside, past everything that is being tested."""
        command = [*self._tool("lxc-attach"), "--clear-env", "--", *argv]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        assert not check or done.returncode == 0, f"{argv}: {done.stderr}"
        return done

    def new_host_key(self) -> None:
        """The SSH server inside shows another host key from now on."""
        self._install_host_key()
        self.run("systemctl", "restart", "ssh")

    def close(self) -> None:
        subprocess.run([*self._tool("lxc-stop"), "-k"], capture_output=True)

    def _tool(self, name: str) -> list[str]:
        return [*self.node.inside(), name, "-P", str(self.node.lxc), "-n", str(self.vmid)]

    def _is_up(self) -> bool:
        if self.init == "systemd":
            return self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded")
        return "started" in self.run("rc-service", "crond", "status", check=False).stdout

    def _lay_files(self) -> None:
        """A layer for its changes over the image, which stays as it is."""
        layer = self.node.folder / f"layer-{self.vmid}"
        for path in (layer / "changes", layer / "work", self.rootfs):
            path.mkdir(parents=True)
        os.chown(layer / "changes", FIRST_ID, FIRST_ID)
        where = f"lowerdir={self._image},upperdir={layer / 'changes'},workdir={layer / 'work'}"
        run("mount", "-t", "overlay", "none", self.rootfs, "-o", where)
        self._write("etc/hostname", f"{self.name}\n")

    @property
    def _host_key(self) -> Path:
        return self._folder / "host_key"

    def _let_in(self) -> None:
        """The laboratory's key opens root's and worker's doors."""
        for home, user in (("root", 0), ("home/worker", 1000)):
            folder = self.rootfs / home / ".ssh"
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chown(folder, FIRST_ID + user, FIRST_ID + user)
            self._write(f"{home}/.ssh/authorized_keys", f"{public(self.node.key)}\n", user)
        self._install_host_key()

    def _install_host_key(self) -> None:
        make_key(self._host_key)
        self._write("etc/ssh/ssh_host_ed25519_key", self._host_key.read_text(), mode=0o600)

    def _write(self, path: str, text: str, user: int = 0, mode: int = 0o644) -> None:
        """A file of a user inside, written from outside."""
        target = self.rootfs / path
        target.unlink(missing_ok=True)
        target.touch(mode)
        target.write_text(text)
        os.chown(target, FIRST_ID + user, FIRST_ID + user)
