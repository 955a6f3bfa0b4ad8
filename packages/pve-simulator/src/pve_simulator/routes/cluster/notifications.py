"""Notification endpoints, matchers and targets."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, Final

from pve_simulator.cluster.config_files import MODIFIED, Section, SectionFile, Sections, SectionType, options_of
from pve_simulator.http.refusals import Refusal, existing, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.storage.backup_jobs import BackupJobs
from pve_simulator.world import World

Entity = dict[str, Any]

MATCHER: Final = "matcher"
ENDPOINTS: Final = ("gotify", "sendmail", "smtp", "webhook")
# Stored separately and never shown again.
_SECRETS: Final = {"gotify": ("token",), "smtp": ("password",)}
_BUILTIN: Final[dict[str, Entity]] = {
    "mail-to-root": {
        "type": "sendmail",
        "comment": "Send mails to root@pam's email address",
        "mailto-user": ["root@pam"],
        "origin": "builtin",
    },
    "default-matcher": {
        "type": MATCHER,
        "comment": "Route all notifications to mail-to-root",
        "mode": "all",
        "target": ["mail-to-root"],
        "origin": "builtin",
    },
}


_FIELD_CONDITION = re.compile(r"(?:exact|regex):[A-Za-z0-9_][A-Za-z0-9._-]*=.*")
_SEVERITIES = ("info", "notice", "warning", "error", "unknown")
_DELETABLE: Final = {
    "gotify": "comment disable",
    "sendmail": "author comment disable from-address mailto mailto-user",
    "smtp": "author comment disable mailto mailto-user password port username",
    "webhook": "comment disable header body secret",
    MATCHER: "comment disable invert-match match-calendar match-field match-severity mode target",
}
_WHERE = "at /usr/share/perl5/PVE/API2/Cluster/Notifications.pm line 1421."
_EVENT_TYPES = ("package-updates", "fencing", "replication", "vzdump", "system-mail")
_BASE = "/cluster/notifications"


class _AnyOptions(SectionType):
    """The API has already checked the options."""

    def check_new(self, options: Mapping[str, Any]) -> None: ...

    def check_change(self, options: Mapping[str, Any], delete: Any) -> None: ...


class Notifications(SectionFile):
    """All entities by name; names are unique across kinds."""

    def __init__(self, _world: World) -> None:
        super().__init__(dict.fromkeys((*ENDPOINTS, MATCHER), _AnyOptions()), copy.deepcopy(_BUILTIN))

    def check_digest(self, expected: str | None) -> None:
        if expected and expected != self.digest():
            raise Refusal(400, f"{MODIFIED}\n")

    def of_kind(self, kind: str) -> dict[str, Section]:
        return {name: entity for name, entity in self.sections.items() if entity["type"] == kind}

    def endpoint(self, name: str) -> Section:
        endpoints = {name: entity for kind in ENDPOINTS for name, entity in self.of_kind(kind).items()}
        return existing(endpoints.get(name), Refusal(404, f"endpoint '{name}' does not exist\n"))


class _Entities(Sections):
    """The endpoints or matchers of one kind."""

    key = "name"
    locks_early = True

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.path = f"{_BASE}/matchers" if kind == MATCHER else f"{_BASE}/endpoints/{kind}"
        super().__init__()

    def file(self, call: Call) -> SectionFile:
        return call.world.part(Notifications)

    def select_sections(self, call: Call) -> Mapping[str, Section]:
        return call.world.part(Notifications).of_kind(str(self.kind))

    def list(self, call: Call) -> list[Section]:
        return [options_of(row, "digest") for row in super().list(call)]

    def row(self, call: Call, name: str, section: Section) -> Section:
        shown = options_of(super().row(call, name, section), "type", *_SECRETS.get(str(self.kind), ()))
        if self.kind == "webhook" and "secret" in shown:
            shown["secret"] = [text.split(",value=")[0] for text in shown["secret"]]
        return shown

    def new_section(self, call: Call) -> Section:
        return {"origin": "user-created", **super().new_section(call)}

    def duplicate_error(self, _call: Call, name: str) -> Refusal:
        return Refusal(400, f"Cannot create '{name}', an entity with the same name already exists\n")

    def missing_error(self, _call: Call, _verb: str, name: str) -> Refusal:
        return Refusal(404, f"{self.kind} '{name}' not found\n")

    def update(self, call: Call) -> None:
        known = [f"`{name}`" for name in _DELETABLE[str(self.kind)].split()]
        for name in call.params.get("delete", ()):
            if f"`{name}`" not in known:
                expected = " or ".join(known) if len(known) == 2 else f"one of {', '.join(known)}"
                raise failure(f"unknown variant `{name}`, expected {expected} {_WHERE}")
        self.file(call).check_digest(call.params.get("digest"))
        self._require(call)
        super().update(call)

    def delete(self, call: Call) -> None:
        """Delete an unused entity; a built-in one is reset."""
        self._require(call)
        super().delete(call)
        name = self.name(call)
        if name in _BUILTIN:
            self.keep(call, name, copy.deepcopy(_BUILTIN[name]))

    def _require(self, call: Call) -> None:
        existing(self.select_sections(call).get(self.name(call)), self.missing_error(call, "", self.name(call)))

    def check(self, call: Call, _name: str, entity: Section, before: Section | None) -> None:
        if before is not None and entity["origin"] == "builtin":
            entity["origin"] = "modified-builtin"
        if self.kind == MATCHER:
            _check_conditions(entity)
            for target in entity.get("target", ()):
                call.world.part(Notifications).endpoint(target)
        if self.kind in ("sendmail", "smtp") and not entity.get("mailto") and not entity.get("mailto-user"):
            raise Refusal(400, "must at least provide one recipient, either in mailto or in mailto-user\n")

    def check_unused(self, call: Call, name: str) -> None:
        matchers = call.world.part(Notifications).of_kind(MATCHER)
        users = [other for other, matcher in matchers.items() if name in matcher.get("target", ())]
        if users and name not in _BUILTIN:
            raise Refusal(400, f"cannot delete '{name}', referenced by: {', '.join(users)}\n")


for _kind in (*ENDPOINTS, MATCHER):
    _Entities(_kind)


def _check_conditions(matcher: Entity) -> None:
    """Conditions are parsed before they are stored; a parse error is a failure, not a bad parameter."""
    for condition in matcher.get("match-field", ()):
        if not _FIELD_CONDITION.fullmatch(condition):
            raise failure(f"could not apply filter: invalid match-field statement: {condition} {_WHERE}")
    for severities in matcher.get("match-severity", ()):
        for severity in severities.split(","):
            if severity not in _SEVERITIES:
                raise failure(f"invalid severity {severity} {_WHERE}")


@route(f"GET {_BASE}/targets")
def targets(call: Call) -> list[Entity]:
    return [
        {"type": kind, "name": name} | {key: entity[key] for key in ("origin", "comment", "disable") if key in entity}
        for kind in ENDPOINTS
        for name, entity in call.world.part(Notifications).of_kind(kind).items()
    ]


@route(f"POST {_BASE}/targets/{{name}}/test", needs_quorum=False)
def test_target(call: Call) -> None:
    """A test message would be sent here."""
    call.world.part(Notifications).endpoint(call.values["name"])


@route(f"GET {_BASE}/matcher-field-values")
def field_values(call: Call) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"field": "type", "value": name} for name in _EVENT_TYPES]
    jobs = call.world.part(BackupJobs).all() if call.allowed("/", "Sys.Audit") else {}
    rows += [{"field": "job-id", "value": name, "comment": job.get("comment")} for name, job in jobs.items()]
    return rows + [{"field": "hostname", "value": node} for node in call.world.nodes]
