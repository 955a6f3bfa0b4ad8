"""The `pveum` commands that make a user and a token with the least that an access level needs."""

from __future__ import annotations

from collections.abc import Sequence

NO_EXTRA_RIGHTS = "The user is for this token alone and has no password, so the token simply has the user's rights."
MONITOR = (
    "VM.Monitor, which PVE 8 asks for before it tells the addresses of guests, also lets the token run commands "
    "in them; leave it out if you can do without the addresses."
)


def grant_commands(token_id: str, level: str, major: int, toolsets: Sequence[str]) -> list[str]:
    """For a shell on a node, as root."""
    user, _, token = token_id.partition("!")
    commands = [f"pveum user add '{user}' --comment Quorate"]
    roles: dict[frozenset[str], str] = {}
    acls = []
    for path, privileges in least_privileges(level, major, toolsets).items():
        if privileges not in roles:
            roles[privileges] = _role_name(level, path)
            commands.append(f"pveum role add {roles[privileges]} --privs '{','.join(sorted(privileges))}'")
        acls.append(f"pveum acl modify {path} --users '{user}' --roles {roles[privileges]}")
    return [*commands, *acls, f"pveum user token add '{user}' {token} --privsep 0"]


def least_privileges(level: str, major: int, toolsets: Sequence[str]) -> dict[str, frozenset[str]]:
    """Path -> what has to be held there. A path that would only repeat what it inherits is left out."""
    from quorate.operations.access.permission_needs import calls_of_level, lacking
    from quorate.pve.schema import facts

    wanted = calls_of_level(level, [name for name in toolsets if name != "api"], [{}])
    needed = lacking(facts(f"{major}.0"), wanted, "", lambda _path, _privilege: False)
    kept: dict[str, frozenset[str]] = {}
    for path in sorted(needed):
        privileges = frozenset(needed[path])
        if _inherited(path, kept) != privileges:
            kept[path] = privileges
    return kept


def _inherited(path: str, kept: dict[str, frozenset[str]]) -> frozenset[str] | None:
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        if path in kept:
            return kept[path]
    return None


def _role_name(level: str, path: str) -> str:
    return f"Quorate-{level}" + path.rstrip("/").replace("/", "-")
