"""A crowd: seventy machines in a segment of their own, each with its network card, its name and an OpenSSH server.

They share a root file system and a host key, as machines of one image do that nobody has made different.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.real.homelab_hosts import Segment
from tests.real.keys import known_hosts, make_key, public
from tests.real.network import run
from tests.real.polling import wait_until

COUNT = 70
OURS = "10.79.0.254"
CROWD = Segment("crowd", "10.79.0")

_CONFIGURATION = "HostKey /etc/ssh/host_key\nPidFile none\nUsePAM no\nPermitRootLogin prohibit-password\n"
_BECOME_ONE = 'hostname "$1"; exec chroot "$2" /usr/sbin/sshd -D -e'


class Crowd:
    """`names` are what they call themselves, by their addresses."""

    def __init__(self, folder: Path, image: Path, key: Path) -> None:
        self._folder, self._image, self._key = folder / "crowd", image, key
        self.names = {f"{CROWD.prefix}.{number}": f"c{number:02}" for number in range(1, COUNT + 1)}
        self.addresses = list(self.names)
        self._servers: list[subprocess.Popen[bytes]] = []

    def known_hosts(self, *others: str) -> str:
        return "".join(known_hosts(address, 22, self._folder / "host_key") for address in (*self.addresses, *others))

    def set_up(self) -> None:
        root = self._folder / "root"
        for name in ("changes", "work", "root"):
            (self._folder / name).mkdir(parents=True)
        layers = f"lowerdir={self._image},upperdir={self._folder}/changes,workdir={self._folder}/work"
        run("mount", "-t", "overlay", "none", root, "-o", layers)
        run("mount", "-t", "proc", "none", root / "proc")
        run("mount", "--bind", "/dev", root / "dev")
        (root / "etc/ssh").mkdir(exist_ok=True)
        (root / "etc/ssh/host_key").write_bytes(make_key(self._folder / "host_key").read_bytes())
        (root / "etc/ssh/host_key").chmod(0o600)
        (root / "etc/ssh/sshd_config").write_text(_CONFIGURATION)
        (root / "root/.ssh").mkdir(mode=0o700)
        (root / "root/.ssh/authorized_keys").write_text(f"{public(self._key)}\n")
        CROWD.lay(OURS)
        log = self._folder / "sshd.log"
        with log.open("wb") as file:
            for address, name in self.names.items():
                self._servers.append(self._start(name, address, root, file.fileno()))
        wait_until(lambda: log.read_text().count("Server listening on 0.0.0.0") == COUNT, "the crowd to listen")

    def close(self) -> None:
        for server in self._servers:
            server.kill()
        for server in self._servers:
            server.wait()

    def _start(self, name: str, address: str, root: Path, log: int) -> subprocess.Popen[bytes]:
        run("ip", "netns", "add", name)
        CROWD.ip("link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
        CROWD.ip("link", "set", f"to-{name}", "master", CROWD.bridge, "up")
        commands = f"address add {address}/24 dev eth0\nlink set eth0 up\nlink set lo up\n"
        subprocess.run(["ip", "-n", name, "-batch", "-"], input=commands.encode(), check=True)
        apart = ["nsenter", f"--net=/run/netns/{name}", "unshare", "--uts", "sh", "-c", _BECOME_ONE, "sh"]
        return subprocess.Popen([*apart, name, str(root)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
