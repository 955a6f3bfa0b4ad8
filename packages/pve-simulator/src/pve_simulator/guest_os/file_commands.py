"""Programs for files: ls, find, stat, mkdir, rm, cp, mv, touch, chmod, test and others."""

from __future__ import annotations

import fnmatch
import hashlib
import posixpath
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pve_simulator.guest_os.execution import Io, command, split_options
from pve_simulator.guest_os.files import Entry, FileError


@command("pwd")
def pwd(io: Io, _args: list[str]) -> None:
    io.say(io.cwd)


@command("ls")
def ls(io: Io, args: list[str]) -> int:
    options, paths = split_options(args)
    for path in paths or ["."]:
        entry = io.machine.files.find(io.path(path), follow="l" not in options)
        if entry is None:
            io.complain(f"ls: cannot access '{path}': No such file or directory", 2)
            continue
        if entry.is_directory and "d" not in options:
            if len(paths) > 1:
                io.say(f"{path}:")
            _list(io, entry, options)
        else:
            io.say(_long_row(path, entry) if "l" in options else path)
    return io.code


def _list(io: Io, directory: Entry, options: dict[str, str]) -> None:
    rows = [(name, entry) for name, entry in sorted(directory.children.items()) if "a" in options or name[:1] != "."]
    if "a" in options:
        rows = [(".", directory), ("..", directory), *rows]
    if "l" in options:
        io.say(f"total {4 * len(rows)}")
    for name, entry in rows:
        io.say(_long_row(name, entry) if "l" in options else name)


def _long_row(name: str, entry: Entry) -> str:
    when = datetime.fromtimestamp(entry.mtime, UTC).strftime("%b %e %H:%M")
    shown = f"{name} -> {entry.link}" if entry.link is not None else name
    return f"{entry.mode_text()} {1 + len(entry.children)} {entry.owner} {entry.group} {entry.size:>5} {when} {shown}"


@command("stat")
def stat_(io: Io, args: list[str]) -> int:
    options, paths = split_options(args, with_value=("c", "format"))
    template = options.get("c") or options.get("format")
    for path in paths:
        entry = io.machine.files.find(io.path(path), follow="L" in options)
        if entry is None:
            io.complain(f"stat: cannot statx '{path}': No such file or directory")
        elif template is not None:
            io.say(_stat_format(io, template, path, entry))
        else:
            kind = _KINDS.get(entry.kind, "regular file")
            io.say(f"  File: {path}\n  Size: {entry.size:<10}\tBlocks: {8 * (1 + entry.size // 4096)}   {kind}")
            io.say(f"Access: ({entry.mode:04o}/{entry.mode_text()})  Uid: (    0/{entry.owner:>8})")
    return io.code


_KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character special file",
    stat.S_IFBLK: "block special file",
}


def _stat_format(io: Io, template: str, path: str, entry: Entry) -> str:
    values = {
        "n": path,
        "s": str(entry.size),
        "a": f"{entry.mode:o}",
        "A": entry.mode_text(),
        "f": f"{entry.kind | entry.mode:x}",
        "h": str(2 if entry.is_directory else 1),
        "U": entry.owner if entry.owner in io.machine.users else "UNKNOWN",
        "G": entry.group if entry.group in io.machine.users else "UNKNOWN",
        "u": _uid(io, entry.owner),
        "g": _uid(io, entry.group),
        "X": str(int(entry.mtime)),
        "Y": str(int(entry.mtime)),
        "y": datetime.fromtimestamp(entry.mtime, UTC).strftime("%Y-%m-%d %H:%M:%S.000000000 +0000"),
        "F": _KINDS.get(entry.kind, "regular file"),
    }
    return re.sub(r"%([A-Za-z%])", lambda match: values.get(match[1], "%" if match[1] == "%" else "?"), template)


def _uid(io: Io, name: str) -> str:
    return str(io.machine.users.get(name, name if name.isdecimal() else 65534))


@command("mkdir")
def mkdir(io: Io, args: list[str]) -> int:
    options, paths = split_options(args, with_value=("m",))
    if not paths:
        return io.fail("mkdir: missing operand")
    for path in paths:
        try:
            if "p" in options or "parents" in options:
                io.machine.files.make_directories(io.path(path))
            else:
                io.machine.files.make_directory(io.path(path))
        except FileError as error:
            io.complain(f"mkdir: cannot create directory '{path}': {error.text}")
    return io.code


