"""The `quorate` command in its own process, with real pipes and signals.

It is forked from a Python that has imported Quorate once for all of them: to start another takes a second of CPU.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TextIO

PATIENCE = 60.0

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["tests.rigs.preloaded"])


class Running:
    """A running command: its input, output and exit code."""

    def __init__(self, process: BaseProcess, stdin: TextIO, stdout: TextIO, stderr: TextIO) -> None:
        self._process = process
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait(self) -> int:
        """Return the exit code."""
        self._process.join(PATIENCE)
        assert self._process.exitcode is not None, "it does not end"
        return self._process.exitcode

    def communicate(self, typed: str = "") -> tuple[str, str]:
        """Write the rest of its input and read the rest of its output."""
        with contextlib.suppress(BrokenPipeError):  # it may not read it
            self.stdin.write(typed)
            self.stdin.close()
        with ThreadPoolExecutor(1) as aside:
            errors = aside.submit(self.stderr.read)
            return self.stdout.read(), errors.result()


def completed(
    *arguments: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; `typed` is all of its input."""
    with running(*arguments, environ=environ, cwd=cwd) as command:
        output, errors = command.communicate(typed)
        return subprocess.CompletedProcess(["quorate", *arguments], command.wait(), output, errors)


@contextmanager
def running(*arguments: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Iterator[Running]:
    """Start a command, and kill it at the end."""
    with ExitStack() as open_files:
        files, inner = [], []
        for number in (0, 1, 2):
            read, write = os.pipe()
            ours, theirs = (write, read) if number == 0 else (read, write)
            files.append(open_files.enter_context(open(ours, "w" if number == 0 else "r", encoding="utf-8")))
            inner.append(Connection(theirs, readable=number == 0, writable=number != 0))
        variables = dict(os.environ if environ is None else environ)
        process = FORKED.Process(
            target=_run_quorate, args=(inner, arguments, variables, cwd or Path.cwd()), daemon=True
        )
        process.start()
        open_files.callback(process.join)
        open_files.callback(process.kill)
        for end in inner:
            end.close()
        yield Running(process, *files)


def _run_quorate(pipes: Sequence[Connection], arguments: Sequence[str], environ: Mapping[str, str], cwd: Path) -> None:
    os.setsid()  # away from the terminal of the tests
    for number, pipe in enumerate(pipes):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    become_quorate(arguments, environ, cwd)


def become_quorate(arguments: Sequence[str], environ: Mapping[str, str], cwd: Path) -> None:
    """Run the command in the forked process."""
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    from quorate.cli import main

    main(arguments)
