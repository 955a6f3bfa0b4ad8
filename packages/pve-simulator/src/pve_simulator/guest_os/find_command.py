"""The program find: by name, type and depth, with -print and -exec."""

from __future__ import annotations

import fnmatch
import posixpath
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from pve_simulator.guest_os.execution import Io, command
from pve_simulator.guest_os.files import Entry

_TYPES = {"f": stat.S_IFREG, "d": stat.S_IFDIR, "l": stat.S_IFLNK, "p": stat.S_IFIFO, "s": stat.S_IFSOCK}
_DEEPEST = 99


@dataclass(slots=True)
class _Criteria:
    min_depth: int = 0
    max_depth: int = _DEEPEST
    name: str = "*"
    type: int | None = None
    argv: list[str] = field(default_factory=list)
    """The command of -exec, if any."""

    def fits(self, path: str, entry: Entry, depth: int) -> bool:
        fits_name = fnmatch.fnmatchcase(posixpath.basename(path), self.name)
        return fits_name and self.type in (None, entry.kind) and self.min_depth <= depth <= self.max_depth


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
            if rest[-2:] != ["{}", "+"]:
                raise _BadExpression("missing argument to `-exec'")
            criteria.argv, rest = rest[:-2], []
        elif word in ("-name", "-type", "-maxdepth", "-mindepth") and rest:
            _test(criteria, word, rest.pop(0))
        else:
            raise _BadExpression(f"unknown predicate `{word}'")
    return criteria


def _test(criteria: _Criteria, word: str, value: str) -> None:
    if word == "-name":
        criteria.name = value
    elif word == "-type":
        criteria.type = _TYPES.get(value, 0)
    elif not value.isdecimal():
        raise _BadExpression(f"Expected a positive decimal integer argument to {word}, but got `{value}'")
    elif word == "-maxdepth":
        criteria.max_depth = int(value)
    else:
        criteria.min_depth = int(value)


async def _act(io: Io, criteria: _Criteria, found: list[str]) -> int:
    if not criteria.argv:
        for name in found:
            io.say(name)
    if not criteria.argv or not found:
        return 0
    program = io.machine.program(criteria.argv[0])
    if program is None:
        return io.fail(f"find: '{criteria.argv[0]}': No such file or directory")
    return int(await program(io, [*criteria.argv, *found]) != 0)


def _walk(path: str, entry: Entry, depth: int) -> Iterator[tuple[str, Entry, int]]:
    yield path, entry, depth
    for name, child in sorted(entry.children.items()):
        yield from _walk(f"{path.rstrip('/')}/{name}", child, depth + 1)
