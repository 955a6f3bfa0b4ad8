"""A real OpenSSH server in its own namespaces, with its own accounts: changes to them never reach this
machine. This needs root; without it, the tests are skipped."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh
import pytest

from tests.rigs.ssh_server import HOST

START_SECONDS = 20.0
_COPIED = (
    "passwd", "group", "shadow", "gshadow", "login.defs", "nsswitch.conf", "sudoers", "pam.d", "ld.so.cache",
    "security", "default", "skel", "alternatives", "hosts", "host.conf", "shells",
)  # fmt: skip
_NEEDED = ("/usr/sbin/sshd", "/usr/sbin/visudo", "/usr/bin/sudo", "/usr/bin/unshare", "/usr/sbin/useradd")
_ENTER = """
for part in etc home run usr/sbin; do [ ! -d "$1/$part" ] || mount --bind "$1/$part" "/$part" || exit; done
exec /usr/sbin/sshd -D -e -f "$1/sshd_config"
"""
_CONFIG = """
ListenAddress {host}:{port}
HostKey {folder}/host_key
AuthorizedKeysFile .ssh/authorized_keys
UsePAM no
StrictModes yes
PermitRootLogin prohibit-password
PasswordAuthentication yes
Subsystem sftp internal-sftp
PidFile none
LogLevel ERROR
"""
# Alpine's programs, with only the options that BusyBox has, on top of the real ones.
_AS_BUSYBOX = {
    "adduser": """while getopts Ds:g:u: o; do
case $o in D) d=1;; s) s=$OPTARG;; g) g=$OPTARG;; u) u=$OPTARG;; *) exit 1;; esac; done
shift $((OPTIND - 1)); [ "$d" ] && [ $# = 1 ] && exec shadow-useradd -m -p ! -s "$s" -c "$g" ${u:+-u "$u"} "$1" """,
    "addgroup": '[ $# = 2 ] && exec shadow-usermod -aG "$2" "$1"',
    "delgroup": '[ $# = 2 ] && exec gpasswd -d "$1" "$2"',
    "deluser": '[ $# = 1 ] && exec shadow-userdel "$1"',
    "chpasswd": '[ "$*" = -e ] && IFS=: read -r u p && exec shadow-usermod -p "$p" "$u"',
}
_GROUP_FILE = "docker:x:800:\nkvm:x:801:\n"


@dataclass
class OwnSystem:
    folder: Path
    port: int = 0
    key_file: Path = field(init=False)

    def __post_init__(self) -> None:
        self.key_file = self.folder / "id"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "hosts"

    def text(self, path: str) -> str:
        return (self.folder / path).read_text()

    def accounts(self) -> set[str]:
        return {line.partition(":")[0] for line in self.text("etc/passwd").splitlines()}

    def add_account(self, name: str, uid: int, password: str = "*") -> None:
        with (self.folder / "etc/passwd").open("a") as file, (self.folder / "etc/shadow").open("a") as shadow:
            file.write(f"{name}:x:{uid}:100::/home:/bin/sh\n")
            shadow.write(f"{name}:{password}:20000:0:99999:7:::\n")

    def members(self, group: str) -> list[str]:
        line = next(line for line in self.text("etc/group").splitlines() if line.startswith(f"{group}:"))
        return line.rpartition(":")[2].split(",")


@asynccontextmanager
async def own_system(
    folder: Path, *, busybox: bool = False, without: Sequence[str] = (), programs: Mapping[str, str] | None = None
) -> AsyncIterator[OwnSystem]:
    """`busybox`: accounts are made as on Alpine. `without`: programs of /usr/sbin that are not there. `programs`:
    scripts that exist in addition to the others."""
    if os.getuid() != 0 or not all(map(os.path.exists, _NEEDED)):
        pytest.skip(f"needs root and {', '.join(_NEEDED)}")
    system = OwnSystem(folder)
    _furnish(system, busybox, without, programs or {})
    with socket.create_server((HOST, 0)) as free:
        system.port = free.getsockname()[1]
    _make_keys(system)
    (folder / "sshd_config").write_text(_CONFIG.format(host=HOST, port=system.port, folder=folder))
    apart = ("--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
    server = await asyncio.create_subprocess_exec(
        "unshare", *apart, "sh", "-c", _ENTER, "sh", str(folder), stderr=asyncio.subprocess.PIPE
    )
    try:
        await asyncio.wait_for(_listening(system, server), START_SECONDS)
        yield system
    finally:
        if server.returncode is None:
            server.kill()
        await server.communicate()


def _furnish(system: OwnSystem, busybox: bool, without: Sequence[str], programs: Mapping[str, str]) -> None:
    etc = system.folder / "etc"
    for part in ("home", "run/sshd", "etc/sudoers.d"):
        (system.folder / part).mkdir(parents=True)
    for name in _COPIED:
        if (source := Path("/etc") / name).is_dir():
            shutil.copytree(source, etc / name, symlinks=True)
        elif source.exists():
            shutil.copy2(source, etc / name)
    for name in ("passwd", "shadow", "group", "gshadow"):
        lines = (etc / name).read_text().splitlines()
        kept = [line for line in lines if line.partition(":")[0] not in ("quorate", "docker", "kvm", "lxd", "libvirt")]
        (etc / name).write_text("\n".join(kept) + "\n")
    (etc / "group").write_text((etc / "group").read_text() + _GROUP_FILE)
    if busybox or without or programs:
        _choose_programs(system.folder / "usr/sbin", busybox, without)
    for name, text in programs.items():
        (system.folder / "usr/sbin" / name).write_text(text)
        (system.folder / "usr/sbin" / name).chmod(0o755)


def _choose_programs(folder: Path, busybox: bool, without: Sequence[str]) -> None:
    shutil.copytree("/usr/sbin", folder, symlinks=True, ignore=lambda _, names: set(names) & set(without))
    if busybox:
        for name in ("useradd", "usermod", "userdel"):
            (folder / name).rename(folder / f"shadow-{name}")
        for name, text in _AS_BUSYBOX.items():
            (folder / name).unlink(missing_ok=True)
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)


def _make_keys(system: OwnSystem) -> None:
    host_key, own = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519")
    for key, path in ((host_key, system.folder / "host_key"), (own, system.key_file)):
        key.write_private_key(str(path))
        path.chmod(0o600)
    public = host_key.export_public_key().decode().strip()
    system.known_hosts.write_text(f"[{HOST}]:{system.port} {public}\n")
    # Root gets another home, so that this machine's own is not touched.
    root = system.folder / "home/root"
    (root / ".ssh").mkdir(parents=True, mode=0o700)
    (root / ".ssh/authorized_keys").write_bytes(own.export_public_key())
    passwd = system.folder / "etc/passwd"
    lines = [line for line in passwd.read_text().splitlines() if not line.startswith("root:")]
    passwd.write_text("\n".join(["root:x:0:0:root:/home/root:/bin/sh", *lines]) + "\n")


async def _listening(system: OwnSystem, server: asyncio.subprocess.Process) -> None:
    while True:
        assert server.returncode is None, (await server.communicate())[1]
        try:
            _, writer = await asyncio.open_connection(HOST, system.port)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.close()
        return
