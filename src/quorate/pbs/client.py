"""HTTPS to one Proxmox Backup Server: PVE's transport, with the errors and tasks of PBS.

PBS answers nearly every error with 400 and a bare text, so its words decide what happened. They are matched loosely:
some contain paths of the server or Rust's debug output.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pve_schema.pbs import BackupMatch, pbs_facts, pbs_roles
from quorate.hints import Advice, see, tools
from quorate.problems import (
    AuthenticationFailed,
    BadTaskId,
    Conflict,
    NotFound,
    Overtaken,
    ParameterRejected,
    PermissionMissing,
    Problem,
    ServerFailed,
    Unreachable,
)
from quorate.pve.client import PveClient, RawResponse
from quorate.pve.tasks import Upid

_MISSING: Final = re.compile(r"missing (?P<privileges>[\w.|]+) on (?P<path>/\S*)")
_MISSING_PERMISSIONS: Final = re.compile(r"missing permissions '(?P<privileges>[\w.|]+)' on '(?P<path>/[^']*)'")
_FOREIGN: Final = re.compile(r"backup owner check failed \((?P<me>\S+) != (?P<owner>\S+)\)")
_NOT_ALLOWED: Final = re.compile(
    r"permission check failed|does not have permission|task access not allowed|not allowed to list permissions", re.I
)
_NOT_FOUND: Final = re.compile(r"no such |ENOENT|does not exist|doesn't already exists|not found", re.I)
_CONFLICT: Final = re.compile(
    r"already exists|protected snapshot|detected modified configuration|unable to acquire|temporarily unavailable"
    r"|maintenance mode|is used by|only partially deleted|not empty|nested datastores",
    re.I,
)
_PARAMETERS: Final = re.compile(r"parameter verification failed(?: - |:\s*)(?P<list>.*)", re.S)
_CONFLICTS: Final[tuple[tuple[str, Advice], ...]] = (
    (
        "protected snapshot",
        Advice("Remove the protection first, if it is not needed anymore", tools.pbs_backup_update(protected=False)),
    ),
    ("detected modified", Advice("Someone else changed it; read it again, then decide")),
    ("unable to acquire", Advice("A task works on it: see which, then try again", tools.pbs_task_list)),
    ("temporarily unavailable", Advice("A task works on it: see which, then try again", tools.pbs_task_list)),
    ("maintenance mode", see("See the maintenance mode of the datastore", tools.pbs_status)),
    ("already exists", Advice("Choose another name")),
    ("delete-groups", Advice("Give {with_backups} to delete its backups as well", with_backups=True)),
)
ACL_SECONDS: Final = 5
"""How long PBS may use privileges that it has read before."""


class PbsClient(PveClient):
    """The API of one backup server. Reads are retried and writes are sent once, as for PVE."""

    def _node_in(self, path: str) -> str:  # noqa: ARG002 - one machine, which forwards nothing
        return ""

    def _problem(self, method: str, path: str, raw: RawResponse) -> Problem:
        text = bytes(raw.body).decode("utf-8", "replace").strip() or raw.reason or "no reason given"
        return refusal(method, path, raw.status, text, identity=self.identity)


def refusal(method: str, path: str, status: int, text: str, *, identity: str) -> Problem:
    """Convert an error of PBS. `identity` is who called, for the commands that grant what is missing."""
    asked = f"{method} {path}"
    facts = {"status": status, "request": asked}
    if missing := _MISSING.search(text) or _MISSING_PERMISSIONS.search(text):
        needed = missing["privileges"].split("|")
        return PrivilegeGap(identity, missing["path"], needed[:1]).problem(asked, text, facts)
    if foreign := _FOREIGN.search(text):
        where = _acl_path(path)
        return PermissionMissing(
            f"{identity} may not {asked}",
            why=f"The backup belongs to {foreign['owner']}, and its role covers only its own backups. PBS said: {text}",
            next_step=grant_advice(identity, where, "DatastoreAdmin"),
            facts={**facts, "path": where, "role": "DatastoreAdmin"},
        )
    if status == 403 or _NOT_ALLOWED.search(text):
        return _explain_lack(method, path, asked, text, identity, facts)
    if status == 401:
        return AuthenticationFailed(
            f"PBS did not accept the credentials of {identity}",
            why=f"It said: {text}",
            next_step="Check token id (user@realm!name) and secret; `proxmox-backup-manager user list-tokens USER` on "
            "the server shows which tokens exist and when they expire",
            facts=facts,
        )
    if parameters := _PARAMETERS.search(text):
        listed = "; ".join(line.strip("- ").strip() for line in parameters["list"].splitlines() if line.strip())
        return ParameterRejected(f"PBS did not accept the parameters of {asked}", why=listed, facts=facts)
    if _CONFLICT.search(text):
        kind = Overtaken if "already exists" in text else Conflict
        return kind(f"PBS refused: {text}", next_step=conflict_advice(text), facts=facts)
    if status == 404 or _NOT_FOUND.search(text):
        return NotFound(
            f"PBS did not find it: {text}",
            next_step=see("See the datastores and the backups", tools.pbs_status, tools.pbs_backup_list),
            facts=facts,
        )
    if status in (502, 503, 504):
        return Unreachable(f"A gateway answered {status} instead of PBS", why=text, facts=facts)
    if status == 400:
        return ParameterRejected(f"PBS did not accept {asked}: {text}", facts=facts)
    return ServerFailed(f"PBS answered {status} to {asked}: {text}", facts=facts)


def conflict_advice(text: str) -> Advice | None:
    """What to do about a state conflict, by the words of PBS (from an answer or a failed task)."""
    lowered = text.lower()
    return next((advice for words, advice in _CONFLICTS if words in lowered), None)


# -- rights ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrivilegeGap:
    """Privileges that an identity needs on a path and does not have."""

    identity: str
    path: str
    privileges: Sequence[str]

    def problem(self, asked: str, said: str, facts: Mapping[str, Any]) -> PermissionMissing:
        role = smallest_role(self.privileges)
        return PermissionMissing(
            f"{self.identity} may not {asked}",
            why=f"It needs the privilege {' and '.join(self.privileges)} on {self.path}. PBS said: {said}",
            next_step=grant_advice(self.identity, self.path, role),
            facts={**facts, "path": self.path, "privileges": list(self.privileges), "role": role},
        )


def smallest_role(privileges: Collection[str]) -> str:
    """The role with the fewest privileges that includes these."""
    needed = set(privileges)
    fitting = [(len(held), name) for name, held in pbs_roles().items() if needed <= held]
    return min(fitting)[1] if fitting else "Admin"


def grant_advice(identity: str, path: str, role: str) -> str:
    commands = "; ".join(f"`{command}`" for command in grant_commands(identity, path, role))
    return f"To grant it, on the backup server: {commands}. It takes up to {ACL_SECONDS} s to be seen"


def grant_commands(identity: str, path: str, role: str) -> list[str]:
    """A token never has more than its user, so both get the role; root@pam has everything."""
    user = identity.partition("!")[0]
    who = [name for name in dict.fromkeys((user, identity)) if name != "root@pam"]
    return [f"proxmox-backup-manager acl update {path} {role} --auth-id '{name}'" for name in who]


def _acl_path(path: str) -> str:
    """Where the rights for a request are granted: the datastore that its path names."""
    match = re.match(r"/(?:admin|config)/datastore/([^/?]+)", path)
    return f"/datastore/{match[1]}" if match else "/"


def _explain_lack(
    method: str, path: str, asked: str, text: str, identity: str, facts: Mapping[str, Any]
) -> PermissionMissing:
    """A refusal that names no privilege: the API's own description says what the call needs."""
    match = pbs_facts("").find(method, path)
    declared = declared_privileges(match) if match else None
    if declared is not None:
        return PrivilegeGap(identity, *declared).problem(asked, text, facts)
    if (where := _acl_path(path)) != "/":  # the code of these checks more than the description says
        role = "DatastoreAudit" if method == "GET" else "DatastoreAdmin"
        return PermissionMissing(
            f"{identity} may not {asked}",
            why=f"PBS said: {text}",
            next_step=grant_advice(identity, where, role),
            facts={**facts, "path": where, "role": role},
        )
    reserved = match is not None and match.endpoint.permission.get("user") == "root@pam"
    return PermissionMissing(
        f"{identity} may not {asked}",
        why=f"PBS said: {text}",
        next_step="Only root@pam itself may do this; no token can"
        if reserved
        else f"See what is granted with `proxmox-backup-manager user permissions '{identity}'` on the server",
        facts=facts,
    )


