"""Fixed shell scripts for POSIX guests. Values are positional arguments, never part of the script's text."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from quorate.hints import Advice, see, tools
from quorate.inside.entries import Entry, Listing, WriteTarget, parent_of
from quorate.inside.transport import Command, Output, Transport
from quorate.problems import Conflict, GuestRefused, NotFound, Problem

MAX_MESSAGE = 400
"""How many characters of a guest's message an error shows."""

_ENGLISH = {"LC_ALL": "C"}
_NOT_FOUND = 127
LISTED_BYTES = 2 * 1024 * 1024
"""A longer listing is cut here, at about twenty thousand entries."""
# Type and mode in hexadecimal, size, links, ids, time; then user and group names, which contain no slash. No path
# contains two slashes in a row, so those start an entry, and names may contain anything, even line breaks.
_FORMAT = "%f %s %h %u %g %Y/%U/%G"
_NEW_MODE = "0644"
_OTHER_WAY = 20
_LOST_LINK = 21
_STAT = 'stat -c "$2" -- "$1" && { test ! -L "$1" || readlink -- "$1"; }'
_STAT_BEHIND = 'stat -L -c "$2" -- "$1"'
_LIST = (
    f'test -d "$1" || {{ stat -L -c "$2" -- "$1"; exit {_OTHER_WAY}; }}\n'
    f'find -H "$1" -mindepth 1 -maxdepth 1 -exec stat -c "//$2 %n" {{}} + | head -c {LISTED_BYTES}'
)
# $1 path, $2 format, $3 the folder to create or nothing, $4 "append" or nothing. Prints the file behind all links, its
# status, and the new temporary file, which only its owner can read.
_PREPARE = (
    'test -z "$3" || mkdir -p -- "$3" || exit\n'
    "target=$1\n"
    f'test ! -L "$1" || target=$(readlink -f -- "$1") || exit {_LOST_LINK}\n'
    "printf '%s\\0' \"$target\"\n"
    'test ! -e "$target" || stat -c "$2" -- "$target" || exit\n'
    "printf '\\0'\n"
    'test ! -d "$target" || exit 0\n'
    'test ! -e "$target" || test -z "$4" || exit 0\n'
    'folder=$(dirname -- "$target") || exit\n'
    'mktemp -- "$folder/.quorate-XXXXXX"'
)
# $1 temporary file, $2 target, $3 owner or nothing, $4 mode or nothing, $5 how long it must be
_FINISH = (
    f'test "$(wc -c < "$1")" -eq "$5" || exit {_OTHER_WAY}\n'
    'test -z "$3" || chown -- "$3" "$1" || exit\n'
    'test -z "$4" || chmod -- "$4" "$1" || exit\n'
    'mv -f -- "$1" "$2"'
)
_ADJUST = 'test -z "$2" || chown -- "$2" "$1" || exit\ntest -z "$3" || chmod -- "$3" "$1"'
_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "device",
    stat.S_IFCHR: "device",
}


def shell_script(text: str, *values: str, stdin: bytes = b"") -> Command:
    """`text` for the guest's /bin/sh, with `values` as $1, $2 and so on; messages are in English."""
    return Command(("/bin/sh", "-c", text, "sh", *values), stdin=stdin, env=_ENGLISH)


def error_message(output: Output) -> str:
    """The guest's error message, shortened."""
    text = (output.stderr or output.stdout).decode("utf-8", "replace").strip()
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"


def failure(output: Output, doing: str) -> Problem:
    """What went wrong with a script, with the guest's own message."""
    message = error_message(output)
    if "No such file or directory" in message:
        return NotFound(f"{doing}: it does not exist", why=f"It said: {message}")
    if output.exit_code == _NOT_FOUND:
        return GuestRefused(f"{doing}: it lacks a program for this", why=f"It said: {message}")
    if any(text in message for text in ("Is a directory", "Not a directory", "File exists")):
        return Conflict(f"{doing}: not possible", why=f"It said: {message}")
    end = f"signal {output.signal}" if output.exit_code is None else f"exit code {output.exit_code}"
    return GuestRefused(f"{doing}: it refused", why=f"It said: {message}" if message else f"It ended with {end}")


async def stat_path(transport: Transport, path: str, *, behind_links: bool = False) -> Entry:
    output = await transport.run(shell_script(_STAT_BEHIND if behind_links else _STAT, path, _FORMAT))
    line, _, target = output.stdout.partition(b"\n")
    if output.exit_code != 0:
        raise failure(output, f"Reading the status of {path}")
    return _entry(line, path.rpartition("/")[2].encode() or b"/", target.removesuffix(b"\n").decode("utf-8", "replace"))


