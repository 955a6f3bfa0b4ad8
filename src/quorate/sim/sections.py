"""Objects of PVE's section files (realms, zones, metric servers …): which options a type has, and their changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quorate.sim.config_files import check_digest, digest_of, split_list, stored
from quorate.sim.refusals import failure

Section = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SectionType:
    """The options of one type of section: those it needs, those it may have, those that never change."""

    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        return self.required | self.optional | self.fixed


def section_type(required: str = "", optional: str = "", fixed: str = "") -> SectionType:
    """A type from names separated by blanks."""
    return SectionType(frozenset(required.split()), frozenset(optional.split()), frozenset(fixed.split()))


@dataclass(slots=True)
class SectionFile:
    """One file: its sections by id, in the order they were made."""

    types: Mapping[str, SectionType]
    sections: dict[str, Section] = field(default_factory=dict)

    def digest(self) -> str:
        return digest_of({"id": name, **section} for name, section in self.sections.items())

    def new_section(self, kind: str, options: Mapping[str, Any]) -> Section:
        """A section of these options, or PVE's complaint about what is missing or does not belong there."""
        known = self.types[kind]
        self._refuse_foreign(known, options)
        for name in sorted(known.required):
            if name not in options:
                raise failure(f"missing value for required option '{name}'")
        return {"type": kind, **{name: stored(value) for name, value in options.items()}}

    def change(self, section: Section, options: Mapping[str, Any], delete: str | None = None) -> None:
        """Set options of a section and remove others."""
        known = self.types[section["type"]]
        self._refuse_foreign(known, options)
        for name in sorted(known.fixed & options.keys()):
            if options[name] != section.get(name):
                raise failure(f"can't change value of fixed parameter '{name}'")
        unwanted = split_list(delete)
        for name in unwanted:
            self._refuse_deletion(known, options, name)
        for name in unwanted:
            section.pop(name, None)
        section.update({name: stored(value) for name, value in options.items()})

    def check_digest(self, given: str | None) -> None:
        check_digest(self.digest(), given)

    @staticmethod
    def _refuse_foreign(known: SectionType, options: Mapping[str, Any]) -> None:
        for name in options:
            if name not in known.all:
                raise failure(f"unexpected property '{name}'")

    @staticmethod
    def _refuse_deletion(known: SectionType, options: Mapping[str, Any], name: str) -> None:
        if name not in known.all:
            raise failure(f"no such option '{name}'")
        if name in known.required:
            raise failure(f"unable to delete required option '{name}'")
        if name in known.fixed:
            raise failure(f"unable to delete fixed option '{name}'")
        if name in options:
            raise failure(f"cannot set and delete property '{name}' at the same time!")


def options_of(params: Mapping[str, Any], *without: str) -> Section:
    """The parameters of a call that are options of the section."""
    return {name: value for name, value in params.items() if name not in without}
