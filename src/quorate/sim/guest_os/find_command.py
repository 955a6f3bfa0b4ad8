"""The program find: where to look, how deep, what fits, and what to do with it."""

from __future__ import annotations

import fnmatch
import posixpath
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from quorate.sim.guest_os.execution import Io, command
from quorate.sim.guest_os.files import Entry

_TYPES = {"f": stat.S_IFREG, "d": stat.S_IFDIR, "l": stat.S_IFLNK, "p": stat.S_IFIFO, "s": stat.S_IFSOCK}
_DEEPEST = 99


@dataclass(slots=True)
class _Criteria:
    least: int = 0
    most: int = _DEEPEST
    name: str = "*"
    type: int | None = None
    zero: bool = False
    prints: bool = False
    run: list[str] = field(default_factory=list)
    together: bool = False

    def fits(self, path: str, entry: Entry, depth: int) -> bool:
        fits_name = fnmatch.fnmatchcase(posixpath.basename(path), self.name)
        return fits_name and self.type in (None, entry.kind) and self.least <= depth <= self.most


class _BadExpression(Exception):
    pass


@command("find")
async def find(io: Io, args: list[str]) -> int:
    rest, follow = list(args), False
    while rest and rest[0] in ("-H", "-L", "-P"):
        follow = rest.pop(0) != "-P"
    paths: list[str] = []
    while rest and not rest[0].startswith(("-", "(", "!")):
        paths.append(rest.pop(0))
    try:
        criteria = _expression(rest)
    except _BadExpression as problem:
        return io.fail(f"find: {problem}")
    code, found = 0, []
    for path in paths or ["."]:
        entry = io.machine.files.find(io.path(path), follow=follow)
        if entry is None:
            io.complain(f"find: '{path}': No such file or directory")
            code = 1
            continue
        found += [name for name, each, depth in _walk(path, entry, 0) if criteria.fits(name, each, depth)]
    return await _act(io, criteria, found) or code


def _expression(words: list[str]) -> _Criteria:
    criteria, rest = _Criteria(), list(words)
    while rest:
        word = rest.pop(0)
        if word == "-exec":
            criteria.run, rest, criteria.together = _command_in(rest)
        elif word in ("-print", "-print0"):
            criteria.prints, criteria.zero = True, word == "-print0"
        elif word in ("-name", "-type", "-maxdepth", "-mindepth") and rest:
            _test(criteria, word, rest.pop(0))
        else:
            raise _BadExpression(f"unknown predicate `{word}'")
    criteria.prints = criteria.prints or not criteria.run
    return criteria


def _test(criteria: _Criteria, word: str, value: str) -> None:
    if word == "-name":
        criteria.name = value
    elif word == "-type":
        criteria.type = _TYPES.get(value, 0)
    elif not value.isdecimal():
        raise _BadExpression(f"Expected a positive decimal integer argument to {word}, but got `{value}'")
    elif word == "-maxdepth":
        criteria.most = int(value)
    else:
        criteria.least = int(value)


def _command_in(rest: list[str]) -> tuple[list[str], list[str], bool]:
    for end in (";", "+"):
        if end in rest and (end == ";" or rest[rest.index(end) - 1] == "{}"):
            at = rest.index(end)
            return rest[:at], rest[at + 1 :], end == "+"
    raise _BadExpression("missing argument to `-exec'")


async def _act(io: Io, criteria: _Criteria, found: list[str]) -> int:
    if criteria.prints:
        for name in found:
            io.out.extend((name + ("\0" if criteria.zero else "\n")).encode("utf-8", "surrogateescape"))
    if not criteria.run or not found:
        return 0
    program = io.machine.program(criteria.run[0])
    if program is None:
        return io.fail(f"find: '{criteria.run[0]}': No such file or directory")
    code = 0
    for some in [found] if criteria.together else [[name] for name in found]:
        argv = [part for word in criteria.run for part in (some if word == "{}" else [word])]
        code = await program(io, argv) or code
    return int(code != 0)


def _walk(path: str, entry: Entry, depth: int) -> Iterator[tuple[str, Entry, int]]:
    yield path, entry, depth
    for name, child in sorted(entry.children.items()):
        yield from _walk(f"{path.rstrip('/')}/{name}", child, depth + 1)
