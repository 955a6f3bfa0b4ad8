"""The script that creates a user and a token with the least privileges that an access level needs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pve_schema.schema import facts
from quorate.operations.privileges import calls_of_level, missing_privileges

MONITOR = (
    "VM.Monitor, which PVE 8 requires for guest addresses, also lets the token run commands in guests; leave it out if "
    "you do not need the addresses."
)
_SCRIPT = """\
sh -e <<'END'
user={user}
grant() {{  # path, role, privileges
  pveum role add "$2" --privs "$3" 2>/dev/null || pveum role modify "$2" --privs "$3"
  pveum acl modify "$1" --users "$user" --roles "$2"
}}
pveum user add "$user" --comment Quorate 2>/dev/null || pveum user modify "$user"  # fails if there is none
{grants}
pveum user token add "$user" {token} --privsep 0
END"""
ALMIGHTY = "root@pam"


def grant_script(token_id: str, level: str, major: int, toolsets: Sequence[str]) -> str:
    """To be pasted as a whole into a root shell on a node. Repeating it changes nothing; an existing token stays."""
    user, _, token = token_id.partition("!")
    if user == ALMIGHTY:
        return f"pveum user token add {user} {shlex.quote(token)} --privsep 0"
    roles: dict[frozenset[str], str] = {}
    grants = []
    for path, privileges in least_privileges(level, major, toolsets).items():
        role = roles.setdefault(privileges, _role_name(level, path))
        grants.append(f"grant {path} {role} {','.join(sorted(privileges))}")
    return _SCRIPT.format(user=shlex.quote(user), token=shlex.quote(token), grants="\n".join(grants))


def least_privileges(level: str, major: int, toolsets: Sequence[str]) -> dict[str, frozenset[str]]:
    """Path -> privileges needed there. A path that only repeats what it inherits is omitted."""
    calls = calls_of_level(level, [name for name in toolsets if name != "api"], [{}])
    needed = missing_privileges(facts(f"{major}.0"), calls, "", lambda _path, _privilege: False)
    kept: dict[str, frozenset[str]] = {}
    for path in sorted(needed):
        privileges = frozenset(needed[path])
        if _inherited_privileges(path, kept) != privileges:
            kept[path] = privileges
    return kept


def _inherited_privileges(path: str, kept: dict[str, frozenset[str]]) -> frozenset[str] | None:
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        if path in kept:
            return kept[path]
    return None


def _role_name(level: str, path: str) -> str:
    return f"Quorate-{level}" + path.rstrip("/").replace("/", "-")