def declared_privileges(match: BackupMatch) -> tuple[str, list[str]] | None:
    """The path and the privileges of the first check that an endpoint declares."""
    check = match.endpoint.permission.get("check")
    while isinstance(check, list) and check and check[0] in ("or", "and"):
        check = next((part for part in check[1:] if part[0] not in ("userParam",)), None)
    if not isinstance(check, list) or len(check) < 3 or not isinstance(check[1], str):
        return None
    parts = (match.values.get(part[1:-1], "") if part[:1] == "{" else part for part in check[1].split("/"))
    path = "/" + "/".join(part for part in parts if part)
    privileges = list(check[2])
    return path, privileges[:1] if check[3:] == ["any"] else privileges


# -- tasks -------------------------------------------------------------------------------------------------------------

_UPID: Final = re.compile(
    r"UPID:(?P<node>[A-Za-z0-9][\w.-]*):[0-9A-Fa-f]{8}:[0-9A-Fa-f]{8,9}:[0-9A-Fa-f]{8,16}:(?P<start>[0-9A-Fa-f]{8}):"
    r"(?P<type>[^:\s/]+):(?P<id>[^:\s/]*):(?P<user>[^:\s/]+):"
)
_ESCAPED: Final = re.compile(r"((?:\\x[0-9a-f]{2})+)")


class BackupTask(Upid):
    """A task of PBS. Its id has one field more than one of PVE."""

    first_line: ClassVar[int] = 1

    @classmethod
    def parse(cls, text: str) -> BackupTask:
        match = _UPID.fullmatch(text.strip())
        if match is None:
            raise BadTaskId(
                f"{text!r} is not a task id of a backup server",
                why="Such an id is a UPID with nine fields, such as "
                r"`UPID:pbs:00000FA1:000186A1:00000001:6723A1B2:verify:store1:root@pam:`",
                next_step=Advice("Find the id among the recent tasks", tools.pbs_task_list),
            )
        return cls(
            text.strip(), match["node"], int(match["start"], 16), match["type"], _unescape(match["id"]), match["user"]
        )

    @staticmethod
    def looks_like(value: object) -> bool:
        return isinstance(value, str) and _UPID.fullmatch(value) is not None

    @property
    def path(self) -> str:
        return f"/nodes/localhost/tasks/{self.text}"


def _unescape(text: str) -> str:
    r"""The id of a task as PBS shows it: `-` stands for `/`, and \xHH for other bytes."""
    parts = _ESCAPED.split(text)
    return "".join(
        bytes.fromhex(part.replace("\\x", "")).decode("utf-8", "replace") if number % 2 else part.replace("-", "/")
        for number, part in enumerate(parts)
    )
