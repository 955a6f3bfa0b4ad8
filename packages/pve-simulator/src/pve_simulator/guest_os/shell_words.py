"""Word expansion: variables, arithmetic, command substitution, field splitting and globs."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pve_simulator.guest_os.execution import Io
from pve_simulator.guest_os.shell_syntax import Part, SyntaxProblem, Word

_OPERATION = re.compile(r"(\w+|[@#?$!])(:?[-+]|##?|%%?)(.*)", re.DOTALL)
_GLOB = re.compile(r"[*?\[]")
_SUM = re.compile(r"[\w\s+*/%()<>=!&|-]*", re.ASCII)
_BLANKS = " \t\n"
NOT_SET = ""


@dataclass
class Variables:
    """The variables of one shell. Exported ones are in the environment of its Io."""

    arguments: list[str]
    own: dict[str, str] = field(default_factory=dict)
    code: int = 0
    pid: int = 0
    """The process id of the shell, also within its subshells."""
    background: str = NOT_SET
    """The id of the latest background process."""

    def get(self, name: str, io: Io) -> str:
        match name:
            case "?":
                return str(self.code)
            case "#":
                return str(len(self.arguments) - 1)
            case "@":
                return " ".join(self.arguments[1:])
            case "$":
                return str(self.pid)
            case "!":
                return self.background
            case "PWD":
                return io.cwd
        if name.isdecimal():
            return self.arguments[int(name)] if int(name) < len(self.arguments) else NOT_SET
        return self.own.get(name, io.env.get(name, NOT_SET))

    def set(self, name: str, value: str, io: Io) -> None:
        if name in io.env:
            io.env[name] = value
        else:
            self.own[name] = value

    def export(self, name: str, value: str | None, io: Io) -> None:
        io.env[name] = self.get(name, io) if value is None else value
        self.own.pop(name, None)

    def separators(self, io: Io) -> str:
        return self.own["IFS"] if "IFS" in self.own else io.env.get("IFS", _BLANKS)

    def copy(self) -> Variables:
        return Variables(list(self.arguments), dict(self.own), self.code, self.pid, self.background)


Substitute = Callable[[str, Io], Awaitable[str]]


class Words:
    """Expands words for one shell; `substitute` runs the commands in them."""

    def __init__(self, variables: Variables, substitute: Substitute) -> None:
        self._variables = variables
        self._substitute = substitute

    async def text(self, word: Word, io: Io) -> str:
        """Expand the word without field splitting."""
        return "".join([await self._value(part, io) for part in word])

    async def pattern(self, word: Word, io: Io) -> str:
        """Expand the word to a pattern, with quoted parts escaped."""
        pattern = ""
        for part in word:
            value = await self._value(part, io)
            pattern += _literal(value) if part.quoted else value
        return pattern

    async def fields(self, word: Word, io: Io) -> list[str]:
        """Expand the word to fields: unquoted expansions are split, globs matched against files."""
        fields: list[str] = [""]
        quoted, pattern = any(part.quoted for part in word), False
        for part in word:
            if part.kind == "variable" and part.value == "@" and part.quoted:
                fields = _append_fields(fields, self._variables.arguments[1:])
                quoted = quoted and (len(self._variables.arguments) > 1 or len(word) > 2)
                continue
            value = await self._value(part, io)
            if part.kind == "text" or part.quoted:
                fields[-1] += value
                pattern = pattern or (not part.quoted and _GLOB.search(value) is not None)
                continue
            pieces = _split(value, self._variables.separators(io))
            if value[:1].isspace() and fields[-1] and pieces:
                fields.append("")
            fields = _append_fields(fields, pieces)
            pattern = pattern or _GLOB.search(value) is not None
        if fields == [""] and not quoted:
            return []
        if word and word[0].kind == "text" and not word[0].quoted and fields[0].startswith("~"):
            fields[0] = re.sub(r"^~(?=/|$)", io.env.get("HOME", "/root"), fields[0])
        if not pattern:
            return fields
        return [name for each in fields for name in (_matching_files(each, io) if _GLOB.search(each) else [each])]

    async def _value(self, part: Part, io: Io) -> str:
        match part.kind:
            case "text":
                return part.value
            case "commands":
                return await self._substitute(part.value, io)
            case "arithmetic":
                return self._sum(part.value, io)
        match = _OPERATION.fullmatch(part.value)
        if match is None:
            if re.fullmatch(r"\w+|[@#?$!]", part.value) is None:
                raise SyntaxProblem("Bad substitution")
            return self._variables.get(part.value, io)
        name, operator, rest = match.groups()
        known = self._variables.get(name, io)
        if operator[0] in "#%":
            return _without(known, _pattern(rest), operator)
        if "+" in operator:
            return rest if known else ""
        return known or rest

    def _sum(self, text: str, io: Io) -> str:
        """Evaluate integers, variables and the usual operators; anything else is a syntax error."""
        filled = re.sub(r"\$?([A-Za-z_]\w*)", lambda match: self._variables.get(match[1], io) or "0", text)
        if not _SUM.fullmatch(filled) or re.search(r"\*\*|<<|>>", filled) or len(filled) > 100:
            raise SyntaxProblem("arithmetic expression: expecting primary")
        try:
            return str(int(eval(filled.replace("/", "//") or "0", {"__builtins__": {}}, {})))  # noqa: S307
        except (SyntaxError, NameError, TypeError, ValueError, ArithmeticError, MemoryError):
            raise SyntaxProblem("arithmetic expression: expecting primary") from None


def _append_fields(fields: list[str], more: list[str]) -> list[str]:
    """Append: the first continues the last field, the others are new fields."""
    if not more:
        return fields
    return [*fields[:-1], fields[-1] + more[0], *more[1:]]


def _split(value: str, separators: str) -> list[str]:
    if not separators:
        return [value] if value else []
    if not separators.strip():
        return value.split()
    return re.split(f"[{re.escape(separators)}]", value) if value else []


def _pattern(text: str) -> str:
    """The pattern of `${x#pattern}`, with quoted parts escaped."""
    return re.sub(r"\"([^\"]*)\"|'([^']*)'|\\(.)", lambda match: _literal(match[1] or match[2] or match[3] or ""), text)


def _literal(text: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", text)


def _without(value: str, pattern: str, operator: str) -> str:
    """The value without its shortest or longest matching prefix or suffix."""
    ends = range(len(value) + 1) if operator in ("#", "%%") else range(len(value), -1, -1)
    for at in ends:
        if operator[0] == "#" and fnmatch.fnmatchcase(value[:at], pattern):
            return value[at:]
        if operator[0] == "%" and fnmatch.fnmatchcase(value[at:], pattern):
            return value[:at]
    return value


def _matching_files(pattern: str, io: Io) -> list[str]:
    """The files that match a glob in the last part of a path, or the glob itself."""
    directory, _, name = pattern.rpartition("/")
    entry = io.machine.files.find(io.path(directory or ("/" if pattern.startswith("/") else ".")))
    if entry is None or not entry.is_directory:
        return [pattern]
    names = [each for each in sorted(entry.children) if fnmatch.fnmatchcase(each, name)]
    names = [each for each in names if name.startswith(".") or not each.startswith(".")]
    prefix = pattern[: len(pattern) - len(name)]
    return [prefix + each for each in names] or [pattern]
