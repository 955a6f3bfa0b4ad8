"""Users, tokens, groups, roles, pools and ACLs, and the effective permissions on a path.

The rules are PVE's: from `/` down to the path, the first of token, user and groups with an entry at a level replaces
everything inherited; NoAccess at the deciding level wins; pool membership adds roles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ROOT = "root@pam"
NO_ACCESS = "NoAccess"

_VALID_PATH = re.compile(r"[A-Za-z0-9.\-_/]+")
_DEFAULT_PATHS = ("/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms")

SubjectKind = Literal["user", "group", "token"]
Privileges = Mapping[str, bool]
"""Privilege -> whether it also holds below the path."""

_NOTHING: Privileges = {}


@dataclass(slots=True)
class Token:
    """An API token of a user."""

    secret: str
    privsep: bool = True
    expire: int = 0
    comment: str | None = None


@dataclass(slots=True)
class User:
    """A user of a realm, `name@realm`."""

    userid: str
    password: str | None = None
    enable: bool = True
    expire: int = 0
    email: str | None = None
    comment: str | None = None
    firstname: str | None = None
    lastname: str | None = None
    keys: str | None = None
    groups: set[str] = field(default_factory=set)
    tokens: dict[str, Token] = field(default_factory=dict)

    @property
    def realm(self) -> str:
        return self.userid.rpartition("@")[2]

    def usable(self, now: float) -> bool:
        """Whether the account may log in at this time."""
        return self.enable and not (self.expire and self.expire <= now)


@dataclass(slots=True)
class Realm:
    """An authentication realm."""

    name: str
    type: str
    comment: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Pool:
    """A named set of guests and storages that roles can be granted on."""

    id: str
    comment: str | None = None
    vms: set[int] = field(default_factory=set)
    storages: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class AclEntry:
    """One role of one subject on one path."""

    path: str
    kind: SubjectKind
    subject: str
    role: str
    propagate: bool = True


class Access:
    """The access configuration. Call `invalidate_cache()` after changing it."""

    def __init__(self, builtin_roles: Mapping[str, frozenset[str]]) -> None:
        self.builtin_roles = dict(builtin_roles)
        self.custom_roles: dict[str, frozenset[str]] = {}
        self.realms: dict[str, Realm] = {
            "pam": Realm("pam", "pam", "Linux PAM standard authentication"),
            "pve": Realm("pve", "pve", "Proxmox VE authentication server"),
        }
        self.users: dict[str, User] = {ROOT: User(ROOT)}
        self.groups: dict[str, str | None] = {}  # name -> comment
        self.pools: dict[str, Pool] = {}
        self._acl: dict[str, list[AclEntry]] = {}
        self._effective: dict[tuple[str, str], Privileges] = {}
        self._pool_roles: dict[str, dict[str, set[str]]] = {}
        self._pool_of: dict[int, str] = {}

    def invalidate_cache(self) -> None:
        """Forget the computed permissions after a change."""
        self._effective.clear()
        self._pool_roles.clear()
        self._pool_of = {vmid: pool.id for pool in self.pools.values() for vmid in pool.vms}

    def pool_of(self, vmid: int) -> str | None:
        """The guest's pool, if any."""
        return self._pool_of.get(vmid)

    def grant(self, path: str, role: str, subject: str, *, propagate: bool = True) -> None:
        """Grant a role; the subject's form determines its kind: `u@realm`, `u@realm!token` or `@group`."""
        kind: SubjectKind = "group" if subject.startswith("@") else "token" if "!" in subject else "user"
        entry = AclEntry(path, kind, subject.removeprefix("@"), role, propagate)
        self.revoke(path, role, kind, entry.subject)
        self._acl.setdefault(path, []).append(entry)
        self.invalidate_cache()

    def revoke(self, path: str, role: str, kind: SubjectKind, subject: str) -> None:
        """Revoke a role, if it was granted."""
        kept = [
            entry
            for entry in self._acl.get(path, [])
            if (entry.role, entry.kind, entry.subject) != (role, kind, subject)
        ]
        if kept:
            self._acl[path] = kept
        else:
            self._acl.pop(path, None)
        self.invalidate_cache()

    def forget(self, unwanted: Callable[[AclEntry], bool]) -> None:
        """Drop every entry of a removed subject or path."""
        for path, entries in list(self._acl.items()):
            kept = [entry for entry in entries if not unwanted(entry)]
            if kept:
                self._acl[path] = kept
            else:
                del self._acl[path]
        self.invalidate_cache()

    def acl(self) -> Iterator[AclEntry]:
        """Every entry, by path."""
        for path in sorted(self._acl):
            yield from self._acl[path]

    def role(self, name: str) -> frozenset[str] | None:
        """The privileges of a role, None if there is no such role."""
        return self.builtin_roles.get(name, self.custom_roles.get(name))

    def token(self, authid: str) -> Token | None:
        """The token of `user@realm!name`."""
        userid, _, name = authid.partition("!")
        user = self.users.get(userid)
        return None if user is None else user.tokens.get(name)

    def privileges(self, authid: str, path: str | None) -> Privileges:
        """The privileges of a user or token on a path; an invalid path grants nothing."""
        if authid == ROOT:
            return dict.fromkeys(self.builtin_roles["Administrator"], True)
        if path is None:
            return _NOTHING
        known = self._effective.get((authid, path))
        if known is None:
            known = self._effective[authid, path] = self._compute_permissions(authid, path)
        return known

    def allowed(self, authid: str, path: str, *privileges: str) -> bool:
        """Whether any of these privileges is held on the path."""
        held = self.privileges(authid, path)
        return any(privilege in held for privilege in privileges)

    def allowed_everywhere(self, authid: str, path: str, privilege: str) -> bool:
        """Whether no ACL entry below the path can revoke the privilege, which makes single checks unnecessary."""
        if not self.privileges(authid, path).get(privilege):
            return False
        below = path.rstrip("/") + "/"
        pools_refuse = any(entry.role == NO_ACCESS for entry in self.acl() if entry.path.startswith("/pool"))
        return not pools_refuse and not any(acl_path.startswith(below) for acl_path in self._acl)

    def effective_permissions(self, authid: str) -> dict[str, dict[str, int]]:
        """Every path of interest, with the user's or token's privileges there."""
        paths = dict.fromkeys((*_DEFAULT_PATHS, *sorted(self._acl)))
        for pool in self.pools.values():
            paths.update(dict.fromkeys(f"/vms/{vmid}" for vmid in sorted(pool.vms)))
            paths.update(dict.fromkeys(f"/storage/{storage}" for storage in sorted(pool.storages)))
        permissions = {path: self.privileges(authid, path) for path in paths}
        return {path: as_numbers(held) for path, held in permissions.items() if held}

    def _compute_permissions(self, authid: str, path: str) -> Privileges:
        token = None
        if "!" in authid:
            token = self.token(authid)
            if token is None:
                return _NOTHING
            if not token.privsep:
                return self.privileges(authid.partition("!")[0], path)
        held = self._privileges_of_roles(self._with_pools(authid, path))
        if token is not None:
            owner = self.privileges(authid.partition("!")[0], path)
            held = {name: below and owner[name] for name, below in held.items() if name in owner}
        return held

    def _privileges_of_roles(self, roles: Mapping[str, bool]) -> dict[str, bool]:
        held: dict[str, bool] = {}
        for role, below in roles.items():
            for privilege in self.role(role) or ():
                held[privilege] = held.get(privilege, False) or below
        return held

    def _with_pools(self, authid: str, path: str) -> dict[str, bool]:
        roles = self._roles(authid, path)
        pooled = self._roles_from_pools(authid).get(path)
        if not pooled or NO_ACCESS in roles:
            return roles
        if NO_ACCESS in pooled:
            return {NO_ACCESS: False}
        return {**dict.fromkeys(pooled, False), **roles}

    def _roles_from_pools(self, authid: str) -> dict[str, set[str]]:
        known = self._pool_roles.get(authid)
        if known is not None:
            return known
        roles_by_path: dict[str, set[str]] = {}
        for pool in self.pools.values():
            roles = self._roles(authid, f"/pool/{pool.id}")
            if roles:
                members = [f"/vms/{vmid}" for vmid in pool.vms] + [f"/storage/{name}" for name in pool.storages]
                for member in members:
                    roles_by_path.setdefault(member, set()).update(roles)
        self._pool_roles[authid] = roles_by_path
        return roles_by_path

    def _roles(self, authid: str, path: str) -> dict[str, bool]:
        """The roles that the ACLs alone grant on a path."""
        groups = self.users[authid].groups if authid in self.users else set()
        roles: dict[str, bool] = {}
        for level in _levels(path):
            entries = self._acl.get(level)
            if entries:
                counting = [entry for entry in entries if entry.propagate or level == path]
                roles = _roles_at_path(counting, authid, groups) or roles
        return {NO_ACCESS: roles[NO_ACCESS]} if NO_ACCESS in roles else roles


def _roles_at_path(entries: list[AclEntry], authid: str, groups: set[str]) -> dict[str, bool]:
    """The roles of the first kind of subject that has any at this level."""
    for kind in ("token", "user"):
        own = {e.role: e.propagate for e in entries if e.kind == kind and e.subject == authid}
        if own:
            return own
    return {e.role: e.propagate for e in entries if e.kind == "group" and e.subject in groups}


def _levels(path: str) -> Iterator[str]:
    """`/`, `/vms`, `/vms/100` for `/vms/100`."""
    yield "/"
    if path == "/":
        return
    at = path.find("/", 1)
    while at != -1:
        yield path[:at]
        at = path.find("/", at + 1)
    yield path


def as_numbers(privileges: Privileges) -> dict[str, int]:
    """Privileges as the API shows them."""
    return {name: int(below) for name, below in privileges.items()}


def normalize_path(path: str) -> str | None:
    """An ACL path in canonical form, None if it is invalid."""
    if not path:
        return None
    cleaned = "/" + "/".join(part for part in path.split("/") if part)
    return cleaned if _VALID_PATH.fullmatch(cleaned) else None
