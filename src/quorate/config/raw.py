"""Raw values by setting (`address`, `token`, ...): every source is converted to this shape."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quorate.config.folders import home
from quorate.config.names import CLUSTER, JSON_KEYS, is_of_host_family


class Rank(enum.IntEnum):
    """Precedence: the higher rank wins."""

    DOTENV = 1
    TOML = 2
    ENVIRONMENT = 3
    ARGUMENTS = 4


@dataclass(frozen=True, slots=True)
class Source:
    """One source of settings."""

    rank: Rank
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    suffix: str = ""
    """Names the source in messages, as in `PROXMOX_PORT in .env`."""
    file: Path | None = None

    def path(self, text: str) -> Path:
        """A relative path starts from the file it is written in, otherwise from the current directory."""
        if text == "~" or text.startswith("~/"):
            return home(self.variables) / text[2:]
        return (self.file.parent if self.file else Path.cwd()) / text


@dataclass(frozen=True, slots=True)
class RawSetting:
    """One spelling of a setting with its value. The value may be a secret, so it is not in the repr."""

    spelling: str
    value: object = field(repr=False)
    source: Source

    @property
    def label(self) -> str:
        return self.spelling + self.source.suffix

    @property
    def rank(self) -> Rank:
        return self.source.rank

    def sibling(self, setting: str) -> str:
        """The name of another setting in the family of names that this operator uses."""
        if self.source.file is not None and self.source.file.suffix == ".json":
            return JSON_KEYS[setting] + self.source.suffix
        names = CLUSTER[setting].keys if self.rank is Rank.TOML else CLUSTER[setting].variables
        of_host = is_of_host_family(self.spelling, setting) and setting != "user"
        return names[-1 if of_host else 0] + self.source.suffix


RawSettings = dict[str, list[RawSetting]]


def merge(*strongest_first: RawSettings) -> RawSettings:
    """Take each setting from the first source that has it, in any spelling."""
    together: RawSettings = {}
    for found in strongest_first:
        for setting, givens in found.items():
            together.setdefault(setting, givens)
    return together


def highest_rank(givens: Iterable[RawSetting]) -> int:
    return max((given.rank for given in givens), default=0)


def strongest(givens: list[RawSetting]) -> list[RawSetting]:
    return [given for given in givens if given.rank == highest_rank(givens)]
