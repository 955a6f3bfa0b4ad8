"""PVE's errors as problems: what happened, why, what to do next."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from quorate.documents import BodyRefused
from quorate.hints import Advice, either, see, tools
from quorate.problems import (
    AgentNotConfigured,
    AgentSilent,
    AuthenticationFailed,
    BadArgument,
    Conflict,
    ListingRaced,
    NodeOffline,
    NoQuorum,
    NotFound,
    OutcomeUnknown,
    Overtaken,
    ParameterRejected,
    PermissionMissing,
    Problem,
    ServerFailed,
    TimedOut,
    Unreachable,
)
from quorate.pve import trust
from quorate.pve.connection import PVE, Connection, Product
from quorate.pve.uploads import UploadBody

# PVE answers nearly every semantic error with HTTP 500, so only its text distinguishes them.
_CONFLICT = re.compile(
    r"already running|not running|is running|is locked|already exists|already defined|already used|is paused"
    r"|protection mode|checksum mismatch|detected modified configuration|got timeout|got lock request timeout"
    r"|without --online|still in use|is not empty|can't overwrite running|already at specified size"
    r"|if it's a template|contains snapshots|convert a template|is already a|purge parameter not set"
    r"|clone feature|only possible from a snapshot|there is a replication job",
    re.I,
)
_NO_AGENT = "No QEMU guest agent configured"
_NOT_FOUND = re.compile(r"does not exist|no such |unable to find configuration file|hostname lookup '", re.I)
_LISTING = re.compile(r"/nodes/[^/]+/(?:qemu|lxc|storage|tasks|storage/[^/]+/(?:content|status))")
# What a program on the node or the cluster's file system says about a file that was there a moment ago.
_VANISHED = re.compile(
    r"No such file or directory|qemu-img|unable to stat|Configuration file '.*' does not exist", re.I
)
_OBJECTS = re.compile(r" ?(?:ssl:)?<[^<>]* object at [^<>]*>")
_ID_TAKEN = re.compile(r"\.conf' failed: File exists|(?:VM|CT) \d+ already exists on node")
# Without quorum /etc/pve is read-only, and PVE says so in three ways.
_NO_QUORUM = re.compile(r"no quorum|unable to open file '/etc/pve/[^']*' - Permission denied", re.I)
_PERMISSION = re.compile(r"Permission check failed \((?P<path>/[^,]*), (?P<privileges>[^)]+)\)")
_NODE = re.compile(r"^/nodes/(?P<node>[^/]+)")


def http_problem(
    method: str,
    path: str,
    status: int,
    reason: str,
    body: Mapping[str, Any],
    *,
    identity: str = "the configured user",
) -> Problem:
    """Convert an HTTP error of PVE. `identity` is who called, for the grant commands."""
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
                next_step=Advice("The call may need another PVE version; see which one runs", tools.node_get),
                facts=facts,
            )
    if lacks_quorum(text):
        return NoQuorum(NO_QUORUM, why=f"PVE said: {text}", next_step=QUORUM_ADVICE, facts=facts)
    if method == "GET" and _LISTING.fullmatch(path) and _VANISHED.search(text):
        return ListingRaced(f"PVE could not list {path}", why=f"It said: {text}", next_step="Try again", facts=facts)
    if _NOT_FOUND.search(text):
        return NotFound(f"PVE did not find it: {text}", next_step=_where_to_look(text), facts=facts)
    if _CONFLICT.search(text):
        return _conflict(text)(f"PVE refused: {text}", next_step=conflict_advice(text), facts=facts)
    if status in (502, 503, 504):
        return Unreachable(f"A gateway answered {status} instead of PVE", why=text, facts=facts)
    kind = AgentNotConfigured if _NO_AGENT in text else ServerFailed
    return kind(f"PVE answered {status} to {asked}: {text}", facts=facts)


def _conflict(text: str) -> type[Conflict]:
    lowered = text.lower()
    if "already exists" in lowered:
        return Overtaken
    return AgentSilent if "agent is not running" in lowered else Conflict


def _text_of(reason: str, body: Mapping[str, Any]) -> str:
    """`message` has the full text since PVE 8.4; before that there is only the reason phrase."""
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
    match = _PERMISSION.search(text)
    if match is None:
        advice = (
            "Only root@pam itself may do this; no token can"
            if "root@pam" in text
            else f"See what is granted with `pveum user permissions {_user_of(identity)}`"
        )
        return PermissionMissing(f"{identity} may not {asked}", why=f"PVE said: {text}", next_step=advice, facts=facts)
    path, privileges = match["path"], match["privileges"].split("|")
    return PrivilegeGap(identity, path, privileges, any_of=len(privileges) > 1).problem(asked, facts)


@dataclass(frozen=True, slots=True)
class PrivilegeGap:
    """Privileges that an identity needs on a path and does not have."""

    identity: str
    path: str
    privileges: Sequence[str]
    any_of: bool = False
    """Whether one of them is enough."""
    held: Collection[str] | None = None
    """What the identity already has on the path; None if unknown."""
    role: str | None = None
    """The custom role that grants what is held, if any."""

    def problem(self, asked: str, facts: Mapping[str, Any] | None = None) -> PermissionMissing:
        joined = (" or " if self.any_of else " and ").join(self.privileges)
        replaced = f" (a role on {self.path} replaces what is inherited there, so include that)"
        return PermissionMissing(
            f"{self.identity} may not {asked}",
            why=f"It needs the privilege {joined} on {self.path}",
            next_step=f"To grant it, on a node: `{self.grant_command()}`" + (replaced if self.held is None else ""),
            facts={**(facts or {}), "path": self.path, "privileges": list(self.privileges)},
        )

    def grant_command(self) -> str:
        """One line that grants the privileges and revokes nothing: what is missing is added to the role.

        Without a role to extend, a new one replaces everything inherited on the path, so it includes what is held.
        A token never has more than its user, so both get it; without privilege separation only the user's count.
        """
        held = self.held or ()
        if self.role is not None:
            missing = [privilege for privilege in self.privileges if privilege not in held]
            return (
                f"pveum role modify {self.role} --append 1 --privs {','.join(missing[:1] if self.any_of else missing)}"
            )
        needed = ",".join(sorted({*(self.privileges[:1] if self.any_of else self.privileges), *held}))
        new = "Quorate" + (self.path if self.path != "/" else "/all").replace("/", "-")
        token = f" --tokens '{self.identity}'" if "!" in self.identity else ""
        return (
            f"pveum role add {new} --privs '{needed}' || pveum role modify {new} --append 1 --privs '{needed}'; "
            f"pveum acl modify {self.path} --roles {new} --users '{_user_of(self.identity)}'{token}"
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
    match = _NODE.match(path)
    node = f"Node {match['node']}" if match else "A node of the cluster"
    return NodeOffline(
        f"{node} did not answer ({status} {text})",
        why="The node that was asked could not reach it"
        if status == 595
        else "The connection broke before it answered",
        next_step=Advice("Check its state; power it on or repair its network, then try again", tools.node_list),
        facts=facts,
    )


def node_is_offline(node: str) -> NodeOffline:
    """The refusal to wait for a node that is known not to answer."""
    return NodeOffline(
        f"Node {node} is offline",
        why="The other nodes say so, and it did not answer",
        next_step=Advice("Power it on or repair its network; the other nodes answer as usual", tools.node_list),
        facts={"status": 595},
    )


_MISSING_HOLDER: Final = re.compile(r"\bno such (user|token|group|role|realm)\b")


def _where_to_look(text: str) -> Advice:
    lowered = text.lower()
    if "storage" in lowered:
        return see("List the storages of each node", tools.storage_list)
    if "node" in lowered and "configuration file" not in lowered:
        return see("List the nodes", tools.node_list)
    if "task" in lowered:
        return see("List the recent tasks", tools.task_list)
    if match := _MISSING_HOLDER.search(lowered):
        return see(f"List the {match[1]}s", tools.access_list(kind=f"{match[1]}s"))
    return see("See what exists and where", tools.guest_list)


_CONFLICTS: Final[tuple[tuple[str, Advice], ...]] = (
    (
        "powerdown failed",
        Advice("The guest's OS did not react: look inside, allow more time, or stop it", tools.guest_stop),
    ),
    ("is locked", Advice("If a task holds the guest, wait for it and try again", tools.task_list, tools.task_wait)),
    ("qmp command 'guest-", Advice("The guest agent did not answer in time; the guest may be busy. Try again")),
    ("got timeout", Advice("Another task holds the lock: see which, then try again", tools.task_list)),
    ("already running", Advice("It is already running; nothing was changed")),
    ("agent is not running", Advice("Install and start qemu-guest-agent inside the guest, then try again")),
    ("not running", Advice("Start it first", tools.guest_power(action="start"))),
    ("is running", Advice("Shut it down first", tools.guest_power(action="shutdown"))),
    ("is paused", Advice("Resume it first", tools.guest_power(action="resume"))),
    ("if it's a template", Advice("Templates cannot run; clone it into a guest first", tools.guest_clone)),
    ("protection mode", Advice("The guest is protected; its owner has to switch protection off first")),
    ("checksum mismatch", Advice("Someone else changed it; read it again, then decide")),
    ("detected modified configuration", Advice("Someone else changed it; read it again, then decide")),
    ("already exists", Advice("Choose another name or id")),
    ("already used", Advice("Choose another name")),
    ("without --online", Advice("It has been started since; call again")),
    ("purge parameter not set", Advice("Give {purge} to remove it from HA and replication as well", purge=True)),
    ("there is a replication job", either("Remove the job first", Advice("give {purge}", purge=True))),
    ("still in use by linked clone", Advice("First delete the guests that were cloned from it")),
    ("contains snapshots", Advice("Delete them first", tools.snapshot_delete)),
    ("snapshot feature is not available", Advice("Its storage cannot take snapshots; make a backup or move its disks")),
    ("clone feature", either(Advice("Ask for {full}", full=True), "clone a template or a snapshot")),
    ("only possible from a snapshot", Advice("Take a snapshot and clone that", tools.snapshot_create)),
)


NO_QUORUM: Final = "The cluster has no quorum, so it refuses changes"
QUORUM_ADVICE: Final = Advice(
    "See which nodes are offline and bring enough of them back. Until then you can read everything, and stop, shut "
    "down or reset guests that run",
    tools.cluster_status,
)


def lacks_quorum(text: str) -> bool:
    """Whether PVE's words, in an answer, a task's end or a line of its log, mean that the cluster has no quorum."""
    return _NO_QUORUM.search(text) is not None


def failure_advice(exit_status: str, log: Sequence[str] = ()) -> Advice | None:
    """What to do about a failed task. Some, such as backups, name the cause only in their log."""
    if any(map(lacks_quorum, (exit_status, *log))):
        return QUORUM_ADVICE
    return conflict_advice(exit_status)


def conflict_advice(text: str) -> Advice | None:
    """What to do about a state conflict, by PVE's own words (from an HTTP answer or a failed task)."""
    lowered = text.lower()
    return next((advice for words, advice in _CONFLICTS if words in lowered), None)


