"""Logs of a machine: its journal, or a file; by unit, time and pattern, always bounded."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass

from quorate.hints import NAMED, Advice, see, tools
from quorate.inside.entries import guest_path
from quorate.inside.posix_files import failure, shell_script
from quorate.inside.transport import Transport, require_service, unit_name
from quorate.problems import BadArgument, GuestRefused, NotFound

READ_BYTES = 1000 * 1024
"""How much of the end of a log is searched: less than what a transport keeps of an output by default."""
_HEAD = 4096
"""More than the first line, with a path in it, needs."""
_NO_LOG, _NO_UNIT = 20, 21

# $1 unit or nothing, $2 and $3 seconds since 1970 or nothing, $4 file or nothing, $5 most lines, $6 most bytes.
# The first line says where the rest is from, and the machine's time zone. The journal is read from its end, because
# systemd 252 counts lines from the oldest if there is a time.
_READ = f"""
from() {{ printf '%s\\t%s\\n' "$1" "$(date +%z)"; }}
if [ -n "$4" ]; then
  [ -f "$4" ] || {{ ls -ld -- "$4" >&2; exit {_NO_LOG}; }}
  from "$4"; exec tail -c "$6" -- "$4"
fi
if command -v journalctl >/dev/null && {{ [ -d /run/systemd/system ] || [ -d /var/log/journal ]; }}; then
  from journal
  set -- "$1" "$2" "$3" "$5" "$6" -q --no-pager -o short-iso
  [ -z "$1" ] || set -- "$@" -u "$1"
  [ -z "$2" ] || set -- "$@" --since "@$2"
  [ -z "$3" ] || set -- "$@" --until "@$3"
  q_lines=$4; q_bytes=$5; shift 5
  journalctl "$@" -r -n "$q_lines" | head -c "$q_bytes"; exit 0
fi
for at in /var/log/syslog /var/log/messages /var/log/system.log; do
  [ -r "$at" ] || continue
  from "$at"; exec tail -c "$6" -- "$at"
