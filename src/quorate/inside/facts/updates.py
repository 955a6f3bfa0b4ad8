"""Pending updates, as far as the machine's own package lists know them."""

from __future__ import annotations

import re

from quorate.inside.facts.model import Updates
from quorate.inside.facts.parsing import name, number, rows
from quorate.inside.facts.script import Answers

_APT = re.compile(r"^Inst (?P<package>\S+) (?:\[(?P<old>[^\]]*)\] )?\((?P<new>\S+) (?P<origin>.*)\)", re.M)
_APK = re.compile(r"^(?P<package>\S+)-(?P<old>\d\S*)\s+<\s+(?P<new>\S+)", re.M)
_DNF = re.compile(r"^(?P<package>\S+\.\S+)\s+(?P<new>\d\S*)\s+\S+\s*$", re.M)
_ARROW = re.compile(r"^(?P<package>\S+) (?:- )?(?P<old>\S+) (?:->|-) (?P<new>\S+)", re.M)
_READERS = {"apt": _APT, "apk": _APK, "dnf": _DNF, "pacman": _ARROW, "opkg": _ARROW}


MANAGERS = tuple(_READERS)


def updates(answers: Answers) -> Updates | None:
    """None only if nothing at all could be asked."""
    manager = next((one for one in _READERS if one in answers.texts and one not in answers.late), None)
    restart = name(answers.get("restart")) or ""
    if manager is None:
        return Updates(restart=restart) if "restart" in answers.texts else None
    found = parse_updates(manager, answers.get(manager))
    safe = sum(security for *_, security in found) if manager == "apt" else None
    age = next((number(words[0]) for words in rows(answers.get("lists_age"))), None)
    return Updates(manager, len(found), safe, age, restart)


def parse_updates(manager: str, text: str) -> list[tuple[str, str, str, bool]]:
    """Package, old and new version, and whether the update is for security, from what the manager prints."""
    return [
        (match["package"], _group(match, "old"), match["new"], "security" in _group(match, "origin").lower())
        for match in _READERS[manager].finditer(text)
    ]


def _group(match: re.Match[str], group: str) -> str:
    return (match.groupdict().get(group) or "").strip()