def id_was_taken(exit_status: str) -> bool:
    """Whether a task ended because another guest took its id. PVE finds that out only inside the task, before any
    work, if the guest is on another node or of the other type."""
    return _ID_TAKEN.search(exit_status) is not None


async def explain(connection: Connection, endpoint: str, method: str, path: str, error: Exception) -> Problem:
    """Why there is no answer. The order matters, because aiohttp's errors derive from each other."""
    match error:
        case aiohttp.ServerFingerprintMismatch():
            return trust.mismatch(endpoint, connection, error.got)
        case aiohttp.ClientConnectorCertificateError():
            cause = error.certificate_error
            why = str(getattr(cause, "verify_message", "") or cause)
            return await trust.untrusted_certificate(endpoint, connection.product, why)
        case aiohttp.ClientSSLError():
            return Unreachable(
                f"{endpoint} does not speak TLS as expected",
                why=connection_failure(error),
                next_step=f"Check the port ({connection.product.name}'s is {connection.product.port})",
            )
        case aiohttp.ConnectionTimeoutError() | aiohttp.ClientConnectorError():
            return _no_connection(endpoint, error)
        case TimeoutError():
            return too_slow(connection, method, path)
        case BodyRefused():
            return _rejected_answer(connection.product, method, path, error)
        case _:
            return _broken_connection(connection.product, method, path, error)


