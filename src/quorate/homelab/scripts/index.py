"""The index of community scripts: the packaged one, or a newer one that the operator downloaded."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from quorate.documents import Unreadable, read_json
from quorate.hints import SCRIPT_SEARCH, Advice
from quorate.homelab.scripts.script import Category, Script
from quorate.problems import BadArgument, NotConfigured, NotFound
from quorate.suggestions import similar

REFRESH = "Download the current index with `quorate scripts refresh`"


class Index(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    scripts: tuple[Script, ...]
    taken: float | None = None
    """When it was downloaded; None for the packaged one."""
    source: str = ""
    commit: str = ""

    def get(self, name: str, category: Category | None = None) -> Script:
        """By `jellyfin` or `ct/jellyfin.sh`."""
        wanted = name.strip().lower()
        found = [
            one
            for one in self.scripts
            if wanted in (one.slug.lower(), one.path.lower()) and category in (None, one.category)
        ]
        if len(found) > 1:
            raise BadArgument(
                f"There are several scripts {name!r}",
                why=f"They are {', '.join(one.path for one in found)}",
                next_step="Choose one with category",
            )
        if not found:
            near = similar(wanted, [one.slug for one in self.scripts], 3)
            raise NotFound(
                f"The index has no script {name!r}" + (f" of the category {category}" if category else ""),
                why=f"Similar names: {', '.join(near)}" if near else None,
                next_step=Advice("Search for it", SCRIPT_SEARCH).then(Advice(REFRESH)),
            )
        return found[0]

    def matching(self, words: str, category: Category | None = None) -> list[Script]:
        """Scripts that contain all the words, best first."""
        wanted = words.lower().split()
        ranked = [
            (rank, one.slug, one)
            for one in self.scripts
            if category in (None, one.category) and (rank := _rank(one, wanted)) is not None
        ]
        return [one for *_, one in sorted(ranked, key=lambda entry: entry[:2])]


def _rank(script: Script, words: Iterable[str]) -> int | None:
    """The total distance of the words from the name; None if one is missing."""
    title = f"{script.slug} {script.name}".lower()
    rest = f"{script.about} {' '.join(script.tags)} {script.os}".lower()
    places = ({script.slug.lower(), script.name.lower()}, {*re.split(r"[\s-]+", title), *script.tags}, title, rest)
    total = 0
    for word in words:
        distance = next((n for n, place in enumerate(places) if word in place), None)
        if distance is None:
            return None
        total += distance
    return total


def current(fetched: Path) -> Index:
    """The downloaded index, else the packaged one."""
    try:
        data = fetched.read_bytes()
    except FileNotFoundError:
        return load_packaged_index()
    except OSError as error:
        raise NotConfigured(f"The index {fetched} cannot be read", why=error.strerror, next_step=REFRESH) from None
    try:
        found: Index = read_json(data, Index)
        return found
    except Unreadable as fault:
        raise NotConfigured(f"The index {fetched} cannot be used", why=f"It {fault}", next_step=REFRESH) from None


@cache
def load_packaged_index() -> Index:
    return msgspec.json.decode((resources.files(__package__) / "index.json").read_bytes(), type=Index)