async def list_folder(transport: Transport, path: str) -> Listing:
    output = await transport.run(shell_script(_LIST, path, _FORMAT), keep=LISTED_BYTES)
    if output.exit_code == _OTHER_WAY and output.stdout:
        kind = _entry(output.stdout.strip(), b"").type
        raise Conflict(
            f"{path} is a {kind}, not a folder",
            next_step=Advice("Read it", tools.guest_path_stat, tools.guest_file_read),
        )
    if output.exit_code != 0 or (output.stderr and not output.stdout):
        raise failure(output, f"Listing {path}")
    cut = output.stdout_cut or len(output.stdout) >= LISTED_BYTES
    return Listing(list(_entries(output.stdout, cut)), cut)


def _entries(listed: bytes, cut: bool) -> Iterator[Entry]:
    records = listed.split(b"//")[1:]
    for record in records[:-1] if cut else records:
        path = record.index(b" /", record.index(b"/"))
        yield _entry(record[:path], record[path + 1 :].removesuffix(b"\n").rpartition(b"/")[2])


def _entry(line: bytes, name: bytes, target: str = "") -> Entry:
    numbers, user, group = line.decode("utf-8", "replace").split("/")
    mode, size, links, uid, gid, modified = numbers.split()
    bits = int(mode, 16)
    return Entry(
        name=name,
        type=_TYPES.get(stat.S_IFMT(bits), "other"),
        size=int(size),
        modified=float(modified),
        mode=f"{stat.S_IMODE(bits):04o}",
        owner=_owner_name(user, uid),
        group=_owner_name(group, gid),
        links=int(links),
        target=target,
    )


def _owner_name(name: str, number: str) -> str:
    return number if name in ("UNKNOWN", "") else name


# -- writing -----------------------------------------------------------------------------------------------------------


async def prepare(transport: Transport, path: str, *, parents: bool, append: bool) -> WriteTarget:
    """Create missing folders if requested, read what exists, and create a temporary file to replace it with."""
    command = shell_script(_PREPARE, path, _FORMAT, parent_of(path) if parents else "", "append" if append else "")
    output = await transport.run(command)
    if output.exit_code != 0:
        raise _prepare_problem(output, path)
    target, status, temporary = (_plain(part, path) for part in output.stdout.split(b"\0"))
    old = _entry(status.encode(), b"") if status else None
    if old is not None and old.type != "file":
        if temporary:
            await discard(transport, temporary)
        raise Conflict(
            f"{path} is a {old.type}, not a file", next_step=Advice("Give the path of a file", tools.guest_dir_list)
        )
    return WriteTarget(target, temporary, old)


async def real_path(transport: Transport, path: str) -> str:
    """The path with all links resolved, including those of its folders; parts that do not exist are kept."""
    there, rest = path, ""
    while there != "/":
        output = await transport.run(shell_script('readlink -f -- "$1"', there))
        if output.exit_code == 0 and output.stdout.startswith(b"/"):
            return _plain(output.stdout, path).rstrip("/") + rest
        there, name = parent_of(there), there.rpartition("/")[2]
        rest = f"/{name}{rest}"
    return path


def _plain(part: bytes, path: str) -> str:
    try:
        return part.removesuffix(b"\n").decode()
    except UnicodeDecodeError:
        raise Conflict(f"{path} points to a name that is not UTF-8", next_step="Write to another path") from None


def _prepare_problem(output: Output, path: str) -> Problem:
    if output.exit_code == _LOST_LINK:
        return Conflict(
            f"{path} is a dangling link", next_step=see("See where it points", tools.guest_path_stat(path=path))
        )
    if "No such file or directory" in error_message(output):
        return NotFound(
            f"The folder of {path} does not exist", next_step=Advice("Create it with {parents}", parents=True)
        )
    return failure(output, f"Writing {path}")


async def finish(transport: Transport, target: WriteTarget, *, owner: str | None, mode: str | None, size: int) -> None:
    """Move the temporary file over the target, with the owner and mode of the old file."""
    old = target.old
    keeps = f"{old.owner}:{old.group}" if old else ""
    old_mode = old.mode if old else _NEW_MODE
    output = await transport.run(
        shell_script(
            _FINISH, target.temporary, target.path, _kept_group(owner, old) or keeps, mode or old_mode, str(size)
        )
    )
    if output.exit_code == _OTHER_WAY:
        raise GuestRefused(
            f"{target.path} did not arrive completely, so nothing was replaced", why=error_message(output) or None
        )
    if output.exit_code != 0:
        raise failure(output, f"Writing {target.path}")


async def adjust(transport: Transport, path: str, *, owner: str | None, mode: str | None) -> None:
    output = await transport.run(shell_script(_ADJUST, path, owner or "", mode or ""))
    if output.exit_code != 0:
        raise failure(output, f"Setting owner and mode of {path}")


async def discard(transport: Transport, path: str) -> None:
    await transport.run(shell_script('rm -f -- "$1"', path))


def _kept_group(owner: str | None, old: Entry | None) -> str | None:
    """The missing half of `user:group` stays as it was."""
    if owner is None or old is None:
        return owner
    user, _, group = owner.partition(":")
    return f"{user or old.owner}:{group or old.group}"
