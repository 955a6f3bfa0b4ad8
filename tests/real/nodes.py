"""A PVE node as SSH sees it: a real OpenSSH server in a network namespace of its own, with `pct` on its PATH."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real.keys import known_hosts, make_key, public
from tests.real.network import Cable
from tests.real.polling import wait_until

_CONFIGURATION = """\
Port {port}
HostKey {home}/host_key
PidFile none
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
AuthorizedKeysFile {home}/authorized_keys
StrictModes no
AcceptEnv LANG LC_*
SetEnv PATH={home}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
Subsystem sftp /usr/lib/openssh/sftp-server
LogLevel VERBOSE
"""
# Its own name, its own network also in /sys, its own root with an empty home; the rest is the machine's.
_BECOME_NODE = """
hostname "$1" && mount -t sysfs none /sys && mount -t cgroup2 none /sys/fs/cgroup &&
mount --bind "$2/passwd" /etc/passwd && mount --bind "$2/shadow" /etc/shadow && mount --bind "$2/root" /root &&
mount --bind "$2/tmp" /tmp && shift 2 && exec "$@"
"""
_PASSWD = "root:x:0:0:root:/root:/bin/bash\nsshd:x:105:65534::/run/sshd:/usr/sbin/nologin\n"


class Node:
    """`host`, `port`, `user`, `key` and `known_hosts` say how to get in; see the laboratory's docstring."""

    user = "root"

    def __init__(self, name: str, number: int, port: int, folder: Path, key: Path) -> None:
        self.name = name
        self.port = port
        self.key = key
        self.cable = Cable(name, number)
        self.folder = folder / name
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return self.cable.far

    @property
    def known_hosts(self) -> str:
        """The line of known_hosts that fits the server now."""
        return known_hosts(self.host, self.port, self.folder / "host_key")

    @property
    def log(self) -> str:
        """What the server has written since the laboratory began."""
        return (self.folder / "sshd.log").read_text()

    @property
    def lxc(self) -> Path:
        """LXC's folder with this node's containers."""
        return self.folder / "lxc"

    def set_up(self) -> None:
        self.cable.lay()
        for name in ("bin", "lxc", "root", "tmp"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "passwd").write_text(_PASSWD)
        (self.folder / "shadow").write_text("root:*:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n")
        (self.folder / "authorized_keys").write_text(f"{public(self.key)}\n")
        (self.folder / "sshd_config").write_text(_CONFIGURATION.format(port=self.port, home=self.folder))
        tool = self.folder / "bin/pct"
        text = Path(__file__).with_name("pct.py").read_text()
        tool.write_text(
            "#!/usr/bin/python3 -IS\n" + text.replace("@NODE@", self.name).replace("@HOME@", str(self.folder))
        )
        tool.chmod(0o755)
        make_key(self.folder / "host_key")
        self.start()

    def start(self) -> None:
        """Let the server answer."""
        server = ["/usr/sbin/sshd", "-D", "-e", "-f", str(self.folder / "sshd_config")]
        heard = len(self.log) if (self.folder / "sshd.log").exists() else 0
        with (self.folder / "sshd.log").open("ab") as log:
            self._server = subprocess.Popen(
                [*self.inside(), *server],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"]},
            )
        wait_until(lambda: "Server listening" in self.log[heard:], f"the SSH server of {self.name}")

    def inside(self) -> list[str]:
        """What to put before a command to run it on the node."""
        become = ["sh", "-c", _BECOME_NODE, "sh", self.name, str(self.folder)]
        return [*self.cable.inside(), "unshare", "--uts", "--mount", "--", *become]

    def stop(self) -> None:
        """Take the server away; connections that are open stay open."""
        assert self._server is not None
        self._server.kill()
        self._server.wait()
        self._server = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Nobody listens: new connections are refused."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def new_host_key(self) -> None:
        """The server shows another host key from now on."""
        self.stop()
        make_key(self.folder / "host_key")
        self.start()

    def connections(self) -> list[int]:
        """The processes that serve open connections."""
        assert self._server is not None
        return _children(self._server.pid)

    def drop_connections(self) -> None:
        """End every open connection at once, with all that runs in it, as a node that crashes."""
        for process in self.connections():
            for each in (*_descendants(process), process):
                _kill(each)
        wait_until(lambda: not self.connections(), f"the connections of {self.name} to end")

    @contextmanager
    def unplugged(self) -> Iterator[None]:
        """The cable is out: whatever is sent gets lost, and nobody says so."""
        self.cable.unplug()
        try:
            yield
        finally:
            self.cable.plug()

    @contextmanager
    def without_key(self) -> Iterator[None]:
        """The node does not accept the key."""
        allowed = self.folder / "authorized_keys"
        text = allowed.read_text()
        allowed.write_text("")
        try:
            yield
        finally:
            allowed.write_text(text)

    def processes(self, text: str) -> list[str]:
        """The command lines in the laboratory that contain the text: what was left running."""
        lines = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if text in line and path.parent.name != str(os.getpid()):
                lines.append(line)
        return lines

    def close(self) -> None:
        if self._server is not None:
            self.stop()


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _descendants(pid: int) -> list[int]:
    return [each for child in _children(pid) for each in (*_descendants(child), child)]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