@command("rm")
def rm(io: Io, args: list[str]) -> int:
    options, paths = split_options(args)
    force, recursive = "f" in options, "r" in options or "R" in options
    if not paths and not force:
        return io.fail("rm: missing operand")
    for path in paths:
        full = io.path(path)
        entry = io.machine.files.find(full, follow=False)
        if entry is None:
            if not force:
                io.complain(f"rm: cannot remove '{path}': No such file or directory")
        elif full == "/":
            io.complain("rm: it is dangerous to operate recursively on '/'\nrm: use --no-preserve-root to override")
        elif entry.is_directory and not recursive:
            io.complain(f"rm: cannot remove '{path}': Is a directory")
        else:
            io.machine.files.remove_tree(full)
    return io.code


@command("touch")
def touch(io: Io, args: list[str]) -> int:
    for path in split_options(args)[1]:
        try:
            io.machine.files.touch(io.path(path))
        except FileError as error:
            io.complain(f"touch: cannot touch '{path}': {error.text}")
    return io.code


@command("chmod")
def chmod(io: Io, args: list[str]) -> int:
    modes = [each for each in args if not re.fullmatch(r"-[Rvcf]+|--", each)]
    if len(modes) < 2:
        return io.fail("chmod: missing operand")
    for path in modes[1:]:
        entry = io.machine.files.find(io.path(path))
        if entry is None:
            io.complain(f"chmod: cannot access '{path}': No such file or directory")
            continue
        if not re.fullmatch(r"[0-7]{3,4}", modes[0]):
            return io.fail(f"chmod: invalid mode: '{modes[0]}'")
        entry.mode = int(modes[0], 8)
    return io.code


@command("chown")
def chown(io: Io, args: list[str]) -> int:
    others = split_options(args)[1]
    if len(others) < 2:
        return io.fail("chown: missing operand")
    owner, _, group = others[0].partition(":")
    for kind, name in (("user", owner), ("group", group)):
        if name and name not in io.machine.users and not name.isdecimal():
            return io.fail(f"chown: invalid {kind}: '{others[0]}'")
    for path in others[1:]:
        entry = io.machine.files.find(io.path(path))
        if entry is None:
            return io.fail(f"chown: cannot access '{path}': No such file or directory")
        entry.owner = owner or entry.owner
        entry.group = group or entry.group
    return 0


@command("cp")
def cp(io: Io, args: list[str]) -> int:
    options, paths = split_options(args)
    return _transfer(io, "cp", paths, recursive=bool({"r", "R", "a"} & options.keys()), keep=True)


@command("mv")
def mv(io: Io, args: list[str]) -> int:
    return _transfer(io, "mv", split_options(args)[1], recursive=True, keep=False)


def _transfer(io: Io, name: str, paths: list[str], *, recursive: bool, keep: bool) -> int:
    if len(paths) < 2:
        return io.fail(f"{name}: missing destination file operand")
    files, target = io.machine.files, io.path(paths[-1])
    for path in paths[:-1]:
        source = io.path(path)
        entry = files.find(source)
        if entry is None:
            return io.fail(f"{name}: cannot stat '{path}': No such file or directory")
        if entry.is_directory and not recursive:
            return io.fail(f"{name}: -r not specified; omitting directory '{path}'")
        there = files.find(target)
        final = posixpath.join(target, posixpath.basename(source)) if there and there.is_directory else target
        if final == source:
            return io.fail(f"{name}: '{path}' and '{paths[-1]}' are the same file")
        if final.startswith(f"{source.rstrip('/')}/"):
            verb = "copy a directory" if keep else "move"
            return io.fail(f"{name}: cannot {verb}, '{path}', into itself, '{paths[-1]}'")
        try:
            files.put(final, replace(entry.copy(), mtime=io.machine.now()) if keep else entry)
        except FileError as error:
            return io.fail(f"{name}: cannot create regular file '{paths[-1]}': {error.text}")
        if not keep:
            files.remove_tree(source)
    return 0


@command("tee")
def tee(io: Io, args: list[str]) -> None:
    options, paths = split_options(args)
    io.out.extend(io.stdin)
    for path in paths:
        io.machine.files.write(io.path(path), io.stdin, append="a" in options)


@command("dirname")
def dirname(io: Io, args: list[str]) -> int:
    args = args[1:] if args[:1] == ["--"] else args
    io.say((posixpath.dirname(args[0]) or ".") if args else "")
    return 0 if args else 1


@command("readlink")
def readlink(io: Io, args: list[str]) -> int:
    options, paths = split_options(args)
    for path in paths:
        if "f" in options:
            real = _resolve(io, io.path(path), 0)
            if real is None:
                return 1
            io.say(real)
            continue
        entry = io.machine.files.find(io.path(path), follow=False)
        if entry is None or entry.link is None:
            return 1
        io.out.extend((entry.link + ("" if "n" in options else "\n")).encode("utf-8", "surrogateescape"))
    return 0


