"""What PVE answered, as the problem that fits: what happened, why, what to do next."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from quorate.problems import (
    AuthenticationFailed,
    BadArgument,
    Conflict,
    NodeOffline,
    NoQuorum,
    NotConfigured,
    NotFound,
    OutcomeUnknown,
    ParameterRejected,
    PermissionMissing,
    Problem,
    Refused,
    ServerFailed,
    TaskFailed,
    TimedOut,
    Unreachable,
    UntrustedCertificate,
)

__all__ = [
    "AuthenticationFailed",
    "BadArgument",
    "Conflict",
    "NoQuorum",
    "NodeOffline",
    "NotConfigured",
    "NotFound",
    "OutcomeUnknown",
    "ParameterRejected",
    "PermissionMissing",
    "Problem",
    "Refused",
    "ServerFailed",
    "TaskFailed",
    "TimedOut",
    "Unreachable",
    "UntrustedCertificate",
    "conflict_advice",
    "from_answer",
    "grant_command",
    "permission_missing",
]

# PVE answers nearly every semantic problem with HTTP 500, so only its words tell the kinds apart.
_CONFLICT = re.compile(
    r"already running|not running|is running|is locked|already exists|already defined|already used|is paused"
    r"|protection mode|checksum mismatch|detected modified configuration|got timeout|got lock request timeout"
    r"|without --online|still in use|is not empty|can't overwrite running|already at specified size"
    r"|if it's a template|contains snapshots|convert a template|is already a|purge parameter not set"
    r"|clone feature|only possible from a snapshot|there is a replication job",
    re.I,
)
_NOT_FOUND = re.compile(r"does not exist|no such |unable to find configuration file|hostname lookup '", re.I)
_PERMISSION = re.compile(r"Permission check failed \((?P<path>/[^,]*), (?P<privileges>[^)]+)\)")
_NODE = re.compile(r"^/nodes/(?P<node>[^/]+)")


def from_answer(
    method: str,
    path: str,
    status: int,
    reason: str,
    body: Mapping[str, Any],
    *,
    identity: str = "the configured user",
) -> Problem:
    """Turn an HTTP error of PVE into the error that fits. `identity` is who asked, for the grant commands."""
    text = _text_of(reason, body)
    asked = f"{method} {path}"
    facts = {"status": status, "request": asked}
    match status:
        case 401:
            return _authentication(text, identity, facts)
        case 403:
            return _permission(text, asked, identity, facts)
        case 400:
            return _parameter(text, body.get("errors"), asked, facts)
        case 595 | 596 | 597 | 599:
            return _node_offline(path, text, status, facts)
        case 501:
            return ServerFailed(
                f"PVE does not know {asked}",
                why=text,
                next_step="The call may need another PVE version; node_get shows the one that runs",
                facts=facts,
            )
    if "no quorum" in text:
        return NoQuorum(
            "The cluster has no quorum, so it refuses changes",
            why=f"PVE said: {text}",
            next_step="See cluster_status for the nodes that are offline and bring enough of them back",
            facts=facts,
        )
    if _NOT_FOUND.search(text):
        return NotFound(f"PVE did not find it: {text}", next_step=_where_to_look(text), facts=facts)
    if _CONFLICT.search(text):
        return Conflict(f"PVE refused: {text}", next_step=conflict_advice(text), facts=facts)
    if status in (502, 503, 504):
        return Unreachable(f"A gateway answered {status} instead of PVE", why=text, facts=facts)
    return ServerFailed(f"PVE answered {status} to {asked}: {text}", facts=facts)


def _text_of(reason: str, body: Mapping[str, Any]) -> str:
    """`message` carries the full text since PVE 8.4; before that the reason phrase is all there is."""
    message = body.get("message")
    return (message if isinstance(message, str) and message.strip() else reason).strip() or "no reason given"


def _authentication(text: str, identity: str, facts: Mapping[str, Any]) -> AuthenticationFailed:
    return AuthenticationFailed(
        f"PVE did not accept the credentials of {identity}",
        why=f"It said: {text}",
        next_step="Check token id (user@realm!name) and secret, or user and password; "
        "`pveum user token list USER` on a node shows which tokens exist and when they expire",
        facts=facts,
    )


def _permission(text: str, asked: str, identity: str, facts: Mapping[str, Any]) -> PermissionMissing:
    found = _PERMISSION.search(text)
    if found is None:
        advice = (
            "Only root@pam itself may do this, no token can"
            if "root@pam" in text
            else f"See what is granted with `pveum user permissions {_user_of(identity)}`"
        )
        return PermissionMissing(f"{identity} may not {asked}", why=f"PVE said: {text}", next_step=advice, facts=facts)
    path, privileges = found["path"], found["privileges"].split("|")
    return permission_missing(asked, identity, path, privileges, any_of=len(privileges) > 1, facts=facts)


def permission_missing(
    asked: str,
    identity: str,
    path: str,
    privileges: list[str] | tuple[str, ...],
    *,
    any_of: bool = False,
    held: Collection[str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> PermissionMissing:
    """`held` is what the identity has on the path already; None if that is not known."""
    joined = (" or " if any_of else " and ").join(privileges)
    return PermissionMissing(
        f"{identity} may not {asked}",
        why=f"It needs the privilege {joined} on {path}",
        next_step=f"To grant it, on a node: `{grant_command(identity, path, privileges, any_of, held)}`"
        + ("" if held is not None else f" (a role given on {path} replaces what is inherited there: keep that in it)"),
        facts={**(facts or {}), "path": path, "privileges": list(privileges)},
    )


def grant_command(
    identity: str,
    path: str,
    privileges: list[str] | tuple[str, ...],
    any_of: bool = False,
    held: Collection[str] | None = None,
) -> str:
    """The `pveum` commands that give `identity` these privileges on `path` and take nothing away.

    A role on a path replaces all that is inherited there, so it has to hold what is `held` as well. A token never has
    more than its user, so both get it; for a token without privilege separation the user's counts.
    """
    needed = ",".join(sorted({*(privileges[:1] if any_of else privileges), *(held or ())}))
    role = "Quorate" + (path if path != "/" else "/all").replace("/", "-")
    holder = f"--users '{_user_of(identity)}'" + (f" --tokens '{identity}'" if "!" in identity else "")
    return (
        f"pveum role add {role} --privs '{needed}' || pveum role modify {role} --append 1 --privs '{needed}'; "
        f"pveum acl modify {path} --roles {role} {holder}"
    )


def _user_of(identity: str) -> str:
    return identity.split("!", 1)[0]


def _parameter(text: str, errors: object, asked: str, facts: Mapping[str, Any]) -> Problem:
    if not isinstance(errors, Mapping) or not errors:
        return ParameterRejected(f"PVE did not accept {asked}: {text}", facts=facts)
    listed = "; ".join(f"{name}: {str(why).strip()}" for name, why in errors.items())
    facts = {**facts, "errors": dict(errors)}
    if any(re.search(r"no such (task|storage)", str(why), re.I) for why in errors.values()):
        return NotFound(f"PVE did not find it: {listed}", next_step=_where_to_look(listed), facts=facts)
    return ParameterRejected(f"PVE did not accept the parameters of {asked}", why=listed, facts=facts)


def _node_offline(path: str, text: str, status: int, facts: Mapping[str, Any]) -> NodeOffline:
    found = _NODE.match(path)
    node = f"Node {found['node']}" if found else "A node of the cluster"
    return NodeOffline(
        f"{node} did not answer ({status} {text})",
        why="The node that was asked could not reach it"
        if status == 595
        else "The connection broke before it answered",
        next_step="See node_list for its state; power it on or repair its network, then try again",
        facts=facts,
    )


def _where_to_look(text: str) -> str:
    lowered = text.lower()
    if "storage" in lowered:
        return "storage_list shows the storages of each node"
    if "node" in lowered and "configuration file" not in lowered:
        return "node_list shows the nodes"
    if "task" in lowered:
        return "task_list shows the recent tasks"
    return "guest_list shows what exists and where"


def conflict_advice(text: str) -> str | None:
    """What to do about a state conflict, by PVE's own words (from an HTTP answer or a failed task)."""
    lowered = text.lower()
    for words, advice in (
        ("powerdown failed", "The guest's OS did not react; look inside, give it more time, or use guest_stop"),
        ("is locked", "A task holds the guest: find it with task_list, wait with task_wait, then try again"),
        ("qmp command 'guest-", "The guest agent took too long for it: the guest is busy or stands still; try again"),
        ("got timeout", "Another task holds the lock: see task_list, then try again"),
        ("already running", "It runs already; nothing was changed"),
        ("agent is not running", "Install and start qemu-guest-agent inside the guest, then try again"),
        ("not running", "Start it first with guest_power action=start"),
        ("is running", "Shut it down first with guest_power action=shutdown"),
        ("is paused", "Resume it first with guest_power action=resume"),
        ("if it's a template", "Templates cannot run; clone it into a guest first"),
        ("protection mode", "The guest is protected; its owner has to switch protection off first"),
        ("checksum mismatch", "Someone changed it meanwhile; read it again and decide anew"),
        ("detected modified configuration", "Someone changed it meanwhile; read it again and decide anew"),
        ("already exists", "Choose another name or id"),
        ("already used", "Choose another name"),
        ("without --online", "It was started meanwhile; call again"),
        ("purge parameter not set", "Give purge=true to take it out of HA and replication as well"),
        ("there is a replication job", "Remove the job first, or give purge=true"),
        ("still in use by linked clone", "Delete the guests that were cloned from it first"),
        ("contains snapshots", "Delete them first with snapshot_delete"),
        ("snapshot feature is not available", "Its storage cannot take snapshots; make a backup or move its disks"),
        ("clone feature", "Ask for full=true, or clone a template or a snapshot"),
        ("only possible from a snapshot", "Take one with snapshot_create and clone that"),
    ):
        if words in lowered:
            return advice
    return None
