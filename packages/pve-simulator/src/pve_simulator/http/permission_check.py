"""The declared permission of an endpoint, evaluated as in PVE, with PVE's refusals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pve_simulator.access.directory import ROOT, Access, normalize_path
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import Refusal, failure, forbidden

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_USER = re.compile(r"[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+")
_SHORTEST_USER, _LONGEST_USER = 3, 64

# The privilege to allocate such an object includes granting roles on it.
_MODIFY_INSTEAD = (
    (re.compile(r"/storage/.+"), "Datastore.Allocate"),
    (re.compile(r"/vms/.+"), "VM.Allocate"),
    (re.compile(r"/pool/.+"), "Pool.Allocate"),
)


def check_permission(
    access: Access, permission: Mapping[str, Any] | None, authid: str | None, params: Mapping[str, Any]
) -> None:
    """Raise PVE's refusal unless the caller is allowed."""
    if permission is not None and permission.get("user") == "world":
        return
    if authid is None:
        raise forbidden("user != null")
    if authid == ROOT:
        return
    if permission is None:
        raise forbidden("user != root@pam")
    if permission.get("user") == "all":
        return
    expression = permission.get("check")
    if expression is None:
        raise forbidden()
    _Evaluation(access, authid, params).require(expression)


def require_privileges(
    access: Access, authid: str, path: str | None, privileges: Sequence[str], *, any_of: bool
) -> None:
    """Require every privilege on a path, or with `any_of` at least one."""
    held = access.privileges(authid, path)
    shown = path or ""
    if any_of:
        if not any(privilege in held for privilege in privileges):
            raise forbidden(f"{shown}, {'|'.join(privileges)}")
        return
    for privilege in privileges:
        if privilege not in held:
            raise forbidden(f"{shown}, {privilege}")


def require_modify(access: Access, authid: str, path: str | None) -> None:
    """Require the privilege to grant roles on a path, which allocating such an object includes."""
    if authid == ROOT or access.allowed(authid, path or "", "Permissions.Modify"):
        return
    privileges = ["Permissions.Modify"]
    for pattern, privilege in _MODIFY_INSTEAD:
        if path is not None and pattern.fullmatch(path):
            privileges.append(privilege)
    require_privileges(access, authid, path, privileges, any_of=len(privileges) > 1)


def verified_user_name(parameter: Any) -> str:
    """The user name, or a refusal: privileges are checked before parameters, so an invalid name fails here."""
    name = str(parameter or "")
    if len(name) < _SHORTEST_USER:
        raise failure(f"user name '{name}' is too short")
    if len(name) > _LONGEST_USER:
        raise failure(f"user name '{name}' is too long ({len(name)} > {_LONGEST_USER})")
    if _USER.fullmatch(name) is None:
        raise failure(f"value '{name}' does not look like a valid user name")
    return name


class _Evaluation:
    """One permission expression for one caller and the parameters of one call."""

    def __init__(self, access: Access, authid: str, params: Mapping[str, Any]) -> None:
        self._access = access
        self._authid = authid
        self._params = params

    def require(self, expression: Sequence[Any]) -> None:
        match expression[0]:
            case "and":
                for part in expression[1:]:
                    self.require(part)
            case "or":
                if not any(self._passes(part) for part in expression[1:]):
                    raise forbidden()
            case "perm":
                self._require_perm(expression)
            case "perm-modify":
                self._require_modify(expression[1])
            case "userid-param":
                self._require_userid(expression[1])
            case "userid-group":
                self._require_group(expression[1], _options(expression[2:]).get("groups_param"))
            case test:
                raise failure(f"unknown permission test '{test}'")

    def _passes(self, expression: Sequence[Any]) -> bool:
        try:
            self.require(expression)
        except Refusal as refusal:
            if refusal.status != 403:
                raise
            return False
        return True

    def _require_perm(self, expression: Sequence[Any]) -> None:
        _, template, privileges, *rest = expression
        options = _options(rest)
        needed_param = options.get("require_param")
        if needed_param is not None and needed_param not in self._params:
            raise forbidden()
        path = normalize_path(self._fill(template))
        if path is not None and path.startswith("/pool/") and path != "/pool/-":
            self._require_pool(path, template)
        require_privileges(self._access, self._authid, path, privileges, any_of=bool(options.get("any")))

    def _require_pool(self, path: str, template: str) -> None:
        """Require privileges on the call's pool, which must exist first."""
        if template == "/pool/{pool}" and path.removeprefix("/pool/") not in self._access.pools:
            raise forbidden(f"pool '{path.removeprefix('/pool/')}' does not exist")

    def _require_modify(self, template: str) -> None:
        require_modify(self._access, self._authid, normalize_path(self._fill(template)))

    def _require_userid(self, test: str) -> None:
        userid = verified_user_name(self._params.get("userid"))
        if test == "self":
            self._require_existing(userid)
            if userid != self._authid:
                raise forbidden()
            return
        realm = userid.rpartition("@")[2]
        require_privileges(self._access, self._authid, f"/access/realm/{realm}", [test], any_of=False)

    def _require_group(self, privileges: Sequence[str], groups_param: str | None) -> None:
        """Require privileges on a group of the user, and on every group that the call adds."""
        userid = verified_user_name(self._params.get("userid"))
        requested = split_list(self._params.get("groups"))
        if groups_param is not None and requested:
            for group in requested:
                self._require_any(f"/access/groups/{group}", privileges)
            if groups_param == "create":
                return
        if groups_param == "create":
            self._require_any("/access/groups", privileges)
            return
        self._require_existing(userid)
        if self._access.allowed(self._authid, "/access/groups", *privileges):
            return
        groups = self._access.users[userid].groups
        if not any(self._access.allowed(self._authid, f"/access/groups/{g}", *privileges) for g in groups):
            raise forbidden()

    def _require_any(self, path: str, privileges: Sequence[str]) -> None:
        require_privileges(self._access, self._authid, path, privileges, any_of=True)

    def _require_existing(self, userid: str) -> None:
        if userid not in self._access.users:
            raise failure(f"no such user ('{userid}')")

    def _fill(self, template: str) -> str:
        """The path for this call; PVE writes '-' where a value is missing."""
        return _PLACEHOLDER.sub(lambda match: str(self._params.get(match[1], "-")), template)


def _options(rest: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(rest[::2], rest[1::2], strict=False))
