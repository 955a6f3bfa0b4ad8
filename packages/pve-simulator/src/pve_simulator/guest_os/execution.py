"""Running commands inside a guest."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pve_simulator.guest_os.files import FileError


def split_options(args: list[str], with_value: Collection[str] = ()) -> tuple[dict[str, str], list[str]]:
    """Options by name (value "" for switches) and the other arguments; `--` ends the options.

    Short options may be combined; those in `with_value` take a value, attached or as the next argument.
    """
    options: dict[str, str] = {}
    others: list[str] = []
    queue = list(args)
    while queue:
        each = queue.pop(0)
        if each == "--":
            return options, others + queue
        if each.startswith("--"):
            name, separator, value = each[2:].partition("=")
            options[name] = value if separator else (queue.pop(0) if name in with_value and queue else "")
        elif each.startswith("-") and len(each) > 1:
            _short(each[1:], queue, options, with_value)
        else:
            others.append(each)
    return options, others


def _short(letters: str, queue: list[str], options: dict[str, str], with_value: Collection[str]) -> None:
    if letters.isdecimal():  # head -5
        options["n"] = letters
        return
    for position, letter in enumerate(letters):
        if letter in with_value:
            attached = letters[position + 1 :]
            options[letter] = attached or (queue.pop(0) if queue else "")
            return
        options[letter] = ""


if TYPE_CHECKING:
    from pve_simulator.guest_os.machine import Machine

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_COMMAND_MODULES = ("file_commands", "service_commands", "shell", "system_commands", "text_commands")
_BINARY = b"\x7fELF"


def _environment() -> dict[str, str]:
    return {"PATH": PATH, "HOME": "/root", "USER": "root", "SHELL": "/bin/sh", "LANG": "C.UTF-8"}


@dataclass(slots=True)
class Io:
    """The context of a running command: input, outputs, environment, working directory."""

    machine: Machine
    stdin: bytes = b""
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    env: dict[str, str] = field(default_factory=_environment)
    cwd: str = "/root"
    user: str = "root"
    pid: int = 0
    code: int = 0

    def copy(self, **changes: Any) -> Io:
        """A copy with changes; outputs and environment are shared, as in a shell."""
        return replace(self, **changes)

    def say(self, text: str) -> None:
        """Print one line."""
        self.out.extend(f"{text}\n".encode("utf-8", "surrogateescape"))

    def complain(self, text: str, code: int = 1) -> None:
        """Print one line to standard error and set the exit code."""
        self.err.extend(f"{text}\n".encode("utf-8", "surrogateescape"))
        self.code = code

    def fail(self, text: str, code: int = 1) -> int:
        """Complain, and return the exit code."""
        self.complain(text, code)
        return code

    def path(self, name: str) -> str:
        return self.machine.files.absolute(name, self.cwd)


Program = Callable[[Io, list[str]], Awaitable[int]]
Command = Callable[[Io, list[str]], int | Awaitable[int | None] | None]
"""A program; None as its result means success."""

_commands: dict[str, Command] = {}


_Function = TypeVar("_Function", bound=Command)


def command(*names: str) -> Callable[[_Function], _Function]:
    """Register a function as a program; it gets the arguments without the program's own name."""

    def register(function: _Function) -> _Function:
        for name in names:
            _commands[name] = function
        return function

    return register


def program_names() -> Iterable[str]:
    """The programs in /usr/bin."""
    load_commands()
    return sorted(_commands)


@cache
def load_commands() -> None:
    """Import the modules that register commands."""
    for name in _COMMAND_MODULES:
        importlib.import_module(f"pve_simulator.guest_os.{name}")


def find_program(machine: Machine, name: str) -> Program | None:
    """A program by its path, or by its name in one of the directories of PATH."""
    load_commands()
    own = machine.own_commands.get(name.rpartition("/")[2])
    if own is not None:
        return _as_program(own)
    candidates = [name] if "/" in name else [f"{directory}/{name}" for directory in PATH.split(":")]
    for path in candidates:
        entry = machine.files.find(machine.files.absolute(path, "/root"))
        if entry is None or entry.is_directory or not entry.mode & 0o111:
            continue
        content = entry.read()
        if content.startswith(_BINARY):
            known = _commands.get(path.rpartition("/")[2])
            if known is not None:
                return _as_program(known)
    return None


def _as_program(function: Command) -> Program:
    async def program(io: Io, argv: list[str]) -> int:
        io.code = 0
        try:
            result = function(io, argv[1:])
            return (await result if inspect.isawaitable(result) else result) or 0
        except FileError as error:
            return io.fail(f"{argv[0].rpartition('/')[2]}: {error.path}: {error.text}")

    return program
