"""The endpoints of a section file: list, read, create, update and delete."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pve_simulator.cluster.config_files import Section, SectionFile, changing, options_of
from pve_simulator.http.refusals import Refusal, existing, failure
from pve_simulator.http.routing import Call, route


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
    taken = ""  # with {name} and other values of the path
    missing: Mapping[str, str] = {}  # by verb; without a text, a missing section is not an error

    def __init__(self) -> None:
        one = f"{self.path}/{{{self.key}}}"
        route(f"GET {self.path}")(self.list)
        route(f"POST {one if self.named_in_path else self.path}")(self.create)
        route(f"GET {one}")(self.read)
        route(f"PUT {one}")(self.update)
        route(f"DELETE {one}")(self.delete)

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
        given = None if self.locks_early else self.new_section(call)
        with self.lock(call, "create"):
            if name in self.all(call):
                raise self.duplicate_error(call, name)
            given = given or self.new_section(call)
            self.check(call, name, given, None)
            self.keep(call, name, given)

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
        return failure(self.taken.format(**{**call.values, "name": name}))

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
