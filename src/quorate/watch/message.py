"""How news reads: one title and a few lines, the same on every channel."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.hints import FINDING_LIST
from quorate.operations.units import moment
from quorate.pipeline.sanitization import one_line
from quorate.state.outbox import Notice, Parcel

MOST_LISTED = 20
LONGEST_LINE = 500
_WORDS = {"opened": "", "worse": "Worse: ", "again": "Still open: ", "resolved": "Resolved: "}
_REPEAT = "(This may repeat an earlier message: it is not known whether that one arrived.)"
_ORDER = ("critical", "warning", "unchecked", "info")


@dataclass(frozen=True, slots=True)
class Message:
    id: str
    title: str
    body: str
    severity: str
    """The worst of its news; `info` if everything in it is resolved."""
    link: str
    notices: tuple[Notice, ...]

    @property
    def text(self) -> str:
        return "\n".join(part for part in (self.title, self.body) if part)


def compose(parcel: Parcel, *, mark_repeat: bool) -> Message:
    """`mark_repeat`: the receiver cannot recognize a repetition, so the text says that it may be one."""
    notices = parcel.notices
    open_ones = [one for one in notices if one.event != "resolved"]
    severity = min((one.severity for one in open_ones), key=_ORDER.index, default="info")
    title, body = _single(notices[0]) if len(notices) == 1 else _digest(notices)
    if parcel.unsure and mark_repeat:
        body = f"{body}\n{_REPEAT}"
    links = {one.link for one in notices if one.link}
    return Message(parcel.id, title, body, severity, links.pop() if len(links) == 1 else "", tuple(notices))


def _single(notice: Notice) -> tuple[str, str]:
    title = f"{_label(notice)} {_WORDS.get(notice.event, '')}{_line(notice.what)}"
    lines = [notice.means if notice.event != "resolved" else "", f"Next: {_line(notice.next)}" if notice.next else ""]
    lines += [notice.link, f"Finding {notice.finding}, since {moment(notice.opened)}" if notice.opened else ""]
    return title, "\n".join(line for line in lines if line)


def _digest(notices: list[Notice]) -> tuple[str, str]:
    ordered = sorted(notices, key=lambda one: (one.event == "resolved", _ORDER.index(one.severity)))
    open_ones = sum(one.event != "resolved" for one in notices)
    title = f"[Quorate] {open_ones} findings, {len(notices) - open_ones} resolved"
    lines = [f"- {_label(one)} {_WORDS.get(one.event, '')}{_line(one.what)}" for one in ordered[:MOST_LISTED]]
    if len(ordered) > MOST_LISTED:
        lines.append(f"- and {len(ordered) - MOST_LISTED} more: see {FINDING_LIST}")
    return title, "\n".join([*lines, *dict.fromkeys(one.link for one in ordered if one.link)])


def _label(notice: Notice) -> str:
    return f"[{notice.severity} {notice.cluster}]" if notice.event != "resolved" else f"[{notice.cluster}]"


def _line(text: str) -> str:
    """Names of guests and hosts are text of strangers: one line, nothing invisible."""
    return one_line(text)[:LONGEST_LINE]
