"""Users, tokens and privileges of a Proxmox Backup Server, and who is calling."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pve_schema.pbs import pbs_roles
from pve_simulator.clock import Clock
from pve_simulator.pbs.refusals import Refusal, forbidden, refuse_login

ROOT = "root@pam"
REALMS = {"pbs": "Proxmox Backup authentication server", "pam": "Linux PAM standard authentication"}
NO_ACCESS = "NoAccess"
TICKET_SECONDS = 2 * 3600
_CACHE_SECONDS = 5.0
"""How long the server uses privileges that it has read: a changed ACL takes that long to be seen."""

_TREE = {
    "access": {"acl", "users", "domains", "openid"},
    "datastore": None,
    "remote": None,
    "system": {
        "certificates", "disks", "log", "network", "notifications", "s3-endpoint", "services", "status", "tasks",
        "time",
    },
    "tape": {"device", "drive", "job", "pool", "changer"},
}  # fmt: skip


@dataclass(slots=True)
class Credential:
    """A user's password or a token's secret, with what both may have."""

    secret: str
    properties: dict[str, Any] = field(default_factory=dict)

    def usable_at(self, now: float) -> bool:
        expire = self.properties.get("expire", 0)
        return bool(self.properties.get("enable", True)) and (not expire or expire > now)


class Access:
    """Users with their tokens, and the access control list."""

    def __init__(self, clock: Clock, root_password: str) -> None:
        self._clock = clock
        self.users: dict[str, Credential] = {ROOT: Credential(root_password, {"comment": "Superuser"})}
        self.tokens: dict[str, Credential] = {}
        self.acl: dict[tuple[str, str, str], bool] = {}
        """(path, user or token, role): whether it also applies below the path."""
        self._tickets: dict[str, tuple[str, float]] = {}
        self._csrf: dict[str, str] = {}
        self._seen_acl: dict[tuple[str, str, str], bool] = {}
        self._seen_at = float("-inf")

    # -- logins --------------------------------------------------------------------------------------------------------

    def create_ticket(self, user: str) -> tuple[str, str]:
        """A ticket and its CSRF token."""
        now = self._clock.now()
        ticket = f"PBS:{user}:{int(now):08X}::{secrets.token_urlsafe(48)}"
        self._tickets[ticket] = (user, now + TICKET_SECONDS)
        self._csrf[user] = f"{int(now):08X}:{secrets.token_urlsafe(32)}"
        return ticket, self._csrf[user]

    def user_of_ticket(self, ticket: str) -> str | None:
        user, until = self._tickets.get(ticket, ("", 0.0))
        return user if user and until > self._clock.now() else None

    def knows_password(self, user: str, password: str) -> bool:
        known = self.users.get(user)
        if known is None or not known.usable_at(self._clock.now()):
            return False
        return password == known.secret or self.user_of_ticket(password) == user

    def knows_secret(self, auth_id: str, secret: str) -> bool:
        """Whether this is the secret of a token, or the password of a user."""
        if "!" not in auth_id:
            return self.knows_password(auth_id, secret)
        return self.is_active(auth_id) and self.tokens[auth_id].secret == secret

    def identify(self, headers: Mapping[str, str], method: str) -> str:
        """The user or token that sends these headers. Raises the refusal if nobody can be recognized."""
        authorization = headers.get("Authorization", "")
        if authorization.startswith(("PBSAPIToken=", "PBSAPIToken ")):
            return self._identify_token(authorization[len("PBSAPIToken=") :])
        ticket = _ticket_cookie(headers.get("Cookie", ""))
        if ticket is None:
            raise refuse_login("no authentication credentials provided.")
        user = self.user_of_ticket(ticket)
        if user is None:
            known_form = ticket.startswith("PBS:") and ticket.count(":") >= 4
            raise refuse_login("ticket with invalid signature" if known_form else "invalid ticket - expired")
        if method != "GET":
            token = headers.get("CSRFPreventionToken")
            if token is None:
                raise refuse_login("missing CSRF prevention token")
            if token != self._csrf.get(user):
                raise refuse_login("invalid csrf token - invalid signature.")
        return user

    def _identify_token(self, text: str) -> str:
        token_id, separator, secret = text.partition(":")
        if "@" not in text:
            raise refuse_login("not a valid user id")
        if "=" in token_id:
            raise refuse_login("invalid token name")
        if not separator:
            raise refuse_login("failed to split API token header")
        user = token_id.partition("!")[0]
        now = self._clock.now()
        known = self.tokens.get(token_id)
        owner = self.users.get(user)
        if known is None or owner is None or not (known.usable_at(now) and owner.usable_at(now)):
            raise refuse_login("user account or token disabled or expired.")
        if known.secret != secret:
            raise refuse_login("invalid credentials")
        return token_id

    def is_active(self, auth_id: str) -> bool:
        user, _, token = auth_id.partition("!")
        now = self._clock.now()
        owner = self.users.get(user)
        if owner is None or not owner.usable_at(now):
            return False
        return not token or (auth_id in self.tokens and self.tokens[auth_id].usable_at(now))

    # -- privileges ----------------------------------------------------------------------------------------------------

    def privileges(self, auth_id: str, path: str) -> frozenset[str]:
        """What a user or token may do there; a token never more than its user."""
        if auth_id == ROOT:
            return pbs_roles()["Admin"]
        user = auth_id.partition("!")[0]
        own = self._find_privileges(auth_id, path)
        return own if user in (auth_id, ROOT) else own & self._find_privileges(user, path)

    def _find_privileges(self, auth_id: str, path: str) -> frozenset[str]:
        granted: frozenset[str] = frozenset()
        levels = ["/", *list_levels(path)]
        for level in levels:
            roles = {
                role
                for (where, who, role), propagates in self._current_acl().items()
                if where == level and who == auth_id and (propagates or level == levels[-1])
            }
            if NO_ACCESS in roles:
                granted = frozenset()
            elif roles:
                granted = frozenset().union(*(pbs_roles()[role] for role in roles))
        return granted

    def _current_acl(self) -> dict[tuple[str, str, str], bool]:
        if self._clock.now() - self._seen_at >= _CACHE_SECONDS:
            self._seen_acl, self._seen_at = dict(self.acl), self._clock.now()
        return self._seen_acl

    def forget_cache(self) -> None:
        """For worlds that are built before the server starts."""
        self._seen_at = float("-inf")

    def holds_below(self, auth_id: str, path: str, privileges: Collection[str]) -> bool:
        """Whether an entry of the list grants one of these privileges below the path."""
        below = {where for where, _, _ in self._current_acl() if where.startswith(f"{path}/")}
        return any(self.privileges(auth_id, where) & set(privileges) for where in below)

    def require(self, auth_id: str, path: str, privileges: Collection[str], *, any_of: bool = False) -> None:
        """Refuse a caller without these privileges, naming them."""
        held = self.privileges(auth_id, path)
        fits = held & set(privileges) if any_of else held >= set(privileges)
        if not fits:
            raise forbidden(f"{'|'.join(privileges)} on {path}")

    def allows(self, auth_id: str, permission: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
        """The declared permission of an endpoint."""
        if permission.get("user") in ("world", "all"):
            return True
        if permission.get("user"):
            return bool(auth_id == permission["user"])
        return auth_id == ROOT or self._evaluate(auth_id, permission["check"], values)

    def _evaluate(self, auth_id: str, check: list[Any], values: Mapping[str, Any]) -> bool:
        kind, *rest = check
        if kind == "or":
            return any(self._evaluate(auth_id, part, values) for part in rest)
        if kind == "and":
            return all(self._evaluate(auth_id, part, values) for part in rest)
        if kind == "userParam":
            return auth_id.partition("!")[0] == values.get(rest[0])
        path = "/".join(str(values.get(part[1:-1], "")) if part[:1] == "{" else part for part in rest[0].split("/"))
        held = self.privileges(auth_id, path)
        return bool(held & set(rest[1])) if rest[2:] == ["any"] else held >= set(rest[1])


def list_levels(path: str) -> list[str]:
    """/a/b/c: /a, /a/b, /a/b/c."""
    parts = [part for part in path.split("/") if part]
    return ["/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def refuse_unknown_path(path: str) -> None:
    """ACLs have a fixed tree of paths; below datastores and remotes they need not exist."""
    first, *others = [part for part in path.split("/") if part] or [""]
    if first and (
        first not in _TREE or (others and _TREE[first] is not None and others[0] not in (_TREE[first] or ()))
    ):
        raise Refusal(f"invalid acl path '{path}'.")


def _ticket_cookie(cookie: str) -> str | None:
    for pair in cookie.split(";"):
        name, _, value = pair.strip().partition("=")
        if name in ("PBSAuthCookie", "__Host-PBSAuthCookie"):
            return unquote(value)
    return None
