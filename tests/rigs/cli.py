"""The `quorate` command in this process, without starting another Python."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

from quorate.cli import main


def quorate(
    *arguments: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in its own thread, because it starts an event loop; a loop that is running here waits."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_run, arguments, environ, cwd).result()


def _run(
    arguments: Sequence[str], environ: Mapping[str, str] | None, cwd: Path | None
) -> subprocess.CompletedProcess[str]:
    output, errors = _stream(), _stream()
    with (
        mock.patch.dict(os.environ, environ or {}, clear=environ is not None),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        try:
            main(arguments)
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(["quorate", *arguments], code, _text(output), _text(errors))


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n")


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