def too_slow(connection: Connection, method: str, path: str) -> Problem:
    seconds = connection.limits.request_seconds
    if method != "GET":
        return outcome_unknown(method, path, f"There was no answer within {seconds:g} s", connection.product)
    return TimedOut(
        f"{connection.product.name} did not answer GET {path} within {seconds:g} s",
        next_step=Advice(
            "The node may be overloaded: check it, or raise request_seconds in the config", connection.product.overview
        ),
    )


def not_its_api(product: Product, path: str, status: int, size: int, error: str) -> Problem:
    return ServerFailed(
        f"The answer to {path} is not from the {product.name} API",
        why=f"HTTP {status}, {size} bytes: {error}",
        next_step=f"Check that the address is {product.name}'s own (port {product.port}) and not a web proxy in front "
        "of it",
    )


def explain_no_address(failures: Sequence[Unreachable]) -> Unreachable:
    """All addresses of a cluster failed, each in its own way."""
    if len(failures) == 1:
        return failures[0]
    each = [f"{problem.what} ({problem.why})" if problem.why else problem.what for problem in failures]
    return Unreachable(
        f"None of the {len(failures)} addresses of the cluster can be reached",
        why="; ".join(each),
        next_step="Check the addresses and ports, that the nodes are up, and that no firewall is in between",
    )


