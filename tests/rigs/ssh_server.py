"""A small SSH server on loopback that runs commands on this machine, and misbehaves on demand.

It refuses commands that change the accounts or sudo rules of this machine, and the test that sent them fails: those
belong on tests.rigs.own_system.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from quorate.ssh.host_keys import HostKeys
from quorate.ssh.pool import Pool
from quorate.ssh.process import ExecutionTarget
from quorate.ssh.target import SshTarget

HOST = "127.0.0.1"
QUICK_CIPHER = "aes128-gcm@openssh.com"
"""The one that clients prefer takes a tenth of the time of a test, as it is written in Python."""

_ACCOUNT_PROGRAMS = (
    "adduser", "addgroup", "chage", "chpasswd", "deluser", "delgroup", "gpasswd", "groupadd", "groupdel", "groupmod",
    "newusers", "passwd", "useradd", "userdel", "usermod", "vigr", "vipw", "visudo",
)  # fmt: skip
_ACCOUNT_FILES = rb"[\"\']?/etc/(?:passwd|shadow|group|gshadow|sudoers)"
_CHANGES_ACCOUNTS = re.compile(
    rb"bin/(?:" + "|".join(_ACCOUNT_PROGRAMS).encode() + rb")\b"
    rb"|(?:\b|^a)(?:chmod|chown|cp|install|ln|mktemp|mv|rm|tee|touch|truncate|sed -i)\b[^;&|\\]*" + _ACCOUNT_FILES +
    rb"|>[ ]*" + _ACCOUNT_FILES,
    re.M,
)  # fmt: skip
_REFUSE = """#!/bin/sh
echo "${{0##*/}} $*" >> "{file}"
echo "refused by tests/rigs/ssh_server.py" >&2
exit 99
"""
_OVERLAP = 4096
"""Bytes of the previous read in which a refused command may have begun."""


@dataclass
class Host:
    """One server, with the files that a client of it needs."""

    folder: Path
    port: int = 0
    most_sessions: int = 10
    noise: str = ""
    """What its login shell prints first."""
    password: str | None = None
    environment: dict[str, str] | None = None
    """Environment variables that its commands get instead of this process's own, such as another PATH."""
    sockets: bool = True
    """Whether it opens Unix sockets for its clients."""
    connections: list[asyncssh.SSHServerConnection] = field(default_factory=list)
    busiest: int = 0
    refused: int = 0
    commands: list[str] = field(default_factory=list)
    jobs: set[str] = field(default_factory=set)
    """Ids of background commands."""
    account_changes: list[str] = field(default_factory=list)
    """Refused commands that would have changed the accounts of this machine. A test that has any fails."""
    host_key: asyncssh.SSHKey = field(default_factory=lambda: asyncssh.generate_private_key("ssh-ed25519"))

    @property
    def key_file(self) -> Path:
        return self.folder / "id"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "hosts"

    @property
    def pins(self) -> Path:
        return self.folder / "pins"

    def target(self, **changes: Any) -> SshTarget:
        return SshTarget(**{"host": HOST, "port": self.port, "user": "tester", "key": self.key_file, **changes})

    def host_keys(self) -> HostKeys:
        return HostKeys((self.known_hosts,), self.pins)

    def drop_all(self) -> None:
        """Drop every connection, as a reboot or a firewall would."""
        for connection in self.connections:
            connection.abort()

    def public(self) -> str:
        return self.host_key.export_public_key().decode().strip()


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[Host]:
    os.makedirs(folder, exist_ok=True)
    extra = {name: options.pop(name) for name in ("server_host_certs",) if name in options}
    host = Host(folder, **options)
    environment = _harmless_environment(host)
    running: dict[asyncio.subprocess.Process, Any] = {}
    client_key = asyncssh.generate_private_key("ssh-ed25519")
    client_key.write_private_key(str(host.key_file))
    host.key_file.chmod(0o600)

    class Door(asyncssh.SSHServer):
        sessions = 0  # of this connection, as OpenSSH counts them: until the command has ended

        def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
            host.connections.append(conn)

        def password_auth_supported(self) -> bool:
            return host.password is not None

        def validate_password(self, username: str, password: str) -> bool:
            return password == host.password

        def session_requested(self) -> Any:
            if self.sessions >= host.most_sessions:
                host.refused += 1
                return False
            self.sessions += 1
            host.busiest = max(host.busiest, self.sessions)
            return asyncssh.SSHServerProcess(self.run, None, 3, False)

        def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
            return True

        def unix_connection_requested(self, dest_path: str) -> bool:
            return host.sockets

        async def run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
            try:
                await run(process)
            finally:
                self.sessions -= 1

    async def run(process: asyncssh.SSHServerProcess[bytes]) -> None:
        command = process.command or "true"
        host.commands.append(command)
        if change := _CHANGES_ACCOUNTS.search(command.encode()):
            host.account_changes.append(change[0].decode())
            command = "false"
        process.channel.set_encoding(None)
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            f"{host.noise}exec {command}",  # as bash does with a single command
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=environment,
        )
        assert child.stdin is not None
        running[child] = asyncio.current_task()
        feeding = asyncio.ensure_future(_feed(process.stdin, child.stdin, host))
        await asyncio.gather(_pass_on(child.stdout, process.stdout), _pass_on(child.stderr, process.stderr))
        code = await child.wait()
        feeding.cancel()
        del running[child]
        with contextlib.suppress(OSError, asyncssh.Error):
            if code < 0:
                process.exit_with_signal({9: "KILL", 15: "TERM"}.get(-code, "ABRT"))
            else:
                process.exit(code)

    server = await asyncssh.listen(
        HOST,
        0,
        server_factory=Door,
        server_host_keys=[host.host_key],
        authorized_client_keys=asyncssh.import_authorized_keys(client_key.export_public_key().decode()),
        encoding=None,
        encryption_algs=[QUICK_CIPHER],
        **extra,
    )
    host.port = server.get_port()
    host.known_hosts.write_text(f"[{HOST}]:{host.port} {host.public()}\n")
    try:
        yield host
    finally:
        host.drop_all()
        server.close()
        await server.wait_closed()
        for child in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        await asyncio.gather(*running.values(), return_exceptions=True)
        for folder in kept_jobs(host):  # leave nothing of a test on this machine
            _end_job(folder)
        if _refusals(host).exists():
            host.account_changes += _refusals(host).read_text().splitlines()
    assert not host.account_changes, (
        f"A test tried to change the accounts of this machine: {host.account_changes}. Nothing was changed. "
        "Tests of host_admin_* belong on tests.rigs.own_system"
    )


