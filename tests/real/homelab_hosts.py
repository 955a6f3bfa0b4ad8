"""A host of the homelab: its own namespaces and root file system, with a real OpenSSH server as the first process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.real.keys import known_hosts, make_key, public
from tests.real.network import run
from tests.real.polling import wait_until

_CONFIGURATION = """\
HostKey /etc/ssh/host_key
PidFile none
PermitRootLogin prohibit-password
UsePAM no
Subsystem sftp /usr/lib/openssh/sftp-server
LogLevel VERBOSE
"""
# $1 name, $2 root, $3 options of /proc, $4 whether there is a /sys. Then the server becomes the first process.
_BECOME_HOST = """
hostname "$1" && cd "$2" && mount -t proc ${3:+-o "$3"} none proc || exit
[ -z "$4" ] || mount -t sysfs -o ro none sys || exit
mount -t tmpfs -o mode=755,size=1m none dev && mount -t tmpfs -o mode=755,size=8m none run && mkdir run/sshd || exit
for each in null zero full random urandom tty; do : > "dev/$each" && mount --bind "/dev/$each" "dev/$each" || exit; done
mkdir dev/pts && mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 none dev/pts && ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
exec chroot . /usr/sbin/sshd -D -e
"""
_DISK = "96M"
_NOT_FOR_THE_POOR = (
    "ip", "ifconfig", "lsblk", "lscpu", "ss", "netstat", "getconf", "nproc", "df", "useradd", "usermod", "userdel",
    "gpasswd", "sudo", "visudo",
)  # fmt: skip


@dataclass(frozen=True)
class Segment:
    """A bridge in some namespace, and the network on it."""

    bridge: str
    prefix: str
    """10.78.1, for 10.78.1.0/24"""
    namespace: str | None = None
    """None is the tests' own."""
    gateway: str | None = None

    @property
    def network(self) -> str:
        return f"{self.prefix}.0/24"

    def ip(self, *words: str) -> None:
        run("ip", *(("-n", self.namespace) if self.namespace else ()), *words)

    def lay(self, address: str) -> None:
        self.ip("link", "add", self.bridge, "type", "bridge")
        self.ip("address", "add", f"{address}/24", "dev", self.bridge)
        self.ip("link", "set", self.bridge, "up")


@dataclass(frozen=True)
class Login:
    user: str = "root"
    password: str | None = None
    """Of the login, if it has one and no key; sudo asks for it, too."""


