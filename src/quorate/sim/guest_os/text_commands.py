"""Programs that make and change text: echo, printf, grep, head, tail, wc, sort and friends."""

from __future__ import annotations

import re
from collections.abc import Iterator

from quorate.sim.guest_os.execution import Io, command, split_options
from quorate.sim.guest_os.files import FileError

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "0": "\0", "a": "\a", '"': '"'}
_FORMAT = re.compile(r"%(-?0?\d{0,4}(?:\.\d{1,3})?)([sbdiufxXoc%])")
# A guest that counts for ever would keep the whole cluster waiting.
_MOST_LINES = 1_000_000


def unescape(text: str) -> str:
    """The text with its backslash sequences made real."""
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
    holes = len([match for match in _FORMAT.finditer(template) if match[2] != "%"])
    while True:
        taken, values = values[:holes], values[holes:]
        io.out.extend(_format(template, iter(taken)).encode("utf-8", "surrogateescape"))
        if not values or not holes:
            return 0


def _format(template: str, values: Iterator[str]) -> str:
    return _FORMAT.sub(lambda match: _format_value(match, values), template)


def _format_value(match: re.Match[str], values: Iterator[str]) -> str:
    if match[2] == "%":
        return "%"
    value = next(values, "")
    if match[2] == "b":
        return _unescape_bytes(value)
    if match[2] in "diu":
        return f"%{match[1]}d" % (int(value) if re.fullmatch(r"[+-]?\d+", value) else 0)
    if match[2] in "xXo":
        return f"%{match[1]}{match[2]}" % (int(value) if value.isdecimal() else 0)
    if match[2] == "f":
        return f"%{match[1]}f" % (float(value) if re.fullmatch(r"[+-]?\d+(\.\d+)?", value) else 0.0)
    return f"%{match[1]}s" % (value[:1] if match[2] == "c" else value)


def _unescape_bytes(text: str) -> str:
    """The text with its escapes made real, where \\0 and three octal digits name a byte."""
    pieces = re.split(r"\\0([0-7]{1,3})", text)
    data = b"".join(
        bytes([int(piece, 8) & 0xFF]) if position % 2 else unescape(piece).encode("utf-8", "surrogateescape")
        for position, piece in enumerate(pieces)
    )
    return data.decode("utf-8", "surrogateescape")


command("true")(lambda _io, _args: 0)
command("false")(lambda _io, _args: 1)


def _inputs(io: Io, name: str, paths: list[str]) -> Iterator[tuple[str, bytes | None]]:
    """Every file's content, the input where none is named, and None with a complaint where one cannot be read."""
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
    options, paths = split_options(args)
    code = 0
    for _, data in _inputs(io, "cat", paths):
        if data is None:
            code = 1
        elif "n" in options:
            for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
                io.say(f"{number:>6}\t{line}")
        else:
            io.out.extend(data)
    return code


def _ends(io: Io, name: str, args: list[str]) -> int:
    options, paths = split_options(args, with_value=("n", "c"))
    unit = "c" if "c" in options else "n"
    amount = options.get(unit, "10")
    if not re.fullmatch(r"[+-]?\d+", amount):
        return io.fail(f"{name}: invalid number of lines: '{amount}'")
    code = 0
    for path, data in _inputs(io, name, paths):
        if data is None:
            code = 1
            continue
        if len(paths) > 1:
            io.say(f"==> {path} <==")
        units = [data[at : at + 1] for at in range(len(data))] if unit == "c" else data.splitlines(keepends=True)
        io.out.extend(b"".join(_cut(units, amount, name)))
    return code


command("head")(lambda io, args: _ends(io, "head", args))
command("tail")(lambda io, args: _ends(io, "tail", args))


def _cut(units: list[bytes], amount: str, name: str) -> list[bytes]:
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
    code, totals, count = 0, dict.fromkeys("lwc", 0), 0
    for path, data in _inputs(io, "wc", paths):
        if data is None:
            code = 1
            continue
        numbers = {"l": data.count(b"\n"), "w": len(data.split()), "c": len(data)}
        totals = {key: totals[key] + numbers[key] for key in totals}
        count += 1
        io.say(_counts(numbers, shown, "" if path == "-" else path, alone=len(shown) == 1))
    if count > 1:
        io.say(_counts(totals, shown, "total", alone=len(shown) == 1))
    return code


def _counts(numbers: dict[str, int], shown: list[str], name: str, *, alone: bool) -> str:
    text = " ".join(f"{numbers[key]}" if alone else f"{numbers[key]:>7}" for key in shown)
    return f"{text} {name}".rstrip() if name else text


@command("grep", "egrep", "fgrep")
def grep(io: Io, args: list[str]) -> int:
    options, others = split_options(args, with_value=("e", "m", "A", "B", "C"))
    pattern = options.get("e") or (others.pop(0) if others else None)
    if pattern is None:
        return io.fail("Usage: grep [OPTION]... PATTERNS [FILE]...", 2)
    try:
        wanted = re.compile(re.escape(pattern) if "F" in options else pattern, re.IGNORECASE if "i" in options else 0)
    except re.error:
        return io.fail("grep: Unmatched [, [^, [:, [., or [=", 2)
    found, failed = 0, False
    for path, data in _inputs(io, "grep", others):
        if data is None:
            failed = True
            continue
        found += _grep_in(io, path if len(others) > 1 else "", data, wanted, options)
    return 2 if failed else int(found == 0)


def _grep_in(io: Io, name: str, data: bytes, wanted: re.Pattern[str], options: dict[str, str]) -> int:
    lines = data.decode("utf-8", "replace").splitlines()
    hits = [
        (number, line)
        for number, line in enumerate(lines, start=1)
        if (_whole(wanted, line, options) is not None) != ("v" in options)
    ]
    prefix = f"{name}:" if name and "h" not in options else ""
    if "q" in options:
        return len(hits)
    if "c" in options:
        io.say(f"{prefix}{len(hits)}")
    elif "l" in options:
        io.out.extend(f"{name or '(standard input)'}\n".encode() if hits else b"")
    else:
        for number, line in hits:
            shown = [match[0] for match in wanted.finditer(line)] if "o" in options else [line]
            for text in shown:
                io.say(f"{prefix}{f'{number}:' if 'n' in options else ''}{text}")
    return len(hits)


def _whole(wanted: re.Pattern[str], line: str, options: dict[str, str]) -> re.Match[str] | None:
    if "x" in options:
        return wanted.fullmatch(line)
    if "w" in options:
        return re.search(rf"\b(?:{wanted.pattern})\b", line, wanted.flags)
    return wanted.search(line)


@command("seq")
def seq(io: Io, args: list[str]) -> int:
    if not args or not all(re.fullmatch(r"-?\d+", each) for each in args):
        return io.fail("seq: missing operand" if not args else f"seq: invalid floating point argument: '{args[0]}'")
    numbers = [int(each) for each in args]
    first = numbers[0] if len(numbers) > 1 else 1
    step = numbers[1] if len(numbers) > 2 else 1
    for number in range(first, numbers[-1] + (1 if step > 0 else -1), step or 1)[:_MOST_LINES]:
        io.say(str(number))
    return 0


@command("base64")
def base64_(io: Io, args: list[str]) -> int:
    import base64
    import binascii

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
