"""The guests' shell: runs what `shell_syntax` parses."""

from __future__ import annotations

import asyncio
import fnmatch
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pve_simulator.guest_os.execution import Io, command
from pve_simulator.guest_os.files import FileError
from pve_simulator.guest_os.shell_syntax import (
    Case,
    Define,
    For,
    If,
    Redirection,
    Simple,
    Step,
    SyntaxProblem,
    While,
    Word,
    duplication,
    parse,
)
from pve_simulator.guest_os.shell_words import Variables, Words

if TYPE_CHECKING:
    from pve_simulator.guest_os.machine import Process

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# A guest in a busy loop would block the whole cluster.
_MAX_ITERATIONS = 1_000_000


class _Exit(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Return(Exception):
    pass


class _Break(Exception):
    def __init__(self, *, continues: bool) -> None:
        super().__init__()
        self.continues = continues


class Shell:
    """One shell with its variables. `arguments` are $0, $1 and so on."""

    def __init__(self, io: Io, arguments: list[str]) -> None:
        self._io = io
        self._variables = Variables(arguments, pid=io.pid)
        self._words = Words(self._variables, self._substitute)
        self._functions: dict[str, Simple] = {}
        self._jobs: dict[int, Process] = {}

    @property
    def _code(self) -> int:
        return self._variables.code

    @_code.setter
    def _code(self, code: int) -> None:
        self._variables.code = code

    async def run(self, text: str) -> int:
        """Run a script and return its exit code."""
        try:
            await self._steps(parse(text), self._io)
        except SyntaxProblem as problem:
            return self._io.fail(f"{self._name}: 1: {problem}", 2)
        except _Exit as interrupt:
            return interrupt.code
        except (_Return, _Break):
            pass
        return self._code

    @property
    def _name(self) -> str:
        return self._variables.arguments[0]

    async def _steps(self, steps: list[Step], io: Io) -> None:
        for step in steps:
            if (step.condition == "&&" and self._code != 0) or (step.condition == "||" and self._code == 0):
                continue
            if step.background:
                self._start_in_background(step, io.copy(stdin=b""))
                continue
            await self._pipeline(step.commands, io)
            if step.negated:
                self._code = int(self._code == 0)

    def _start_in_background(self, step: Step, io: Io) -> None:
        shell = self._copy(io)

        async def program(io: Io, _argv: list[str]) -> int:
            await shell._in_own_shell([replace(step, background=False, condition=";")], io)  # noqa: SLF001
            return shell._code  # noqa: SLF001

        process = io.machine.in_background(io, program)
        self._jobs[process.pid] = process
        self._variables.background, self._code = str(process.pid), 0

    def _copy(self, io: Io) -> Shell:
        other = Shell(io, [])
        other._variables = self._variables.copy()
        other._words = Words(other._variables, other._substitute)
        other._functions = dict(self._functions)
        return other

    async def _pipeline(self, commands: list[Simple], io: Io) -> None:
        if len(commands) == 1:
            inner = io.copy()
            await self._run_with_redirections(commands[0], inner)
            io.cwd, io.env = inner.cwd, inner.env
            if not any(each.operator == "<" for each in commands[0].redirections):
                io.stdin = inner.stdin  # the command may have read some of it
            if _keeps_redirections(commands[0]):
                io.stdin, io.out, io.err = inner.stdin, inner.out, inner.err
            return
        stdin = io.stdin
        for position, each in enumerate(commands):
            last = position == len(commands) - 1
            inner = io.copy(stdin=stdin, out=io.out if last else bytearray(), env=dict(io.env))
            shell = self._copy(inner)
            try:
                await shell._run_with_redirections(each, inner)  # noqa: SLF001
                self._code = shell._code  # noqa: SLF001
            except _Exit as interrupt:
                self._code = interrupt.code
            stdin = bytes(inner.out) if not last else b""

    async def _run_with_redirections(self, each: Simple, io: Io) -> None:
        """Connect the streams, run the command, and write redirected output to files."""
        pending: list[tuple[str, bool, bytearray]] = []
        try:
            for redirection in each.redirections:
                await self._redirect(redirection, io, pending)
            await self._command(each, io)
        except FileError as error:
            io.complain(f"{self._name}: 1: cannot open {error.path}: {error.text}")
            self._code = 2
        finally:
            for path, append, data in pending:
                if data or not append:
                    io.machine.files.write(path, bytes(data), append=append)

    async def _redirect(self, redirection: Redirection, io: Io, pending: list[tuple[str, bool, bytearray]]) -> None:
        streams = duplication(redirection.operator)
        if streams is not None:
            setattr(io, streams[0], getattr(io, streams[1]))
            return
        path = io.path(await self._words.text(redirection.target, io))
        if redirection.operator == "<":
            io.stdin = io.machine.files.read(path)
            return
        append = redirection.operator == ">>"
        if not append or io.machine.files.find(path) is None:
            io.machine.files.write(path, b"")
        data = bytearray()
        pending.append((path, append, data))
        if redirection.operator == "2>":
            io.err = data
        else:
            io.out = data

    async def _command(self, each: Simple, io: Io) -> None:
        if each.compound is not None:
            await self._compound(each.compound, io)
            return
        if each.group is not None:
            if each.own_shell:
                inner = io.copy(env=dict(io.env))
                shell = self._copy(inner)
                await shell._in_own_shell(each.group, inner)  # noqa: SLF001
                self._code = shell._code  # noqa: SLF001
            else:
                await self._steps(each.group, io)
            return
        assignments, words = self._split_assignments(each.words)
        values = {name: await self._words.text(value, io) for name, value in assignments}
        argv = [text for word in words for text in await self._words.fields(word, io)]
        if argv:
            await self._call(argv, io, values)
            return
        for name, value in values.items():
            self._variables.set(name, value, io)
        if not any(part.kind == "commands" for _, value in assignments for part in value):
            self._code = 0  # otherwise it is that of the last substituted command

    async def _in_own_shell(self, steps: list[Step], io: Io) -> None:
        try:
            await self._steps(steps, io)
        except _Exit as interrupt:
            self._code = interrupt.code

    async def _compound(self, what: If | While | For | Case | Define, io: Io) -> None:
        match what:
            case If():
                await self._if(what, io)
            case While():
                await self._while(what, io)
            case For():
                await self._for(what, io)
            case Case():
                await self._case(what, io)
            case Define():
                self._functions[what.name] = what.body
                self._code = 0

    async def _if(self, what: If, io: Io) -> None:
        for condition, body in what.branches:
            await self._steps(condition, io)
            if self._code == 0:
                await self._steps(body, io)
                return
        self._code = 0
        await self._steps(what.otherwise, io)

    async def _while(self, what: While, io: Io) -> None:
        code = 0
        for _ in range(_MAX_ITERATIONS):
            await self._steps(what.condition, io)
            if self._code != 0:
                break
            if not await self._iterate(what.body, io):
                break
            code = self._code
        self._code = code

    async def _for(self, what: For, io: Io) -> None:
        if what.words is None:
            values = self._variables.arguments[1:]
        else:
            values = [text for word in what.words for text in await self._words.fields(word, io)]
        self._code = 0
        for value in values:
            self._variables.set(what.name, value, io)
            if not await self._iterate(what.body, io):
                return

    async def _iterate(self, body: list[Step], io: Io) -> bool:
        """Run one iteration of a loop; whether the loop continues."""
        try:
            await self._steps(body, io)
        except _Break as interrupt:
            return interrupt.continues
        return True

    async def _case(self, what: Case, io: Io) -> None:
        value = await self._words.text(what.word, io)
        self._code = 0
        for patterns, body in what.branches:
            for pattern in patterns:
                if fnmatch.fnmatchcase(value, await self._words.pattern(pattern, io)):
                    await self._steps(body, io)
                    return

    async def _call(self, argv: list[str], io: Io, values: dict[str, str]) -> None:
        function = self._functions.get(argv[0])
        if function is not None:
            await self._call_function(function, argv, io)
            return
        builtin = _BUILTINS.get(argv[0])
        if builtin is not None:
            before = dict(self._variables.own)
            self._variables.own |= values
            self._code = await builtin(self, io, argv[1:])
            for name in values:
                self._variables.own.pop(name, None)
                if name in before:
                    self._variables.own[name] = before[name]
            return
        program = io.machine.program(argv[0] if "/" not in argv[0] else io.path(argv[0]))
        if program is None:
            self._code = self._report_missing(argv[0], io)
            return
        self._code = await program(io.copy(env={**io.env, **values}), argv)

    async def _call_function(self, function: Simple, argv: list[str], io: Io) -> None:
        arguments = self._variables.arguments
        self._variables.arguments = [arguments[0], *argv[1:]]
        try:
            await self._run_with_redirections(function, io)
        except _Return:
            pass
        finally:
            self._variables.arguments = arguments

    def _report_missing(self, name: str, io: Io) -> int:
        entry = io.machine.files.find(io.path(name)) if "/" in name else None
        if entry is not None:
            return io.fail(f"{self._name}: 1: {name}: Permission denied", 126)
        return io.fail(f"{self._name}: 1: {name}: not found", 127)

    @staticmethod
    def _split_assignments(words: list[Word]) -> tuple[list[tuple[str, Word]], list[Word]]:
        assignments: list[tuple[str, Word]] = []
        for position, word in enumerate(words):
            plain = "".join(part.value if part.kind == "text" and not part.quoted else "\0" for part in word)
            match = _ASSIGNMENT.fullmatch(plain)
            if match is None:
                return assignments, words[position:]
            rest = word[len(match[1]) + 1 :]  # unquoted text has one part per character
            assignments.append((match[1], rest))
        return assignments, []

    async def _substitute(self, text: str, io: Io) -> str:
        inner = io.copy(out=bytearray(), env=dict(io.env))
        self._code = await self._copy(inner).run(text)
        return inner.out.decode("utf-8", "surrogateescape").rstrip("\n")

    # -- builtins ---------------------------------------------------------------------------------------------------

    async def _cd(self, io: Io, args: list[str]) -> int:
        args = args[1:] if args[:1] == ["--"] else args
        path = io.path(args[0] if args else io.env.get("HOME", "/root"))
        entry = io.machine.files.find(path)
        if entry is None or not entry.is_directory:
            return io.fail(f"{self._name}: 1: cd: can't cd to {args[0] if args else path}", 2)
        io.cwd = path
        return 0

    async def _exit(self, _io: Io, args: list[str]) -> int:
        raise _Exit(int(args[0]) & 0xFF if args and args[0].lstrip("-").isdecimal() else self._code)

    async def _return(self, _io: Io, args: list[str]) -> int:
        self._code = int(args[0]) & 0xFF if args and args[0].isdecimal() else self._code
        raise _Return

    async def _break(self, _io: Io, _args: list[str]) -> int:
        raise _Break(continues=False)

    async def _continue(self, _io: Io, _args: list[str]) -> int:
        raise _Break(continues=True)

    async def _exec(self, io: Io, args: list[str]) -> int:
        """Replace the shell with a program; without one, apply the redirections to the shell."""
        if not args:
            return 0
        program = io.machine.program(args[0] if "/" not in args[0] else io.path(args[0]))
        if program is None:
            io.complain(f"{self._name}: 1: exec: {args[0]}: not found")
            raise _Exit(127)
        raise _Exit(await program(io.copy(), args))

    async def _eval(self, io: Io, args: list[str]) -> int:
        await self._steps(parse(" ".join(args)), io)
        return self._code

    async def _export(self, io: Io, args: list[str]) -> int:
        for each in args:
            name, separator, value = each.partition("=")
            self._variables.export(name, value if separator else None, io)
        return 0

    async def _set(self, _io: Io, args: list[str]) -> int:
        if "--" in args:
            self._variables.arguments[1:] = args[args.index("--") + 1 :]
        return 0

    async def _shift(self, _io: Io, args: list[str]) -> int:
        count = int(args[0]) if args and args[0].isdecimal() else 1
        if count >= len(self._variables.arguments):
            return 1
        del self._variables.arguments[1 : 1 + count]
        return 0

    async def _read(self, io: Io, args: list[str]) -> int:
        names = [each for each in args if not each.startswith("-")] or ["REPLY"]
        line, end, io.stdin = io.stdin.partition(b"\n")
        text, separators = line.decode("utf-8", "surrogateescape"), self._variables.separators(io)
        fields = text.split(None, len(names) - 1) if separators.strip(" \t\n") == "" and separators else [text]
        for position, name in enumerate(names):
            value = fields[position] if position < len(fields) else ""
            self._variables.set(name, value.rstrip() if separators and position == len(names) - 1 else value, io)
        return int(not end)

    async def _wait(self, _io: Io, args: list[str]) -> int:
        """Wait for these processes of the shell, or for all of them."""
        code = 0
        for pid in [int(each) for each in args if each.isdecimal()] or list(self._jobs):
            process = self._jobs.pop(pid, None)
            if process is None:
                code = 127
                continue
            if process.task is not None:
                await asyncio.wait([process.task])
            code = (process.exitcode or 0) if process.signal is None else 128 + process.signal
        return code if args else 0

    async def _do_nothing(self, _io: Io, _args: list[str]) -> int:
        return 0

    async def _command_builtin(self, io: Io, args: list[str]) -> int:
        """`command -v`: where a program is."""
        for name in args[1:]:
            if name in _BUILTINS or name in self._functions:
                io.say(name)
            elif io.machine.program(name) is not None:
                io.say(f"/usr/bin/{name}")
            else:
                return 127
        return 0


_Builtin = Callable[[Shell, Io, list[str]], Awaitable[int]]
_BUILTINS: dict[str, _Builtin] = {
    "cd": Shell._cd,  # noqa: SLF001
    "exit": Shell._exit,  # noqa: SLF001
    "return": Shell._return,  # noqa: SLF001
    "break": Shell._break,  # noqa: SLF001
    "continue": Shell._continue,  # noqa: SLF001
    "exec": Shell._exec,  # noqa: SLF001
    "eval": Shell._eval,  # noqa: SLF001
    "export": Shell._export,  # noqa: SLF001
    "set": Shell._set,  # noqa: SLF001
    "shift": Shell._shift,  # noqa: SLF001
    "read": Shell._read,  # noqa: SLF001
    "trap": Shell._do_nothing,  # noqa: SLF001
    "umask": Shell._do_nothing,  # noqa: SLF001
    "wait": Shell._wait,  # noqa: SLF001
    ":": Shell._do_nothing,  # noqa: SLF001
    "command": Shell._command_builtin,  # noqa: SLF001
}


def _keeps_redirections(command: Simple) -> bool:
    """Whether the shell itself is redirected, as by `exec 2>/dev/null`."""
    words = ["".join(part.value for part in word) for word in command.words]
    return words == ["exec"] and bool(command.redirections)


@command("sh", "bash", "dash")
async def shell(io: Io, args: list[str]) -> int:
    """`sh -c TEXT [NAME ARGS…]` or `sh FILE`."""
    io = io.copy()  # a shell may redirect itself
    options = [each for each in args if re.fullmatch(r"-[a-z]+", each)]
    options = options if args[: len(options)] == options else options[:1] if args[:1] == options[:1] else []
    rest = args[len(options) :]
    if any("c" in option for option in options):
        if not rest:
            return io.fail("sh: 0: -c requires an argument", 2)
        return await Shell(io, rest[1:] or ["sh"]).run(rest[0])
    if not rest or io.machine.files.find(io.path(rest[0])) is None:
        return io.fail(f"sh: 0: cannot open {rest[0] if rest else ''}: No such file", 2)
    return await Shell(io, rest).run(io.machine.files.read(io.path(rest[0])).decode("utf-8", "replace"))