def connection_failure(error: Exception) -> str:
    """Why a connection failed, in the system's words: those of aiohttp and asyncio contain Python's objects."""
    cause = getattr(error, "os_error", None) or error
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and cause.errno and cause.errno > 0:
        return os.strerror(cause.errno)
    return _OBJECTS.sub("", str(cause)) or type(cause).__name__


def _no_connection(endpoint: str, error: Exception) -> Unreachable:
    why = connection_failure(error)
    return Unreachable(
        f"No connection to {endpoint}",
        why=why,
        next_step="Check the address and port, that the node is up, and that no firewall is in between",
    )


def _broken_connection(product: Product, method: str, path: str, error: Exception) -> Problem:
    why = connection_failure(error)
    if method != "GET":
        return outcome_unknown(method, path, f"The connection broke: {why}", product)
    return TimedOut(
        f"The connection broke during GET {path}",
        why=why,
        next_step=Advice("Try again; if it persists, check the nodes", product.overview),
    )


def _rejected_answer(product: Product, method: str, path: str, error: BodyRefused) -> Problem:
    if method != "GET":
        return outcome_unknown(method, path, f"The answer {error}", product)
    return ServerFailed(
        f"The answer to GET {path} was rejected",
        why=f"It {error}",
        next_step="Request less, such as one node or a limit; the operator can raise answer_bytes",
    )


def unreadable_file(error: Exception) -> Problem:
    return BadArgument("The file could not be read completely", why=str(error), next_step="Nothing was stored")


def interrupted_upload(body: UploadBody, problem: OutcomeUnknown) -> Problem:
    if body.fault is not None:
        return unreadable_file(body.fault)
    if body.complete:
        return problem
    return TimedOut(
        f"The upload was interrupted after {body.sent >> 20} of {body.size >> 20} MiB",
        why=f"{problem.why} PVE discards an incomplete upload",
        next_step="Nothing was stored; try again. If it persists, the node may be out of space in /var/tmp",
    )


def outcome_unknown(method: str, path: str, why: str, product: Product = PVE) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"It is not known whether {method} {path} took effect",
        why=why,
        next_step=Advice(
            "It was not sent again. Look at the tasks and the target before you repeat it", product.recent_tasks
        ),
    )