done
if command -v logread >/dev/null && logread >/dev/null 2>&1; then from logread; logread | tail -c "$6"; exit 0; fi
exit {_NO_LOG}
"""
_LINES_WHEN_SEARCHED = 20_000

_MONTHS = {name: number for number, name in enumerate(
    ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1)}  # fmt: skip
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,]\d+)?\s?(Z|[+-]\d\d:?\d\d)?")
_SYSLOG = re.compile(r"\b([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)")
_WEB = re.compile(r"\[(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-]\d{4})\]")


@dataclass(frozen=True, slots=True)
class Excerpt:
    source: str
    """`journal`, `logread`, or the path of the file."""
    lines: list[str]
    cut: bool
    """Whether there are more lines that match, further back."""
    unread: bool = False
    """Whether the log reaches further back than what was searched."""


async def read_log(
    transport: Transport,
    *,
    unit: str | None = None,
    path: str | None = None,
    since: float | None = None,
    until: float | None = None,
    pattern: str | None = None,
    lines: int = 100,
    now: float,
) -> Excerpt:
    """The last lines that match. Raises a Problem if there is no such log, or if its lines have no times."""
    if transport.system == "windows":
        raise GuestRefused("The logs of Windows are read by commands only", next_step="Use Get-WinEvent")
    expression = _compile_pattern(pattern)
    name = unit_name(require_service(unit, "posix")) if unit else ""
    file = guest_path(path, "posix") if path else ""
    count = str(_LINES_WHEN_SEARCHED if expression else lines + 1)
    most = READ_BYTES
    arguments = (name, _whole(since), _whole(until), file, count)
    output = await transport.run(shell_script(_READ, *arguments, str(most)), keep=most + _HEAD)
    if output.stdout_cut:  # of what is too long for the transport, the beginning is kept; the end is wanted
        most = max(len(output.stdout) - _HEAD, _HEAD)
        output = await transport.run(shell_script(_READ, *arguments, str(most)), keep=most + _HEAD)
    if output.exit_code == _NO_LOG or not output.stdout:
        raise _missing(path) if output.exit_code == _NO_LOG else failure(output, "Reading the log")
    head, _, body = output.stdout.partition(b"\n")
    source, _, zone = head.decode("utf-8", "replace").partition("\t")
    matching = body.decode("utf-8", "replace").splitlines()
    unread = len(body) >= most or (expression is not None and len(matching) >= _LINES_WHEN_SEARCHED)
    if source == "journal":
        matching = _oldest_first(matching)
    else:
        oldest = next((at for line in matching if (at := parse_timestamp(line, zone.strip(), now)) is not None), None)
        unread = len(body) >= most and (since is None or oldest is None or oldest >= since)
        if unit:
            short = unit.removesuffix(".service")
            matching = [line for line in matching if short in line]
        if since is not None or until is not None:
            matching = _within(matching, since, until, zone.strip(), now, source)
    if expression is not None:
        matching = [line for line in matching if expression.search(line)]
    return Excerpt(source, matching[-lines:], len(matching) > lines, unread)


def _oldest_first(lines: list[str]) -> list[str]:
    """Entries in order of time. Further lines of an entry are indented and follow its first."""
    entries: list[list[str]] = []
    for line in lines:
        if entries and line[:1].isspace():
            entries[-1].append(line)
        else:
            entries.append([line])
    return [line for entry in reversed(entries) for line in entry]


def _whole(moment: float | None) -> str:
    return "" if moment is None else str(int(moment))


def _compile_pattern(pattern: str | None) -> re.Pattern[str] | None:
    if not pattern:
        return None
    if len(pattern) > 200 or re.search(r"[+*}]\)?[+*{]", pattern):  # some of these take ages to search for
        raise BadArgument("The pattern is too complicated", next_step="Use a simpler regular expression")
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise BadArgument(f"{pattern!r} is not a regular expression", why=str(error)) from None


def _missing(path: str | None) -> NotFound:
    if path:
        return NotFound(
            f"There is no log file {path}", next_step=see("See what exists", tools.host_file(path="/var/log"))
        )
    return NotFound(
        "This machine keeps no journal and no system log that could be read",
        next_step=Advice("Give {path}, the file of the log", tools.host_file(path="/var/log"), path=NAMED),
    )


def _within(
    lines: list[str], since: float | None, until: float | None, zone: str, now: float, source: str
) -> list[str]:
    """Lines of that time. One without a time, such as of a stack trace, belongs to the line before it."""
    selected, at, known = [], None, False
    for line in lines:
        if (moment := parse_timestamp(line, zone, now)) is not None:
            at, known = moment, True
        if at is not None and (since is None or at >= since) and (until is None or at <= until):
            selected.append(line)
    if lines and not known:
        raise BadArgument(
            f"The lines of {source} have no time that is understood, so since and until cannot be used",
            next_step=Advice("Leave them out, and use {pattern} or {lines}", pattern=NAMED, lines=NAMED),
        )
    return selected


def parse_timestamp(line: str, zone: str, now: float) -> float | None:
    """When a line was written, by the time near its beginning; without a zone, in that of the machine."""
    head = line[:120]
    if match := _ISO.search(head):
        return _epoch([int(part) for part in match.groups()[:6]], match[7] or zone)
    if match := _WEB.search(head):
        day, month, year, *time, own = match.groups()
        return _epoch([int(year), _MONTHS.get(month, 0), int(day), *map(int, time)], own)
    if match := _SYSLOG.search(head):
        month, *rest = match.groups()
        year = datetime.datetime.fromtimestamp(now, datetime.UTC).year
        moment = _epoch([year, _MONTHS.get(month, 0), *map(int, rest)], zone)
        if moment is not None and moment > now + 86_400:  # it was written last year
            moment = _epoch([year - 1, _MONTHS[month], *map(int, rest)], zone)
        return moment
    return None


def _epoch(parts: list[int], zone: str) -> float | None:
    sign = re.fullmatch(r"([+-])(\d\d):?(\d\d)", zone or "")
    offset = 0 if sign is None else (int(sign[2]) * 3600 + int(sign[3]) * 60) * (-1 if sign[1] == "-" else 1)
    try:
        return datetime.datetime(*parts, tzinfo=datetime.UTC).timestamp() - offset  # type: ignore[misc,arg-type]
    except ValueError:
        return None
