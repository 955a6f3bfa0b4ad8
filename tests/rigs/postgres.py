"""A real PostgreSQL server for tests; without its binaries, the tests that need it are skipped.

Import `postgres_server` and `postgres` into a conftest to use them: each test gets its own empty database.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

PASSWORD = "s3cret-of-the-database"
UNPRIVILEGED = ("postgres", "nobody")
_INITDB_OPTIONS = ("--encoding", "UTF8", "--no-locale", "--no-sync", "--pwfile")


@dataclass(frozen=True)
class PostgresServer:
    """A server that listens on a unix socket in its own folder, and nowhere else."""

    folder: Path
    pg_ctl: str
    as_user: dict[str, object]

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories='{self.folder}' -c fsync=off"
        options += " -c max_connections=100"
        self._control("start", "-o", options, "-l", self.folder / "log")

    def stop(self) -> None:
        """Stop at once, dropping all connections."""
        self._control("stop", "-m", "immediate")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend the server: it accepts connections but does not answer."""
        first = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        everyone = [first, *map(int, children)]
        for process in everyone:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in everyone:
                os.kill(process, signal.SIGCONT)

    def _control(self, action: str, *options: str | Path) -> None:
        _run([self.pg_ctl, action, "-w", "-D", self.folder / "data", *options], self.as_user)

    def location(self, database: str, password: str = PASSWORD) -> str:
        return f"postgresql://quorate:{password}@/{database}?host={self.folder}"

    def new_database(self) -> str:
        name = f"test_{uuid4().hex}"
        asyncio.run(self._run(f"CREATE DATABASE {name}"))
        return self.location(name)

    async def _run(self, statement: str) -> None:
        import asyncpg  # type: ignore[import-untyped]

        connection = await asyncpg.connect(self.location("postgres"))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    pytest.importorskip("asyncpg", reason="the extra `postgres` is not installed")
    initdb, pg_ctl = _binary("initdb"), _binary("pg_ctl")
    folder = Path(tempfile.mkdtemp(prefix="quorate-pg-"))  # not below pytest's folder, which other users may not enter
    try:
        (folder / "password").write_text(PASSWORD)
        as_user = _unprivileged(folder)
        _run(
            [
                initdb,
                "-D",
                folder / "data",
                "-U",
                "quorate",
                "-A",
                "scram-sha-256",
                *_INITDB_OPTIONS,
                folder / "password",
            ],
            as_user,
        )
        server = PostgresServer(folder, pg_ctl, as_user)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> str:
    """The location of a new, empty database."""
    return postgres_server.new_database()


def _binary(name: str) -> str:
    path = shutil.which(name)
    if path:
        return path
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    if not installed:
        pytest.skip(f"PostgreSQL is not installed: there is no {name}")
    return str(installed[-1])


def _unprivileged(folder: Path) -> dict[str, object]:
    """PostgreSQL refuses to run as root, so start it as another user, who owns the folder."""
    if os.geteuid() != 0:
        return {}
    known = {user.pw_name: user for user in pwd.getpwall()}
    user = next((known[name] for name in UNPRIVILEGED if name in known), None)
    if user is None:
        pytest.skip(f"PostgreSQL does not run as root, and there is no user {' or '.join(UNPRIVILEGED)}")
    for path in (folder, *folder.iterdir()):
        os.chown(path, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _run(command: list[str | Path], as_user: dict[str, object]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", **as_user)  # type: ignore[call-overload]
    if done.returncode:
        pytest.skip(f"PostgreSQL cannot be started: {done.stdout[-200:]} {done.stderr[-500:]}")
