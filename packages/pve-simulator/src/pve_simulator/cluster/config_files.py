"""PVE's configuration files: digests, lock errors, and section files with the options of their types."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import Refusal, failure

EMPTY_DIGEST = hashlib.sha1(b"", usedforsecurity=False).hexdigest()
MODIFIED = "detected modified configuration - file changed by other user? Try again."


def encode_value(value: Any) -> Any:
    """A parameter as the file stores it and the API shows it: booleans become numbers."""
    return int(value) if isinstance(value, bool) else value


def digest_of(entries: Iterable[Mapping[str, Any]]) -> str:
    """The digest of a list of settings; for none, that of an empty file."""
    lines = [f"{key}:{entry[key]}\n" for entry in entries for key in sorted(entry)]
    return hashlib.sha1("".join(lines).encode(), usedforsecurity=False).hexdigest()


def check_digest(current: str, given: str | None) -> None:
    """Refuse a change if the file was modified since the caller read it."""
    if given and given != current:
        raise failure(MODIFIED)


@contextmanager
def changing(what: str) -> Iterator[None]:
    """The lock around a change: every refusal inside becomes one text, with status 500 and a prefix."""
    try:
        yield
    except Refusal as refusal:
        text = refusal.message if refusal.status == 500 else f"{refusal.status} {refusal.message}"
        for name, error in (refusal.errors or {}).items():
            text += f"{name}: {error}\n"
        raise Refusal(500, f"{what}: {text}") from refusal


Section = dict[str, Any]

UNDEFINED_TYPE = "cannot lookup undefined type! at /usr/share/perl5/PVE/SectionConfig.pm line 365."
"""The Perl error for a missing section."""


@dataclass(frozen=True, slots=True)
class SectionType:
    """The options of one section type: required, optional and fixed."""

    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()

    def check_new(self, options: Mapping[str, Any]) -> None:
        """Refuse unexpected and missing options."""
        self._refuse_foreign(options, "unexpected property")
        for name in sorted(self.required - options.keys()):
            raise failure(f"missing value for required option '{name}'")

    def check_change(self, options: Mapping[str, Any], delete: Iterable[str]) -> None:
        """Refuse to change fixed options and to delete required ones."""
        self._refuse_foreign(options, "unexpected property")
        for name in sorted(self.fixed & options.keys()):
            raise failure(f"can't change value of fixed parameter '{name}'")
        self._refuse_foreign(delete, "no such option")
        for name in delete:
            for status, names in (("required", self.required), ("fixed", self.fixed)):
                if name in names:
                    raise failure(f"unable to delete {status} option '{name}'")
            if name in options:
                raise failure(f"cannot set and delete property '{name}' at the same time!")

    def _refuse_foreign(self, names: Iterable[str], complaint: str) -> None:
        for name in names:
            if name not in self.required | self.optional | self.fixed:
                raise failure(f"{complaint} '{name}'")


def section_type(required: str = "", optional: str = "", fixed: str = "") -> SectionType:
    """A section type from space-separated option names."""
    return SectionType(frozenset(required.split()), frozenset(optional.split()), frozenset(fixed.split()))


@dataclass(slots=True)
class SectionFile:
    """One file: its sections by id, in order of creation."""

    types: Mapping[str, SectionType]
    sections: dict[str, Section] = field(default_factory=dict)

    def digest(self) -> str:
        return digest_of({"id": name, **section} for name, section in self.sections.items())

    def new_section(self, kind: str, options: Mapping[str, Any]) -> Section:
        """A section with these options, or PVE's refusal of missing and unexpected ones."""
        self.types[kind].check_new(options)
        return {"type": kind, **{name: encode_value(value) for name, value in options.items()}}

    def change(self, section: Section, options: Mapping[str, Any], delete: str | None = None) -> None:
        """Set options of a section and remove others."""
        unwanted = split_list(delete)
        self.types[section["type"]].check_change(options, unwanted)
        for name in unwanted:
            section.pop(name, None)
        section.update({name: encode_value(value) for name, value in options.items()})

    def check_digest(self, given: str | None) -> None:
        check_digest(self.digest(), given)


def options_of(params: Mapping[str, Any], *without: str) -> Section:
    """The parameters of a call that are options of the section."""
    return {name: value for name, value in params.items() if name not in without}