class RealHost:
    """`address` says where it is, `login` how to get in; what is in `rootfs` can be looked at from outside."""

    def __init__(
        self,
        name: str,
        number: int,
        segment: Segment,
        image: Path,
        folder: Path,
        key: Path,
        *,
        login: Login = Login(),  # noqa: B008 - it is frozen
        disk: str | None = None,
        poor: bool = False,
        routed: bool = True,
        jump: str | None = None,
    ) -> None:
        self.name = name
        self.segment = segment
        self.address = f"{segment.prefix}.{number}"
        self.login = login
        self.jump = jump
        self.system: Literal["debian", "busybox"] = "debian" if image.name == "debian" else "busybox"
        self._image, self._folder, self._key = image, folder / name, key
        self._disk = disk
        self._poor = poor
        self._routed = routed
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def rootfs(self) -> Path:
        return self._folder / "root"

    @property
    def known_hosts(self) -> str:
        return known_hosts(self.address, 22, self._folder / "host_key")

    @property
    def mac(self) -> str:
        [card] = json.loads(run("ip", "-n", self.name, "-j", "link", "show", "eth0"))
        return str(card["address"])

    @property
    def log(self) -> str:
        """What its SSH server has written."""
        return (self._folder / "sshd.log").read_text(errors="replace")

    def set_up(self) -> None:
        self._lay_cable()
        self._lay_files()
        self._let_in()
        self.start()

    def start(self) -> None:
        become = ["sh", "-c", _BECOME_HOST, "sh", self.name, str(self.rootfs), *self._kernel()]
        apart = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--"]
        with (self._folder / "sshd.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.name}", "--", *apart, *become],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
            )
        wait_until(lambda: "Server listening" in self.log or self._ended(), f"the SSH server of {self.name}")
        assert not self._ended(), self.log

    def stop(self) -> None:
        """All of its processes end at once."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    @contextmanager
    def away(self) -> Iterator[None]:
        """It is switched off: nobody answers at its address."""
        self.stop()
        run("ip", "-n", self.name, "link", "set", "eth0", "down")
        try:
            yield
        finally:
            self._plug()
            self.start()

    @contextmanager
    def without_power(self) -> Iterator[None]:
        """It stops in the middle of everything: its connections stay open, as no packet says that they ended."""
        run("ip", "-n", self.name, "link", "set", "eth0", "down")
        with self.away():
            yield

    @contextmanager
    def walled(self) -> Iterator[None]:
        """It has a firewall that lets nothing in and says nothing."""
        tool = ("nsenter", f"--net=/run/netns/{self.name}", "nft")
        run(*tool, "add table ip wall; add chain ip wall in { type filter hook input priority 0; policy drop; }")
        try:
            yield
        finally:
            run(*tool, "delete table ip wall")

    @contextmanager
    def other_key(self) -> Iterator[None]:
        """The server shows another host key, as an impostor would."""
        mine = self.rootfs / "etc/ssh/host_key"
        saved = mine.read_bytes()
        self.stop()
        mine.write_bytes(make_key(self._folder / "other_key").read_bytes())
        self.start()
        try:
            yield
        finally:
            self.stop()
            mine.write_bytes(saved)
            self.start()

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command inside, past everything that is being tested."""
        command = ["nsenter", "--target", str(self._first_process()), "--all", "--root", "--wd", "--", *argv]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{argv}: {done.stderr}"
        return done

    @contextmanager
    def running(self, *argv: str) -> Iterator[None]:
        """A service of the host, until it is not needed any more."""
        inside = ["nsenter", "--target", str(self._first_process()), "--all", "--root", "--wd", "--"]
        service = subprocess.Popen([*inside, *argv], stdin=subprocess.DEVNULL)
        try:
            wait_until(lambda: self.processes(" ".join(argv)), f"{argv[0]} on {self.name}")
            yield
        finally:
            for child in _children(service.pid):
                os.kill(child, signal.SIGKILL)
            service.wait()

    def processes(self, text: str) -> list[str]:
        """The command lines inside that contain the text."""
        listed = self.run("busybox", "ps", "-o", "args").stdout.splitlines()
        return [line for line in listed if text in line]

    def close(self) -> None:
        if self._process is not None:
            self.stop()

    def _kernel(self) -> tuple[str, str]:
        return ("subset=pid", "") if self._poor else ("", "yes")

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _first_process(self) -> int:
        assert self._process is not None
        [child] = _children(self._process.pid)
        return child

    def _lay_cable(self) -> None:
        run("ip", "netns", "add", self.name)
        port = f"port{self.address.rpartition('.')[2]}"
        self.segment.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        self.segment.ip("link", "set", port, "master", self.segment.bridge, "up")
        run("ip", "-n", self.name, "link", "set", "lo", "up")
        run("ip", "-n", self.name, "address", "add", f"{self.address}/24", "dev", "eth0")
        self._plug()

    def _plug(self) -> None:
        run("ip", "-n", self.name, "link", "set", "eth0", "up")
        if self._routed and self.segment.gateway not in (None, self.address):
            run("ip", "-n", self.name, "route", "replace", "default", "via", self.segment.gateway)
        wait_until(self._carries, f"the cable of {self.name}")

    def _carries(self) -> bool:
        [card] = json.loads(run("ip", "-n", self.name, "-j", "link", "show", "eth0"))
        return bool(card["operstate"] == "UP")

    def _lay_files(self) -> None:
        """A layer for its changes over the image, which stays as it is."""
        for name in ("changes", "work", "root"):
            (self._folder / name).mkdir(parents=True)
        layers = f"lowerdir={self._image},upperdir={self._folder}/changes,workdir={self._folder}/work"
        run("mount", "-t", "overlay", "none", self.rootfs, "-o", layers)
        if self.system == "debian":
            (self.rootfs / "etc/machine-id").write_text(f"{os.urandom(16).hex()}\n")
        if self._disk:
            image = self._folder / "disk"
            run("mke2fs", "-q", "-t", "ext4", "-m", "0", image, _DISK)
            run("mount", "-o", "loop", image, self.rootfs / self._disk[1:])
        if self._poor:
            for name in _NOT_FOR_THE_POOR:
                for place in ("bin", "sbin"):
                    (self.rootfs / "usr" / place / name).unlink(missing_ok=True)

    def _let_in(self) -> None:
        make_key(self._folder / "host_key")
        (self.rootfs / "etc/ssh").mkdir(exist_ok=True)
        (self.rootfs / "etc/ssh/sshd_config").write_text(_CONFIGURATION)
        inner = self.rootfs / "etc/ssh/host_key"
        inner.write_bytes((self._folder / "host_key").read_bytes())
        inner.chmod(0o600)
        home = self.rootfs / "root"
        if self.login.user != "root":
            home = self.rootfs / "home" / self.login.user
            run("chroot", self.rootfs, "useradd", "-m", "-s", "/bin/sh", "-p", "*", self.login.user)
        if self.login.password is not None:
            rule = self.rootfs / "etc/sudoers.d/login"
            rule.write_text(f"{self.login.user} ALL=(ALL:ALL) ALL\n")
            rule.chmod(0o440)
            credentials = f"{self.login.user}:{self.login.password}"
            subprocess.run(["chroot", str(self.rootfs), "chpasswd"], input=credentials.encode(), check=True)
            return
        (home / ".ssh").mkdir(mode=0o700)
        (home / ".ssh/authorized_keys").write_text(f"{public(self._key)}\n")
        run("chroot", self.rootfs, "chown", "-R", f"{self.login.user}:", f"/{home.relative_to(self.rootfs)}/.ssh")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
