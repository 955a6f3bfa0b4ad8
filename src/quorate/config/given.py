"""What was found, by meaning (`address`, `token`, ...): every source is turned into this one shape."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quorate.config.folders import home
from quorate.config.spellings import CLUSTER, is_of_host_family


class Rank(enum.IntEnum):
    """The stronger source has the higher rank."""

    TOML = 1
    DOTENV = 2
    ENVIRONMENT = 3
    ARGUMENTS = 4


@dataclass(frozen=True, slots=True)
class Source:
    """One place that settings come from."""

    rank: Rank
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    suffix: str = ""
    """Says in messages where a setting stands, as in `PROXMOX_PORT in .env`."""
    file: Path | None = None

    def path(self, text: str) -> Path:
        """A relative path is meant from the file it is written in, else from the current directory."""
        if text == "~" or text.startswith("~/"):
            return home(self.variables) / text[2:]
        return (self.file.parent if self.file else Path.cwd()) / text


@dataclass(frozen=True, slots=True)
class Given:
    """One spelling of a setting with the value found. The value may be a secret: it is not in the repr."""

    spelling: str
    value: object = field(repr=False)
    source: Source

    @property
    def label(self) -> str:
        return self.spelling + self.source.suffix

    @property
    def rank(self) -> Rank:
        return self.source.rank

    def neighbour(self, setting: str) -> str:
        """What another setting is called in the family of names this operator uses."""
        names = CLUSTER[setting].keys if self.rank is Rank.TOML else CLUSTER[setting].variables
        return names[-1 if is_of_host_family(self.spelling) else 0] + self.source.suffix


Found = dict[str, list[Given]]


def merged(*strongest_first: Found) -> Found:
    """A setting is taken from the strongest source that has it, in whichever spelling."""
    together: Found = {}
    for found in strongest_first:
        for setting, givens in found.items():
            together.setdefault(setting, givens)
    return together


def highest_rank(givens: Iterable[Given]) -> int:
    return max((given.rank for given in givens), default=0)


def strongest(givens: list[Given]) -> list[Given]:
    return [given for given in givens if given.rank == highest_rank(givens)]
