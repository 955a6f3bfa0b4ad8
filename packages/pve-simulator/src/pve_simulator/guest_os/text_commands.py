"""Programs for text: echo, printf, cat, head, tail, wc, grep, seq and base64."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from pve_simulator.guest_os.execution import Io, command, split_options
from pve_simulator.guest_os.files import FileError

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "0": "\0", "a": "\a", '"': '"'}
_FORMAT = re.compile(r"%[sb%]")
# Endless output would block the whole cluster.
_MAX_LINES = 1_000_000


def unescape(text: str) -> str:
    """Replace backslash sequences."""
    return re.sub(r"\\([ntr\\0a\"])", lambda match: _ESCAPES[match[1]], text)


@command("echo")
def echo(io: Io, args: list[str]) -> None:
    newline, interpret = True, False
    while args and re.fullmatch(r"-[neE]+", args[0]):
        newline = newline and "n" not in args[0]
        interpret = interpret or "e" in args[0]
        args = args[1:]
    text = " ".join(args)
    io.out.extend(
        (unescape(text) if interpret else text).encode("utf-8", "surrogateescape") + (b"\n" if newline else b"")
    )


@command("printf")
def printf(io: Io, args: list[str]) -> int:
    if not args:
        return io.fail("printf: usage: printf [-v var] format [arguments]", 2)
    template, values = unescape(args[0]), args[1:]
    holes = len([each for each in _FORMAT.findall(template) if each != "%%"])
    while True:
        io.out.extend(_format(template, iter(values[:holes])).encode("utf-8", "surrogateescape"))
        values = values[holes:]
        if not values or not holes:
            return 0


def _format(template: str, values: Iterator[str]) -> str:
    return _FORMAT.sub(lambda match: _format_value(match[0], values), template)


def _format_value(conversion: str, values: Iterator[str]) -> str:
    if conversion == "%%":
        return "%"
    value = next(values, "")
    return _unescape_bytes(value) if conversion == "%b" else value


def _unescape_bytes(text: str) -> str:
    """Replace backslash sequences, including \\0 with three octal digits for a byte."""
    pieces = re.split(r"\\0([0-7]{1,3})", text)
    data = b"".join(
        bytes([int(piece, 8) & 0xFF]) if position % 2 else unescape(piece).encode("utf-8", "surrogateescape")
        for position, piece in enumerate(pieces)
    )
    return data.decode("utf-8", "surrogateescape")


command("true")(lambda _io, _args: 0)
command("false")(lambda _io, _args: 1)


def _inputs(io: Io, name: str, paths: list[str]) -> Iterator[tuple[str, bytes | None]]:
    """The content of every file, or standard input; None, after a complaint, for one that cannot be read."""
    for path in paths or ["-"]:
        if path == "-":
            yield path, io.stdin
            continue
        try:
            yield path, io.machine.files.read(io.path(path))
        except FileError as error:
            prefix = f"{name}: cannot open '{path}' for reading: " if name in ("head", "tail") else f"{name}: {path}: "
            io.complain(f"{prefix}{error.text}")
            yield path, None


@command("cat")
def cat(io: Io, args: list[str]) -> int:
    for _, data in _inputs(io, "cat", split_options(args)[1]):
        io.out.extend(data or b"")
    return io.code


def _head_or_tail(io: Io, name: str, args: list[str]) -> int:
    options, paths = split_options(args, with_value=("n", "c"))
    unit = "c" if "c" in options else "n"
    amount = options.get(unit, "10")
    if not re.fullmatch(r"[+-]?\d+", amount):
        return io.fail(f"{name}: invalid number of lines: '{amount}'")
    for path, data in _inputs(io, name, paths):
        if data is None:
            continue
        if len(paths) > 1:
            io.say(f"==> {path} <==")
        units = [data[at : at + 1] for at in range(len(data))] if unit == "c" else data.splitlines(keepends=True)
        io.out.extend(b"".join(_select_units(units, amount, name)))
    return io.code


command("head")(lambda io, args: _head_or_tail(io, "head", args))
command("tail")(lambda io, args: _head_or_tail(io, "tail", args))


def _select_units(units: list[bytes], amount: str, name: str) -> list[bytes]:
    number = int(amount.lstrip("+-"))
    if name == "head":
        return units[: -number or None] if amount.startswith("-") else units[:number]
    if amount.startswith("+"):
        return units[max(0, number - 1) :]
    return units[len(units) - min(number, len(units)) :]


@command("wc")
def wc(io: Io, args: list[str]) -> int:
    options, paths = split_options(args)
    shown = [option for option in "lwc" if option in options] or list("lwc")
    width = 0 if len(shown) == 1 else 7
    for path, data in _inputs(io, "wc", paths):
        if data is not None:
            numbers = {"l": data.count(b"\n"), "w": len(data.split()), "c": len(data)}
            text = " ".join(f"{numbers[key]:>{width}}" for key in shown)
            io.say(text if path == "-" else f"{text} {path}")
    return io.code


@command("grep")
def grep(io: Io, args: list[str]) -> int:
    options, others = split_options(args, with_value=("e",))
    pattern = options.get("e") or (others.pop(0) if others else None)
    if pattern is None:
        return io.fail("Usage: grep [OPTION]... PATTERNS [FILE]...", 2)
    try:
        regex = re.compile(re.escape(pattern) if "F" in options else pattern, re.IGNORECASE if "i" in options else 0)
    except re.error:
        return io.fail("grep: Unmatched [, [^, [:, [., or [=", 2)
    count, failed = 0, False
    for path, data in _inputs(io, "grep", others):
        if data is None:
            failed = True
            continue
        count += _grep_in(io, path if len(others) > 1 else "", data, regex, options)
    return 2 if failed else int(count == 0)


def _grep_in(io: Io, name: str, data: bytes, regex: re.Pattern[str], options: dict[str, str]) -> int:
    lines = data.decode("utf-8", "replace").splitlines()
    hits = [
        (number, line)
        for number, line in enumerate(lines, start=1)
        if (regex.search(line) is not None) != ("v" in options)
    ]
    prefix = f"{name}:" if name else ""
    if "q" in options:
        return len(hits)
    if "c" in options:
        io.say(f"{prefix}{len(hits)}")
    else:
        for number, line in hits:
            io.say(f"{prefix}{f'{number}:' if 'n' in options else ''}{line}")
    return len(hits)


@command("seq")
def seq(io: Io, args: list[str]) -> int:
    if not args or not all(re.fullmatch(r"-?\d+", each) for each in args):
        return io.fail("seq: missing operand" if not args else f"seq: invalid floating point argument: '{args[0]}'")
    numbers = [int(each) for each in args]
    first = numbers[0] if len(numbers) > 1 else 1
    step = numbers[1] if len(numbers) > 2 else 1
    for number in range(first, numbers[-1] + (1 if step > 0 else -1), step or 1)[:_MAX_LINES]:
        io.say(str(number))
    return 0


@command("base64")
def base64_(io: Io, args: list[str]) -> int:
    options, paths = split_options(args, with_value=("w",))
    for _, data in _inputs(io, "base64", paths):
        if data is None:
            return 1
        if "d" in options:
            try:
                io.out.extend(base64.b64decode(data))
            except binascii.Error:
                return io.fail("base64: invalid input")
        else:
            io.say(base64.b64encode(data).decode())
    return 0
