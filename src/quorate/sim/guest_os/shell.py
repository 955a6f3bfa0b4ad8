"""The shell of the guests: runs what `shell_syntax` reads."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Awaitable, Callable

from quorate.sim.guest_os.files import FileError
from quorate.sim.guest_os.running import Io, command
from quorate.sim.guest_os.shell_syntax import Redirection, Simple, Step, SyntaxProblem, Word, duplication, parse

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_WITH_DEFAULT = re.compile(r"(\w+)(:?[-=+])(.*)", re.DOTALL)
_GLOB = re.compile(r"[*?\[]")


class _Exit(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Shell:
    """One shell with its variables. `arguments` are $0, $1 and so on."""

    def __init__(self, io: Io, arguments: list[str]) -> None:
        self._io = io
        self._arguments = arguments
        self._code = 0
        self._stops_on_error = False

    async def run(self, text: str) -> int:
        """Run a script and return its exit code."""
        try:
            await self._steps(parse(text), self._io)
        except SyntaxProblem as problem:
            self._io.complain(f"{self._arguments[0]}: 1: {problem}")
            return 2
        except _Exit as leaving:
            return leaving.code
        return self._code

    async def _steps(self, steps: list[Step], io: Io) -> None:
        for step in steps:
            if (step.condition == "&&" and self._code != 0) or (step.condition == "||" and self._code == 0):
                continue
            await self._pipeline(step.commands, io)
            if step.negated:
                self._code = int(self._code == 0)
            elif self._stops_on_error and self._code != 0 and step.condition == ";":
                raise _Exit(self._code)

    async def _pipeline(self, commands: list[Simple], io: Io) -> None:
        stdin = io.stdin
        for position, each in enumerate(commands):
            last = position == len(commands) - 1
            inner = Io(io.machine, stdin, io.out if last else bytearray(), io.err, io.env, io.cwd)
            await self._redirected(each, inner)
            if last and len(commands) == 1:
                io.cwd = inner.cwd
            stdin = bytes(inner.out) if not last else b""

    async def _redirected(self, each: Simple, io: Io) -> None:
        """Connect the streams, run, and write what went to files."""
        pending: list[tuple[str, bool, bytearray]] = []
        try:
            for redirection in each.redirections:
                await self._redirect(redirection, io, pending)
            await self._command(each, io)
        except FileError as error:
            io.complain(f"{self._arguments[0]}: 1: cannot open {error.path}: {error.text}")
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
        path = io.path(await self._expand_to_one(redirection.target, io))
        if redirection.operator == "<":
            io.stdin = io.machine.files.read(path)
            return
        append = redirection.operator.endswith(">>")
        if not append or io.machine.files.find(path) is None:
            io.machine.files.write(path, b"")
        data = bytearray()
        pending.append((path, append, data))
        if redirection.operator.startswith(("&", "2")):
            io.err = data
        if not redirection.operator.startswith("2"):
            io.out = data

    async def _command(self, each: Simple, io: Io) -> None:
        if each.group is not None:
            if each.own_shell:
                inner = Io(io.machine, io.stdin, io.out, io.err, dict(io.env), io.cwd)
                await self._in_own_shell(each.group, inner)
            else:
                await self._steps(each.group, io)
            return
        assignments, words = self._split_assignments(each.words)
        values = {name: await self._expand_to_one(value, io) for name, value in assignments}
        argv = [text for word in words for text in await self._expand(word, io)]
        if not argv:
            io.env.update(values)
            self._code = 0
            return
        await self._call(argv, io, values)

    async def _in_own_shell(self, steps: list[Step], io: Io) -> None:
        try:
            await self._steps(steps, io)
        except _Exit as leaving:
            self._code = leaving.code

    async def _call(self, argv: list[str], io: Io, values: dict[str, str]) -> None:
        builtin = _BUILTINS.get(argv[0])
        if builtin is not None:
            self._code = await builtin(self, io, argv[1:])
            return
        program = io.machine.program(argv[0] if "/" not in argv[0] else io.path(argv[0]))
        if program is None:
            self._code = self._not_found(argv[0], io)
            return
        inner = Io(io.machine, io.stdin, io.out, io.err, {**io.env, **values}, io.cwd)
        self._code = await program(inner, argv)

    def _not_found(self, name: str, io: Io) -> int:
        entry = io.machine.files.find(io.path(name)) if "/" in name else None
        if entry is not None:
            io.complain(f"{self._arguments[0]}: 1: {name}: Permission denied")
            return 126
        io.complain(f"{self._arguments[0]}: 1: {name}: not found")
        return 127

    @staticmethod
    def _split_assignments(words: list[Word]) -> tuple[list[tuple[str, Word]], list[Word]]:
        found: list[tuple[str, Word]] = []
        for position, word in enumerate(words):
            plain = "".join(part.value if part.kind == "text" and not part.quoted else "\0" for part in word)
            match = _ASSIGNMENT.fullmatch(plain)
            if match is None:
                return found, words[position:]
            rest = word[len(match[1]) + 1 :]  # unquoted text comes character by character
            found.append((match[1], rest))
        return found, []

    async def _expand_to_one(self, word: Word, io: Io) -> str:
        return "".join([await self._value(part.kind, part.value, io) for part in word])

    async def _expand(self, word: Word, io: Io) -> list[str]:
        """The fields of a word: unquoted expansions are split, patterns matched against files."""
        fields: list[str] = [""]
        quoted, pattern = any(part.quoted for part in word), False
        for part in word:
            value = await self._value(part.kind, part.value, io)
            if part.kind == "text" or part.quoted:
                fields[-1] += value
                pattern = pattern or (not part.quoted and _GLOB.search(value) is not None)
                continue
            pieces = value.split()
            if value[:1].isspace() and fields[-1]:
                fields.append("")
            for position, piece in enumerate(pieces):
                fields[-1] += piece
                if position < len(pieces) - 1:
                    fields.append("")
        if fields == [""] and not quoted:
            return []
        if word and word[0].kind == "text" and not word[0].quoted and fields[0].startswith("~"):
            fields[0] = re.sub(r"^~(?=/|$)", io.env.get("HOME", "/root"), fields[0])
        return _matching_files(fields[0], io) if pattern and len(fields) == 1 else fields

    async def _value(self, kind: str, value: str, io: Io) -> str:
        if kind == "text":
            return value
        if kind == "commands":
            return await self._substitute(value, io)
        match = _WITH_DEFAULT.fullmatch(value)
        if match is None:
            return self._variable(value, io)
        known = self._variable(match[1], io)
        return known if known or "-" not in match[2] else match[3]

    def _variable(self, name: str, io: Io) -> str:
        if name == "?":
            return str(self._code)
        if name == "#":
            return str(len(self._arguments) - 1)
        if name in ("@", "*"):
            return " ".join(self._arguments[1:])
        if name == "$":
            return "4242"
        if name == "PWD":
            return io.cwd
        if name.isdecimal():
            return self._arguments[int(name)] if int(name) < len(self._arguments) else ""
        return io.env.get(name, "")

    async def _substitute(self, text: str, io: Io) -> str:
        inner = Io(io.machine, io.stdin, bytearray(), io.err, dict(io.env), io.cwd)
        self._code = await Shell(inner, self._arguments).run(text)
        return inner.out.decode("utf-8", "replace").rstrip("\n")

    async def _cd(self, io: Io, args: list[str]) -> int:
        path = io.path(args[0] if args else io.env.get("HOME", "/root"))
        entry = io.machine.files.find(path)
        if entry is None or not entry.is_directory:
            io.complain(f"{self._arguments[0]}: 1: cd: can't cd to {args[0] if args else path}")
            return 2
        io.cwd = path
        return 0

    async def _leave(self, _io: Io, args: list[str]) -> int:
        raise _Exit(int(args[0]) & 0xFF if args and args[0].lstrip("-").isdecimal() else self._code)

    async def _export(self, io: Io, args: list[str]) -> int:
        for each in args:
            name, separator, value = each.partition("=")
            if separator:
                io.env[name] = value
        return 0

    async def _unset(self, io: Io, args: list[str]) -> int:
        for name in args:
            io.env.pop(name, None)
        return 0

    async def _set(self, _io: Io, args: list[str]) -> int:
        for option in args:
            if option.startswith("-") and "e" in option:
                self._stops_on_error = True
        return 0

    async def _nothing(self, _io: Io, _args: list[str]) -> int:
        return 0

    async def _locate(self, io: Io, args: list[str]) -> int:
        """`command -v`: where a program is."""
        names = [each for each in args if not each.startswith("-")]
        if "-v" not in args:
            await self._call(names, io, {})
            return self._code
        for name in names:
            if name in _BUILTINS:
                io.say(name)
            elif io.machine.program(name) is not None:
                io.say(f"/usr/bin/{name}")
            else:
                return 127
        return 0


_Builtin = Callable[[Shell, Io, list[str]], Awaitable[int]]
_BUILTINS: dict[str, _Builtin] = {
    "cd": Shell._cd,  # noqa: SLF001
    "exit": Shell._leave,  # noqa: SLF001
    "export": Shell._export,  # noqa: SLF001
    "unset": Shell._unset,  # noqa: SLF001
    "set": Shell._set,  # noqa: SLF001
    ":": Shell._nothing,  # noqa: SLF001
    "command": Shell._locate,  # noqa: SLF001
}


def _matching_files(pattern: str, io: Io) -> list[str]:
    """The files that a pattern in the last part of a path stands for, or the pattern itself."""
    directory, _, name = pattern.rpartition("/")
    entry = io.machine.files.find(io.path(directory or ("/" if pattern.startswith("/") else ".")))
    if entry is None or not entry.is_directory:
        return [pattern]
    names = [each for each in sorted(entry.children) if fnmatch.fnmatchcase(each, name)]
    names = [each for each in names if name.startswith(".") or not each.startswith(".")]
    prefix = pattern[: len(pattern) - len(name)]
    return [prefix + each for each in names] or [pattern]


@command("sh", "bash", "dash")
async def shell(io: Io, args: list[str]) -> int:
    """`sh -c TEXT [NAME ARGS…]`, `sh FILE`, or a script from the input."""
    options = [each for each in args if re.fullmatch(r"-[a-z]+", each)]
    rest = args[len(options) :] if args[: len(options)] == options else args
    if any("c" in option for option in options):
        if not rest:
            io.complain("sh: 0: -c requires an argument")
            return 2
        own = Shell(io, rest[1:] or ["sh"])
        return await own.run(rest[0])
    if rest:
        path = io.path(rest[0])
        if io.machine.files.find(path) is None:
            io.complain(f"sh: 0: cannot open {rest[0]}: No such file")
            return 2
        return await Shell(io, rest).run(io.machine.files.read(path).decode("utf-8", "replace"))
    return await Shell(io, ["sh"]).run(io.stdin.decode("utf-8", "replace"))
