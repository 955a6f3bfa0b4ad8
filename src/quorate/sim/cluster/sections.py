"""The endpoints of a section file: list, read, create, change and delete, alike for all files but for their words."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from quorate.sim.cluster.config_files import Section, SectionFile, changing, options_of
from quorate.sim.http.refusals import Refusal, existing, failure
from quorate.sim.http.routing import Call, route


class Sections:
    """The endpoints below a path. A subclass says where the file is and what is special about its sections."""

    path = ""
    key = "id"  # the parameter with the name of a section
    kind: str | None = None  # the type of all sections, if the caller does not name one
    kind_key = "type"
    named_in_path = False  # whether a new section's name is part of the path
    no_options: tuple[str, ...] = ("digest", "delete")
    acl = ""  # where one of the readers' privileges lets see a section of the list
    readers: tuple[str, ...] = ()
    failing = ""  # how PVE begins what it refuses under the file's lock, with {verb}
    locks_early = False  # whether new options are looked at under the lock as well
    taken = ""  # with {name} and what else is in the path
    missing: Mapping[str, str] = {}  # by verb; without a text nobody minds

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
        """The sections that can be changed; some files have one that is always there."""
        return self.file(call).sections

    def select_sections(self, call: Call) -> Mapping[str, Section]:
        """The sections as they are listed."""
        return self.all(call)

    def visible(self, call: Call, name: str, _section: Section) -> bool:
        return not self.readers or call.allowed(self.acl.format(name=name), *self.readers)

    def row(self, call: Call, name: str, section: Section) -> Section:
        return {self.key: name, **section, "digest": self.file(call).digest()}

    def options(self, call: Call) -> Section:
        return options_of(call.params, self.key, *self.no_options)

    def new_section(self, call: Call) -> Section:
        """A new section of what the caller gives."""
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
        """Refuse a section that does not fit; `before` is what it was."""

    def check_unused(self, call: Call, name: str) -> None:
        """Refuse to delete what something else needs."""

    def keep(self, call: Call, name: str, section: Section) -> None:
        self.file(call).sections[name] = section


def texts(**by_verb: str) -> Mapping[str, str]:
    """What PVE says about a missing section."""
    return by_verb


def always(text: str) -> Mapping[str, str]:
    """The same for all verbs."""
    return texts(read=text, update=text, delete=text)
