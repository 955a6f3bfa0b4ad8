"""A short summary of the facts about a host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quorate.hints import Sentence
from quorate.operations.units import duration, percent, shortlist, size

if TYPE_CHECKING:
    from quorate.inside.facts import model as of

MOST_NAMES = 40
MOST_LINES = 60


def summary(found: of.Facts) -> dict[str, Any]:
    """Each section in a line or a list of lines; unknown sections are listed."""
    sections = {}
    for section, words in _WORDS.items():
        value = getattr(found, section)
        if value is not None:
            sections[section] = words(value)
    return {**sections, **({"not_known": found.not_known} if found.not_known else {})}


def _hardware(one: of.Hardware) -> str:
    virtual = {None: "", "none": "bare metal"}.get(one.virtualisation, f"virtual ({one.virtualisation})")
    return _join_words(" ".join(filter(None, (one.vendor, one.model))), virtual)


def _system(one: of.System) -> dict[str, str]:
    named = _join_words(one.name or one.id, f"{one.family or ''} {one.kernel or ''}".strip(), one.architecture)
    return {"name": named, **({"hostname": one.hostname} if one.hostname else {})}


def _cpu(one: of.Cpu) -> str:
    counts = (("sockets", one.sockets), ("cores", one.cores), ("threads", one.threads))
    return _join_words(one.model, *(f"{count} {noun if count > 1 else noun[:-1]}" for noun, count in counts if count))


def _memory(one: of.Memory) -> str:
    free = f"{size(one.available)} available" if one.available is not None else ""
    swap = f"swap {size(one.swap_total)}, {size(one.swap_used or 0)} used" if one.swap_total else ""
    return _join_words(size(one.total) if one.total is not None else "", free, swap)


def _disk(one: of.Disk) -> str:
    kind = {True: "rotating", False: "solid state"}.get(one.rotational, "") if one.rotational is not None else ""
    return _join_words(one.name, size(one.size) if one.size is not None else "", one.model, kind)


def _filesystem(one: of.Filesystem) -> str:
    full = (
        f"{size(one.used)}/{size(one.size)} {percent(one.used / one.size)}" if one.size and one.used is not None else ""
    )
    return _join_words(one.mount, full, one.type, one.device)


def _network(one: of.Network) -> dict[str, Any]:
    cards = [
        _join_words(
            card.name, card.state, " ".join(card.addresses), card.mac, f"{card.speed} Mbit/s" if card.speed else ""
        )
        for card in one.interfaces
    ]
    return {"interfaces": _limit_lines(cards), "gateways": list(one.gateways), "dns": list(one.dns)}


def _port(one: of.Port) -> str:
    where = "" if one.address == "*" else f"{one.address} "
    return f"{one.protocol} {where}{one.port}" + (f" {one.process}" if one.process else "")


def _guests(listed: Sequence[of.Container] | Sequence[of.Vm]) -> dict[str, Any]:
    """How many by state, and their names."""
    states: dict[str, int] = {}
    for one in listed:
        states[one.state or "not known"] = states.get(one.state or "not known", 0) + 1
    names = shortlist([one.name for one in listed], MOST_NAMES)
    return {"count": len(listed), **({"states": states, "names": names} if listed else {})}


def _services(one: of.Services) -> dict[str, Any]:
    return {
        "manager": one.manager,
        "running": f"{len(one.running)}: {shortlist(one.running, MOST_NAMES)}",
        "failed": list(one.failed[:MOST_NAMES]),
    }


def _uptime(one: of.Uptime) -> str:
    load = " ".join(f"{average:g}" for average in one.load)
    return _join_words(duration(one.seconds) if one.seconds is not None else "", f"load {load}" if load else "")


def _time(one: of.Time) -> str:
    state = {True: "synchronised", False: "not synchronised", None: ""}[one.synchronised]
    return _join_words(one.zone, state)


def _lines(words: Callable[[Any], str]) -> Callable[[Iterable[Any]], list[str | Sentence]]:
    return lambda listed: _limit_lines([words(one) for one in listed])


def _limit_lines(lines: list[str]) -> list[str | Sentence]:
    more = len(lines) - MOST_LINES
    if more <= 0:
        return [*lines]
    return [*lines[:MOST_LINES], Sentence(f"and {more} more; {{detail}} shows them", detail=True)]


def _join_words(*words: str | None) -> str:
    return ", ".join(word for word in words if word)


_WORDS: Mapping[str, Callable[[Any], Any]] = {
    "system": _system,
    "hardware": _hardware,
    "uptime": _uptime,
    "cpu": _cpu,
    "memory": _memory,
    "disks": _lines(_disk),
    "filesystems": _lines(_filesystem),
    "network": _network,
    "gpus": _lines(str),
    "usb": _lines(lambda one: one.name or one.id),
    "pci": lambda listed: f"{len(listed)} devices",
    "containers": _guests,
    "vms": _guests,
    "ports": _lines(_port),
    "services": _services,
    "users": _lines(lambda one: f"{one.name} from {one.origin}" if one.origin else one.name),
    "time": _time,
}