def _harmless_environment(host: Host) -> dict[str, str]:
    """What its commands get. Programs that change accounts are refused, even where they are missing, because scripts
    add folders to the PATH. There are no updates: asking this machine's apt takes seconds."""
    environment = dict(os.environ if host.environment is None else host.environment)
    path = environment.get("PATH", os.defpath)
    folder = host.folder / "harmless"
    folder.mkdir(exist_ok=True)
    programs = dict.fromkeys(_ACCOUNT_PROGRAMS, _REFUSE.format(file=_refusals(host)))
    if (real := shutil.which("apt-get")) and shutil.which("apt-get", path=path) == real:
        programs["apt-get"] = "#!/bin/sh\n"
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment["PATH"] = f"{folder}:{path}"
    return environment


def _refusals(host: Host) -> Path:
    return host.folder / "refused"


def kept_jobs(host: Host) -> list[Path]:
    """The folders of background commands that were started through this server."""
    places = [Path.home(), *map(Path, ("/run", "/dev/shm", "/var/tmp", "/tmp"))]
    folders = [place / f".quorate-job-{job}" for place in places for job in host.jobs]
    return [folder for folder in folders if folder.is_dir()]


def _end_job(folder: Path) -> None:
    for name in ("supervisor", "pid"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if not (folder / "code").exists():
                os.killpg(int((folder / name).read_text().split()[0]), signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


async def _feed(source: asyncssh.SSHReader[bytes], sink: asyncio.StreamWriter, host: Host) -> None:
    """Nothing runs before the last line of a command has arrived, so a refused one never runs."""
    before = b""
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await source.read(65536):
            host.jobs |= {job.decode() for job in re.findall(rb"^a([0-9a-f]{16})$", data, re.M)}
            if change := _CHANGES_ACCOUNTS.search(before + data):
                host.account_changes.append(change[0].decode(errors="replace"))
                break
            before = data[-_OVERLAP:]
            sink.write(data)
            await sink.drain()
        sink.close()


async def _pass_on(source: asyncio.StreamReader | None, sink: asyncssh.SSHWriter[bytes]) -> None:
    """Output is read even after the client is gone, as by a terminal that nobody looks at."""
    assert source is not None
    passing = True
    while data := await source.read(65536):
        if passing:
            try:
                sink.write(data)
                await sink.drain()
            except (OSError, asyncssh.Error):
                passing = False


@asynccontextmanager
async def reached(host: Host, **options: Any) -> AsyncIterator[ExecutionTarget]:
    """The server as the product sees it."""
    target = options.pop("target", None) or host.target()
    pool = Pool(host.host_keys(), **options)
    try:
        yield ExecutionTarget(pool, target)
    finally:
        await pool.close()
