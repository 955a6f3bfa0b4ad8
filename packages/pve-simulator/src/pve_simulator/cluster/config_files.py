"""PVE's configuration files: digests, lock errors, section files, and the endpoints of a section file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import Refusal, existing, failure
from pve_simulator.http.routing import Call, route

EMPTY_DIGEST = hashlib.sha1(b"", usedforsecurity=False).hexdigest()
MODIFIED = "detected modified configuration - file changed by other user? Try again."


def encode_value(value: Any) -> Any:
    """A parameter as the file stores it and the API shows it: booleans become numbers."""
    return int(value) if isinstance(value, bool) else value


def written_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a section file keeps: PVE writes neither empty texts nor a `disable` that is off."""
    return {
        name: value for name, value in options.items() if value != "" and not (name == "disable" and value in (0, "0"))
    }


def digest_of(entries: Iterable[Mapping[str, Any]]) -> str:
    """The digest of a list of settings; for none, that of an empty file."""
    lines = [f"{key}:{entry[key]}\n" for entry in entries for key in sorted(entry)]
    return hashlib.sha1("".join(lines).encode(), usedforsecurity=False).hexdigest()


def check_digest(current: str, expected: str | None) -> None:
    """Refuse a change if the file was modified since the caller read it."""
    if expected and expected != current:
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
        return {"type": kind, **written_options({name: encode_value(value) for name, value in options.items()})}

    def change(self, section: Section, options: Mapping[str, Any], delete: str | None = None) -> None:
        """Set options of a section and remove others."""
        unwanted = split_list(delete)
        self.types[section["type"]].check_change(options, unwanted)
        for name in unwanted:
            section.pop(name, None)
        section.update({name: encode_value(value) for name, value in options.items()})
        kept = written_options(section)
        for name in section.keys() - kept.keys():
            del section[name]

    def check_digest(self, expected: str | None) -> None:
        check_digest(self.digest(), expected)


def options_of(params: Mapping[str, Any], *without: str) -> Section:
    """The parameters of a call that are options of the section."""
    return {name: value for name, value in params.items() if name not in without}


class Sections:
    """The endpoints below a path. A subclass names the file and what is special about its sections."""

    path = ""
    key = "id"  # the parameter with the name of a section
    kind: str | None = None  # the type of all sections, if the caller does not name one
    kind_key = "type"
    named_in_path = False  # whether a new section's name is part of the path
    no_options: tuple[str, ...] = ("digest", "delete")
    acl = ""  # the path on which one of the readers' privileges makes a section visible
    readers: tuple[str, ...] = ()
    failing = ""  # prefix of refusals under the file's lock, with {verb}
    locks_early = False  # whether new options are also checked under the lock
    duplicate = ""  # with {name} and other values of the path
    missing: Mapping[str, str] = {}  # by verb; without a text, a missing section is not an error

    def __init__(self) -> None:
        section_path = f"{self.path}/{{{self.key}}}"
        route(f"GET {self.path}")(self.list)
        route(f"POST {section_path if self.named_in_path else self.path}")(self.create)
        route(f"GET {section_path}")(self.read)
        route(f"PUT {section_path}")(self.update)
        route(f"DELETE {section_path}")(self.delete)

    def file(self, call: Call) -> SectionFile:
        raise NotImplementedError

    def list(self, call: Call) -> Any:
        kind = call.params.get("type")
        return [
            self.row(call, name, section)
            for name, section in self.select_sections(call).items()
            if kind in (None, section.get("type")) and self.visible(call, name, section)
        ]

    def read(self, call: Call) -> Any:
        name = self.name(call)
        return self.row(
            call, name, existing(self.select_sections(call).get(name), self.missing_error(call, "read", name))
        )

    def create(self, call: Call) -> None:
        name = self.name(call)
        section = None if self.locks_early else self.new_section(call)
        with self.lock(call, "create"):
            if name in self.all(call):
                raise self.duplicate_error(call, name)
            section = section or self.new_section(call)
            self.check(call, name, section, None)
            self.keep(call, name, section)

    def update(self, call: Call) -> None:
        name, file = self.name(call), self.file(call)
        with self.lock(call, "update"):
            file.check_digest(call.params.get("digest"))
            before = existing(self.all(call).get(name), self.missing_error(call, "update", name))
            changed, delete = dict(before), call.params.get("delete")
            file.change(changed, self.options(call), ",".join(delete) if isinstance(delete, list) else delete)
            self.check(call, name, changed, before)
            self.keep(call, name, changed)

    def delete(self, call: Call) -> None:
        name = self.name(call)
        with self.lock(call, "delete"):
            if name not in self.all(call) and "delete" in self.missing:
                raise self.missing_error(call, "delete", name)
            self.check_unused(call, name)
            self.file(call).sections.pop(name, None)

    def name(self, call: Call) -> str:
        return str(call.params[self.key])

    def all(self, call: Call) -> Mapping[str, Section]:
        """The sections that can be changed; some files have a built-in one."""
        return self.file(call).sections

    def select_sections(self, call: Call) -> Mapping[str, Section]:
        """The sections to list."""
        return self.all(call)

    def visible(self, call: Call, name: str, _section: Section) -> bool:
        return not self.readers or call.allowed(self.acl.format(name=name), *self.readers)

    def row(self, call: Call, name: str, section: Section) -> Section:
        return {self.key: name, **section, "digest": self.file(call).digest()}

    def options(self, call: Call) -> Section:
        return options_of(call.params, self.key, *self.no_options)

    def new_section(self, call: Call) -> Section:
        """A new section from the parameters."""
        return self.file(call).new_section(
            self.kind or call.params[self.kind_key], options_of(self.options(call), self.kind_key)
        )

    def lock(self, _call: Call, verb: str) -> AbstractContextManager[Any]:
        return changing(self.failing.format(verb=verb)) if self.failing else nullcontext()

    def duplicate_error(self, call: Call, name: str) -> Refusal:
        return failure(self.duplicate.format(**{**call.values, "name": name}))

    def missing_error(self, call: Call, verb: str, name: str) -> Refusal:
        return failure(self.missing.get(verb, "").format(**{**call.values, "name": name}))

    def check(self, call: Call, name: str, section: Section, before: Section | None) -> None:
        """Refuse an invalid section; `before` is its previous state."""

    def check_unused(self, call: Call, name: str) -> None:
        """Refuse to delete a section in use."""

    def keep(self, call: Call, name: str, section: Section) -> None:
        self.file(call).sections[name] = section


def texts(**by_verb: str) -> Mapping[str, str]:
    """PVE's text for a missing section."""
    return by_verb


def always(text: str) -> Mapping[str, str]:
    """The same text for all verbs."""
    return texts(read=text, update=text, delete=text)
