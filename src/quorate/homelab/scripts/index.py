"""The index of community scripts: the package's own, or the one that the operator has fetched since."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from quorate.homelab.scripts.script import Category, Script
from quorate.problems import BadArgument, NotConfigured, NotFound

REFRESH = "`quorate scripts refresh` fetches today's"


class Index(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    scripts: tuple[Script, ...]
    taken: float | None = None
    """When it was fetched; None for the package's own."""
    source: str = ""
    commit: str = ""

    def named(self, name: str, category: Category | None = None) -> Script:
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
                next_step="Say which by its category",
            )
        if not found:
            near = difflib.get_close_matches(wanted, [one.slug for one in self.scripts], n=3)
            raise NotFound(
                f"The index has no script {name!r}" + (f" of the category {category}" if category else ""),
                why=f"Close to it are {', '.join(near)}" if near else None,
                next_step=f"script_search finds scripts by words; {REFRESH} index",
            )
        return found[0]

    def matching(self, words: str, category: Category | None = None) -> list[Script]:
        """Those that have all the words somewhere, best first."""
        wanted = words.lower().split()
        ranked = [
            (rank, one.slug, one)
            for one in self.scripts
            if category in (None, one.category) and (rank := _rank(one, wanted)) is not None
        ]
        return [one for *_, one in sorted(ranked, key=lambda entry: entry[:2])]


def _rank(script: Script, words: Iterable[str]) -> int | None:
    """How far from the name the words are found, altogether; None if one is found nowhere."""
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
    """The one that was fetched, else the package's own."""
    try:
        data = fetched.read_bytes()
    except FileNotFoundError:
        return packaged()
    except OSError as error:
        raise NotConfigured(f"The index {fetched} cannot be read", why=error.strerror, next_step=REFRESH) from None
    try:
        return msgspec.json.decode(data, type=Index)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotConfigured(f"The index {fetched} cannot be used", why=str(error), next_step=REFRESH) from None


@cache
def packaged() -> Index:
    return msgspec.json.decode((resources.files(__package__) / "index.json").read_bytes(), type=Index)
