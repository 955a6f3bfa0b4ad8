"""Runs Ansible and Terraform on this server, in separate processes and folders."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quorate.homelab.machines import Machine
from quorate.problems import GuestRefused, TimedOut
from quorate.ssh.settings import SshAccess

KEPT = 256 * 1024
LONGEST_LINE = 8 * 1024 * 1024
MAX_OUTPUT = 64 * 1024 * 1024
"""A Terraform plan as JSON is long, but not this long."""
_PASSED_ON = re.compile(
    r"PATH|HOME|USER|LANG|LC_.*|TMPDIR|TZ|SSH_AUTH_SOCK|(?:HTTPS?|NO|ALL)_PROXY|SSL_CERT_.*"
    r"|TF_CLI_CONFIG_FILE|TF_PLUGIN_CACHE_DIR|XDG_.*",
    re.IGNORECASE,
)
"""The variables that such a program needs, without our own secrets."""


@dataclass(slots=True)
class ProgramExit:
    exit_code: int
    stderr: str


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)} | more


def private_folder(*parts: str | Path) -> Path:
    """Accessible to our user only, even if it was created with another umask."""
    folder = Path(*parts)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


def write_private(file: Path, text: str) -> None:
    """Atomically, and never readable by others."""
    new = file.with_name(f".{file.name}-{secrets.token_hex(6)}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        opened.write(text)
    new.replace(file)


def trusted_keys(ssh: SshAccess) -> str:
    """All host keys that the operator trusts, as one known_hosts file."""
    texts = []
    for file in (*ssh.settings.known_hosts, ssh.settings.pins):
        with contextlib.suppress(OSError):
            texts.append(file.read_text("utf-8", "replace"))
    return "".join(text if text.endswith("\n") else f"{text}\n" for text in texts)


def ssh_of(machine: Machine, fallback: SshAccess) -> SshAccess:
    return machine.ssh or fallback


@contextlib.asynccontextmanager
async def run_program(
    argv: Sequence[str], folder: Path, variables: Mapping[str, str], seconds: float
) -> AsyncIterator[tuple[asyncio.subprocess.Process, ProgramExit]]:
    """The process, to read lines from; afterwards `Ended` has its result. It never outlives the context or its time."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=folder,
        env=dict(variables),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LONGEST_LINE,
        start_new_session=True,
    )
    assert process.stderr is not None
    ended = ProgramExit(-1, "")
    tail = asyncio.ensure_future(_read_tail(process.stderr))
    try:
        async with asyncio.timeout(seconds):
            yield process, ended
            ended.stderr = (await tail).decode("utf-8", "replace")
            ended.exit_code = await process.wait()
    except TimeoutError:
        raise TimedOut(f"{Path(argv[0]).name} did not end within {seconds:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            await _wait_for_end(process)
        tail.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await tail


async def capture_output(
    argv: Sequence[str], folder: Path, variables: Mapping[str, str], seconds: float
) -> tuple[int, bytes, str]:
    """Exit code, standard output, standard error."""
    async with run_program(argv, folder, variables, seconds) as (process, ended):
        assert process.stdout is not None
        out = b""
        while data := await process.stdout.read(65536):
            out += data
            if len(out) > MAX_OUTPUT:
                raise GuestRefused(f"{Path(argv[0]).name} printed more than {MAX_OUTPUT} bytes")
    return ended.exit_code, out, ended.stderr


async def _wait_for_end(process: asyncio.subprocess.Process) -> None:
    """TERM before KILL, because Terraform saves its state before it ends."""
    try:
        async with asyncio.timeout(10):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _read_tail(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while data := await stream.read(65536):
        kept = (kept + data)[-KEPT:]
    return kept