def _resolve(io: Io, path: str, depth: int) -> str | None:
    if path == "/":
        return path
    folder = _resolve(io, posixpath.dirname(path), depth)
    above = None if folder is None else io.machine.files.find(folder)
    if folder is None or above is None or not above.is_directory or depth > 16:
        return None
    full = posixpath.join(folder, posixpath.basename(path))
    entry = io.machine.files.find(full, follow=False)
    if entry is not None and entry.link is not None:
        return _resolve(io, io.machine.files.absolute(entry.link, folder), depth + 1)
    return full


@command("mktemp")
def mktemp(io: Io, args: list[str]) -> int:
    """Create a file with an unused name that only its owner can read."""
    options, templates = split_options(args)
    template = templates[0] if templates else "/tmp/tmp.XXXXXXXXXX"  # noqa: S108 (the guest's, not ours)
    marks = len(template) - len(template.rstrip("X"))
    if marks < 3:
        return io.fail(f"mktemp: too few X's in template '{template}'")
    path = template[:-marks] + f"{io.machine.next_pid():0{marks}}"
    try:
        if "d" in options:
            io.machine.files.make_directory(io.path(path))
        else:
            io.machine.files.write(io.path(path), b"")
    except FileError as error:
        return io.fail(f"mktemp: failed to create file via template '{template}': {error.text}")
    io.machine.files.get(io.path(path)).mode = 0o700 if "d" in options else 0o600
    io.say(path)
    return 0


@command("sha256sum")
def sha256sum(io: Io, args: list[str]) -> None:
    for path in split_options(args)[1] or ["-"]:
        data = io.stdin if path == "-" else io.machine.files.read(io.path(path))
        io.say(f"{hashlib.sha256(data).hexdigest()}  {path}")


@command("test")
def test(io: Io, args: list[str]) -> int:
    return _evaluate(io, args)


@command("[")
def bracket(io: Io, args: list[str]) -> int:
    if args[-1:] != ["]"]:
        return io.fail("[: missing ]", 2)
    return _evaluate(io, args[:-1])


def _evaluate(io: Io, args: list[str]) -> int:
    if args[:1] == ["!"]:
        inner = _evaluate(io, args[1:])
        return inner if inner > 1 else 1 - inner
    if len(args) < 2:
        return int(not (args and args[0]))
    if len(args) == 2:
        return int(not _evaluate_unary(io, args[0], args[1]))
    return _compare(io, *args[:3])


def _evaluate_unary(io: Io, operator: str, value: str) -> bool:
    if operator in ("-z", "-n"):
        return (value == "") == (operator == "-z")
    entry = io.machine.files.find(io.path(value), follow=operator not in ("-h", "-L"))
    if entry is None:
        return False
    match operator:
        case "-f":
            return stat.S_ISREG(entry.kind)
        case "-d":
            return entry.is_directory
        case "-h" | "-L":
            return entry.link is not None
        case "-s":
            return entry.size > 0
        case "-x":
            return entry.is_directory or bool(entry.mode & 0o111)
        case _:
            return operator in ("-e", "-r", "-w")


def _compare(io: Io, left: str, operator: str, right: str) -> int:
    if operator in ("=", "=="):
        return int(left != right)
    if operator == "!=":
        return int(left == right)
    for value in (left, right):
        if not re.fullmatch(r"[+-]?\d+", value):
            return io.fail(f"test: Illegal number: {value}", 2)
    first, second = int(left), int(right)
    fits = {"-eq": first == second, "-ne": first != second, "-lt": first < second, "-le": first <= second}
    fits |= {"-gt": first > second, "-ge": first >= second}
    if operator not in fits:
        return io.fail(f"test: {operator}: unexpected operator", 2)
    return int(not fits[operator])


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
    code, matches = 0, []
    for path in paths or ["."]:
        entry = io.machine.files.find(io.path(path), follow=follow)
        if entry is None:
            io.complain(f"find: '{path}': No such file or directory")
            code = 1
            continue
        matches += [name for name, each, depth in _walk(path, entry, 0) if criteria.fits(name, each, depth)]
    return await _act(io, criteria, matches) or code


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


async def _act(io: Io, criteria: _Criteria, matches: list[str]) -> int:
    if not criteria.argv:
        for name in matches:
            io.say(name)
    if not criteria.argv or not matches:
        return 0
    program = io.machine.program(criteria.argv[0])
    if program is None:
        return io.fail(f"find: '{criteria.argv[0]}': No such file or directory")
    return int(await program(io, [*criteria.argv, *matches]) != 0)


def _walk(path: str, entry: Entry, depth: int) -> Iterator[tuple[str, Entry, int]]:
    yield path, entry, depth
    for name, child in sorted(entry.children.items()):
        yield from _walk(f"{path.rstrip('/')}/{name}", child, depth + 1)
