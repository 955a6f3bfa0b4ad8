"""Notification targets and the matchers that lead to them. This part of PVE has its own way to say no."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from quorate.sim.config_files import MODIFIED, digest_of, stored
from quorate.sim.refusals import Refusal
from quorate.sim.world import World

Entity = dict[str, Any]

MATCHER: Final = "matcher"
ENDPOINTS: Final = ("gotify", "sendmail", "smtp", "webhook")
# Kept beside the configuration and never shown again.
_SECRETS: Final = {"gotify": ("token",), "smtp": ("password",)}
_BUILTIN: Final[dict[str, tuple[str, Entity]]] = {
    "mail-to-root": (
        "sendmail",
        {
            "comment": "Send mails to root@pam's email address",
            "mailto-user": ["root@pam"],
            "origin": "builtin",
        },
    ),
    "default-matcher": (
        MATCHER,
        {
            "comment": "Route all notifications to mail-to-root",
            "mode": "all",
            "target": ["mail-to-root"],
            "origin": "builtin",
        },
    ),
}


class Notifications:
    """All entities by name; a name is used once over all kinds."""

    def __init__(self, _world: World) -> None:
        self._entities: dict[str, tuple[str, Entity]] = copy.deepcopy(_BUILTIN)

    def of_kind(self, kind: str) -> list[Entity]:
        return [self._shown(name, kind, entity) for name, (each, entity) in self._entities.items() if each == kind]

    def targets(self) -> list[Entity]:
        rows: list[Entity] = []
        for kind in ENDPOINTS:
            for entity in self.of_kind(kind):
                shown = [key for key in ("name", "origin", "comment", "disable") if key in entity]
                rows.append({"type": kind, **{key: entity[key] for key in shown}})
        return rows

    def get(self, kind: str, name: str) -> Entity:
        found = self._entities.get(name)
        if found is None or found[0] != kind:
            raise _not_found(f"{kind} '{name}' not found")
        return self._shown(name, kind, found[1])

    def digest(self) -> str:
        return digest_of({"name": name, "kind": kind, **entity} for name, (kind, entity) in self._entities.items())

    def add(self, kind: str, name: str, options: Mapping[str, Any]) -> None:
        if name in self._entities:
            raise _bad(f"Cannot create '{name}', an entity with the same name already exists")
        entity = {"origin": "user-created", **_stored(options)}
        self._check(kind, entity)
        self._entities[name] = (kind, entity)

    def change(self, kind: str, name: str, options: Mapping[str, Any], delete: list[str], digest: str | None) -> None:
        if digest and digest != self.digest():
            raise _bad(MODIFIED)
        self.get(kind, name)
        changed = {key: value for key, value in self._entities[name][1].items() if key not in delete}
        changed |= _stored(options)
        if changed["origin"] == "builtin":
            changed["origin"] = "modified-builtin"
        self._check(kind, changed)
        self._entities[name] = (kind, changed)

    def remove(self, kind: str, name: str) -> None:
        """Delete an entity that nothing needs; one of PVE's own goes back to its first state."""
        self.get(kind, name)
        if name in _BUILTIN:
            self._entities[name] = copy.deepcopy(_BUILTIN[name])
            return
        users = [
            other
            for other, (each, entity) in self._entities.items()
            if each == MATCHER and name in entity.get("target", ())
        ]
        if users:
            raise _bad(f"cannot delete '{name}', referenced by: {', '.join(users)}")
        del self._entities[name]

    def test(self, name: str) -> None:
        """A test message would go out here."""
        if not self._is_endpoint(name):
            raise _not_found(f"endpoint '{name}' does not exist")

    def _is_endpoint(self, name: str) -> bool:
        return name in self._entities and self._entities[name][0] != MATCHER

    def _check(self, kind: str, entity: Entity) -> None:
        if kind == MATCHER:
            for target in entity.get("target", ()):
                if not self._is_endpoint(target):
                    raise _not_found(f"endpoint '{target}' does not exist")
        if kind in ("sendmail", "smtp") and not entity.get("mailto") and not entity.get("mailto-user"):
            raise _bad("must at least provide one recipient, either in mailto or in mailto-user")

    @staticmethod
    def _shown(name: str, kind: str, entity: Entity) -> Entity:
        shown = {key: value for key, value in entity.items() if key not in _SECRETS.get(kind, ())}
        if kind == "webhook" and "secret" in shown:
            shown["secret"] = [text.split(",value=")[0] for text in shown["secret"]]
        return {"name": name, **shown}


def _stored(options: Mapping[str, Any]) -> Entity:
    return {name: stored(value) for name, value in options.items()}


def _bad(text: str) -> Refusal:
    return Refusal(400, f"{text}\n")


def _not_found(text: str) -> Refusal:
    return Refusal(404, f"{text}\n")
