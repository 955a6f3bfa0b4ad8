"""A planned call that needs approval: what it is bound to, and what the person reads before answering.

The question lists losses, every target, the reason for it, and what changes, value by value.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from quorate.operations.backend import Backend
from quorate.operations.plan import Action, Call, Plan, Target
from quorate.operations.preconditions import data_volumes, snapshots_of
from quorate.operations.registry import Risk
from quorate.operations.risk import Effect
from quorate.pipeline.authorization import ON_A_NODE
from quorate.pipeline.bound_objects import describe_changes, describe_dependents, read_bound_objects
from quorate.pipeline.caller import Caller, Question
from quorate.pipeline.record import redacted_params
from quorate.pipeline.redaction import clean_text, escape_invisible, one_line, shorten
from quorate.problems import Conflict, NotFound, Problem, Refused
from quorate.pve import values
from quorate.pve.cluster import STATUS, Cluster, Guest
from quorate.pve.stored_objects import hide_secrets
from quorate.pve.targets import GUEST, Subject
from quorate.pve.tasks import gather_bounded
from quorate.pve.wire import Request, read
from quorate.secret import HIDDEN
from quorate.state.approvals import Approval, Remark, RemarkKind, request_digest
from quorate.state.approvals import Request as ApprovalRow
from quorate.units import moment, size

PIPELINE_ARGUMENTS = ("dry_run", "wait", "plan_token")
"""Arguments of the pipeline itself: calls that differ only in these are the same request."""
LOOK_AGAIN = "Nothing was done. Look at it again, then call again if it is still right"
LONGEST_NAME = 120
"""The longest text of one volume, key or snapshot. Each is cut separately, so a long one cannot hide the next."""

Reader = Callable[[Cluster, Request], Awaitable[list[str]]]

_GUEST: Final = r"/nodes/{node}/(?:qemu|lxc)/{vmid}"
GUESTS = ("vm", "ct")
GUESTS_AT_ONCE = 16
LONGEST_VALUE, LONGEST_WORD = 160, 100
CODE = frozenset({"command", "args", "hookscript", "script", "entrypoint"})
"""Parameters that run."""
FREE_TEXT = frozenset({"description", "comment", "comments", "comments6", "notes", "notes-template", "consent-text"})
"""Parameters that PVE only keeps and shows."""
LONGEST_QUESTION = 24_000
"""About as much as a person reads before answering; more targets must be split into several calls."""
LONGEST_STORED_VALUE = 200
MOST_DIFFERENCES = 200
NO_VALUES = frozenset({"delete", "revert", "digest", "force", "skiplock", "background_delay"})
"""Parameters that say how to write, not what."""


class Difference(NamedTuple):
    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A planned call that needs approval."""

    tool: str
    risk: Risk
    arguments: Mapping[str, Any]
    plan: Plan
    lines: tuple[str, ...]
    """The plan's calls as the operator sees them: without secrets."""
    summary: str
    remarks: tuple[Remark, ...] = ()
    """What else the person should know, without secrets."""
    differences: tuple[Difference, ...] = ()
    targets: tuple[str, ...] = ()
    """What it is about, to find earlier answers: `target_keys`."""
    change: str = ""
    """The id of the journal entry that will use the approval."""
    judged: str = ""
    """The identity at the time when the plan was judged; empty for a plan that nobody has to approve."""

    def as_row(self, caller: Caller, cluster: str, identity: str) -> ApprovalRow:
        who = _caller_key(caller)
        exact = {name: value for name, value in self.arguments.items() if name not in PIPELINE_ARGUMENTS}
        digest = request_digest(who, cluster, self.tool, exact)
        return ApprovalRow(
            who,
            cluster,
            self.tool,
            self.risk.value,
            digest,
            identity,
            self.summary,
            self.lines,
            self.remarks,
            self.word(cluster),
            self.differences,
            self.targets,
        )

    def word(self, site: str) -> str:
        """What a person types to approve."""
        return confirmation_word(self.plan, site)

    def question(self, row: Approval, now: float) -> Question:
        """The question for the person at the client."""
        return Question(row.id, _question_text(row), row.word, asked=now)

    async def identity(self, backend: Backend) -> str:
        """What the plan acts on, as it is now, and what it would do: a change in either makes it another request."""
        bound = await read_bound_objects(backend, self.plan)
        parts = [*(self.plan.without_chosen_names(str(each)) for each in bound), f"plan: {self.plan.digest[:16]}"]
        return escape_invisible("; ".join(parts))

    async def confirm_identity(self, backend: Backend) -> None:
        """Raise if anything that the plan acts on is not what was judged, or cannot be read any more."""
        try:
            now = await self.identity(backend)
        except Conflict:
            raise
        except Problem as problem:
            raise Conflict(
                f"{self.summary}: what it acts on cannot be verified", why=str(problem), next_step=LOOK_AGAIN
            ) from None
        if now != self.judged:
            raise Conflict(
                f"{self.summary}: what it acts on has changed in the meantime",
                why=f"Changed: {describe_changes(self.judged, now)}",
                next_step=LOOK_AGAIN,
            )


def _caller_key(caller: Caller) -> str:
    """The caller that an approval is bound to: the token's subject, otherwise the client and its transport."""
    return f"{caller.transport}:{caller.subject or caller.client}"


# -- the question ------------------------------------------------------------------------------------------------------


async def briefing(
    backend: Backend,
    plan: Plan,
    reach: Sequence[tuple[Backend, Sequence[Subject]]],
    effects: Sequence[Effect],
    risk: Risk,
) -> list[Remark]:
    """What to know in addition to the steps; text written by others comes after a colon."""
    grave = [effect for effect in effects if effect.risk is risk]
    reasons = [str(effect) for effect in grave]
    grave_steps = [step for step in plan.calls if isinstance(step, Action) and step.risk is risk]
    reasons += [step.risk_because or ON_A_NODE for step in grave_steps]
    reasons = reasons or ["every change needs approval" if risk is Risk.CHANGE else plan.summary]
    final = any(not effect.undoable for effect in grave) or (
        risk is Risk.DESTROY and not grave and not plan.destroys_only_its_own
    )
    facts = (line for name, value in plan.facts.items() for line in _fact(name.replace("_", " "), value))
    lines: Mapping[RemarkKind, Iterable[str]] = {
        RemarkKind.FINAL: ["This cannot be undone"] if final else [],
        RemarkKind.LOST: await losses(backend, plan),
        RemarkKind.TARGET: await _targets(backend, plan, reach),
        RemarkKind.REACH: await describe_dependents(backend, plan),
        RemarkKind.REASON: dict.fromkeys(reasons),
        RemarkKind.WARNING: map(str, plan.warnings),
        RemarkKind.OTHER: [
            *facts,
            *(f"left as it is: {target}" for target in plan.unchanged),
            *(f"cannot be done: {failure}" for failure in plan.failures),
        ],
    }
    return [Remark(kind, one_line(text)) for kind, texts in lines.items() for text in texts]


def targets_of(plan: Plan) -> list[Target]:
    return list(dict.fromkeys(call.target for call in plan.calls if call.target is not None))


def step_line(step: Call | Action, risk: Risk) -> str:
    """A step with all its parameters, in full except for free text."""
    if isinstance(step, Action):
        return one_line(f"{step.line} {step.input if risk is Risk.DESTROY else ''}")
    params = (f"{name}={_render(name, one_line(str(value)))}" for name, value in redacted_params(step).items())
    return " ".join([step.method, step.path, *params])


def runs_code(step: Call | Action) -> bool:
    """Whether the line of a step is a command, or contains one."""
    return isinstance(step, Action) or bool(CODE & step.params.keys())


def _render(name: str, text: str) -> str:
    return shorten(text, LONGEST_VALUE) if name in FREE_TEXT else text


def confirmation_word(plan: Plan, site: str) -> str:
    """What the person types: the name of the only target, or the number of targets.

    Steps without a target are about the site as a whole.
    """
    targets = {
        (where.name if where else site, "guest" if target.kind in GUESTS else target.kind, target.id): target
        for where, part in ([(None, plan)] if plan.about else plan.parts())
        for target in plan.about or targets_of(part)
    }
    nameless = set() if plan.about else {call.summary for call in plan.calls if call.target is None}
    if not targets and len(nameless) <= 1:
        return site
    if len(targets) == 1 and not nameless:
        return _typeable_name(*targets.values())
    kinds = {kind for _, kind, _ in targets}
    return f"{len(targets) + len(nameless)} {'targets' if nameless or len(kinds) > 1 else f'{kinds.pop()}s'}"


def _typeable_name(target: Target) -> str:
    name = target.name or target.id
    if target.kind == "api":
        name = name.rstrip("/").rpartition("/")[2]  # the object's own name: /cluster/backup/nightly
    return name if _is_a_word(name) else target.id


def target_keys(place: str, plan: Plan, subjects: Iterable[Subject]) -> Iterator[str]:
    """What the calls are about, whichever tool makes them: guests, hosts, and stored objects by their path."""
    for subject in subjects:
        if subject.kind == GUEST and not subject.secret:
            yield f"{place}: guest {subject.id}"
    yield from (f"{place}: guest {target.id}" for target in plan.about if target.kind in GUESTS)
    for step in plan.calls:
        target = step.target
        if target is not None and target.kind in GUESTS:
            yield f"{place}: guest {target.id}"
        elif isinstance(step, Call):
            new = step.method == "POST" and target is not None and target.kind not in ("api", "node", "storage")
            yield f"{place}: {step.path}/{target.id}" if new and target is not None else f"{place}: {step.path}"
        elif target is not None:
            yield f"{place}: {target}"


def _question_text(row: Approval) -> str:
    parts = [
        [row.reminder] if row.reminder else [],
        [row.summary],
        [f"- {line}" for line in row.remarks],
        [f"Cluster: {row.cluster}", *row.plan],
        [f"Type {row.word} to approve."],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def refuse_unreadable(summary: str, lines: Iterable[str]) -> None:
    """Refuse a question that nobody would read to its end."""
    length = len(summary) + sum(len(line) + 1 for line in lines)
    if length > LONGEST_QUESTION:
        raise Refused(
            f"{shorten(summary, LONGEST_VALUE)}: too much for one approval",
            why=f"Naming every target and effect takes {length} characters; the limit is {LONGEST_QUESTION}",
            next_step="Nothing was done. Choose fewer targets, and call once for each part",
        )


def refuse_given_secrets(summary: str, texts: Iterable[str], hides: Callable[[str], bool]) -> None:
    """Refuse a question in which a secret that the caller chose would blank out something else."""
    if any(hides(text) for text in texts):
        raise Refused(
            f"{shorten(summary, LONGEST_VALUE)}: a secret in this call occurs elsewhere in it, too",
            why="It would be hidden there from the person who approves",
            next_step="Nothing was done. Choose another secret, or make separate calls",
        )


async def _targets(backend: Backend, plan: Plan, reach: Sequence[tuple[Backend, Sequence[Subject]]]) -> list[str]:
    """Everything that the calls reach, each once; guests of a cluster with their state."""
    reached = [(place, subject) for place, subjects in reach for subject in subjects]
    guests = {
        (place.name, subject.id): place for place, subject in reached if subject.kind == GUEST and place.endpoints
    }
    named = {
        (subject.kind, subject.id): str(subject)
        for place, subject in reached
        if (place.name, subject.id) not in guests or subject.kind != GUEST
    }
    for where, part in plan.parts():
        place = where or backend
        place.forget()  # the person decides on how things are now
        for target in targets_of(part):
            if target.kind in GUESTS:
                guests.setdefault((place.name, target.id), place)
            else:
                named.setdefault((target.kind, target.id), str(target))
    states = [partial(_guest_state, place.api, vmid) for (_, vmid), place in guests.items()]
    lines = await gather_bounded(GUESTS_AT_ONCE, states)
    return [*(line for line in lines if line), *named.values()]


async def _guest_state(cluster: Cluster, vmid: str) -> str:
    """As its node reports it, because the cluster's view lags by seconds; empty if it does not exist yet."""
    try:
        guest = await cluster.guest(int(vmid))
    except NotFound:
        return ""
    with suppress(Problem):  # of a node that does not answer, the cluster knows the last state
        await guest.get(STATUS)
    row = guest.row
    tags = f", tags: {', '.join(row.tag_list)}" if row.tag_list else ""
    return f"{guest}, {'a template' if row.template else row.status} on {row.node}{tags}"


def _is_a_word(name: str) -> bool:
    """A name that can be typed; one with blanks or unseen characters may be meant to mislead."""
    return bool(name) and len(name) <= LONGEST_WORD and clean_text(name) == name and not re.search(r"\s", name)


def _fact(name: str, value: Any) -> Iterator[str]:
    """`disks: scsi0: local-lvm:vm-100-disk-0 32 GiB, …`; empty values are left out, empty lists are not."""
    if isinstance(value, Mapping):
        yield from (line for key, item in value.items() for line in _fact(f"{name} {key}".replace("_", " "), item))
    elif isinstance(value, (list, tuple)):
        yield f"{name}: {', '.join(_word(item) for item in value) or 'none'}"
    elif value not in (None, ""):
        yield f"{name}: {_word(value)}"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={shorten(str(item), LONGEST_VALUE)}" for key, item in value.items())
    return shorten(str(value), LONGEST_VALUE)


# -- what would be lost ------------------------------------------------------------------------------------------------


async def losses(backend: Backend, plan: Plan) -> list[str]:
    """One line for each thing that would be lost; empty if the plan destroys nothing that can be listed."""
    lines: list[str] = []
    for where, part in plan.parts():
        handed_over: set[tuple[str, str]] = set()
        lines += [line for step in part.calls if isinstance(step, Action) for line in step.loses]
        for call in part.api_calls:
            guest = re.search(r"/(?:qemu|lxc)/(\d+)", call.path)
            if guest is None or int(guest[1]) not in part.claimed_vmids:  # what it makes itself has nothing yet
                lines += await _lost_by((where or backend).api, call, handed_over)
            if guest is not None and not plan.independent:  # else the deletion would not wait for it
                handed_over |= {(guest[1], disk) for disk in _handed_over(call)}
    return list(dict.fromkeys(lines))


def _handed_over(call: Call) -> Iterator[str]:
    """The disk that a call gives to another guest. The guest that had it no longer owns it when it is deleted later."""
    if call.method == "POST" and re.search(r"/(?:qemu|lxc)/\d+/move_(?:disk|volume)$", call.path):
        new_owner = str(call.params.get("target-vmid", ""))
        if new_owner and f"/{new_owner}/move_" not in call.path:
            yield str(call.params.get("disk") or call.params.get("volume") or "")


async def _lost_by(cluster: Cluster, call: Call, handed_over: Collection[tuple[str, str]] = ()) -> list[str]:
    request = read(await cluster.facts(), call.method, call.path, call.params)
    if request is None:
        return []
    for method, where, list_losses in _READERS:
        if method == request.method and re.fullmatch(where, request.template):
            try:
                if list_losses is _guest:
                    guest = await _guest_of(cluster, request)
                    return await _contents(guest, {disk for vmid, disk in handed_over if vmid == str(guest.vmid)})
                return await list_losses(cluster, request)
            except Problem as problem:
                return [f"What {call.path} holds could not be read: {problem.what}"]
    return []


async def _guest(cluster: Cluster, request: Request) -> list[str]:
    return await _contents(await _guest_of(cluster, request))


async def _guest_of(cluster: Cluster, request: Request) -> Guest:
    return await cluster.guest(int(request.text("vmid")))


async def _replaced_guest(cluster: Cluster, request: Request) -> list[str]:
    """A restore with `force` destroys the guest that has the id."""
    if not request.is_on("force"):
        return []
    try:
        return await _guest(cluster, request)
    except (NotFound, ValueError):
        return []


async def _contents(guest: Guest, handed_over: Collection[str] = ()) -> list[str]:
    """Its disks and snapshots, without the disks that another guest has by then."""
    config = {key: value for key, value in (await guest.get("config")).items() if key not in handed_over}
    disks = [
        f"{drive.key} {drive.volid}" + (f" {size(drive.size)}" if drive.size else "") for drive in data_volumes(config)
    ]
    disks += [f"{key} {config[key]}" for key in sorted(config) if key.startswith("unused")]
    snapshots = [str(row["name"]) for row in await snapshots_of(guest)]
    return [
        f"{guest}: {what}: {', '.join(map(_short, names))}"
        for what, names in (("disks", disks), ("snapshots", snapshots))
        if names
    ]


async def _config(cluster: Cluster, request: Request) -> list[str]:
    """Drives and volumes that a configuration change removes or replaces."""
    guest = await _guest_of(cluster, request)
    now = await guest.get("config")
    replaced = [
        name
        for name in _drives(request.params)
        if values.volume_of(request.text(name)) != values.volume_of(str(now.get(name, "")))
    ]
    return _option_lines(guest, now, [*_drives(request.elements("delete")), *replaced])


async def _unlinked_disks(cluster: Cluster, request: Request) -> list[str]:
    guest = await _guest_of(cluster, request)
    return _option_lines(guest, await guest.get("config"), request.elements("idlist"))


def _drives(names: Iterable[str]) -> list[str]:
    return [name for name in names if values.bus_of(name) in (*values.DISKS, "unused")]


def _option_lines(guest: Guest, config: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    return [f"{guest}: {key}: {_short(str(config[key]))}" for key in dict.fromkeys(keys) if key in config]


async def _snapshot(cluster: Cluster, request: Request) -> list[str]:
    guest, name = await _guest_of(cluster, request), request.text("snapname")
    row = next((snapshot for snapshot in await snapshots_of(guest) if snapshot["name"] == name), {})
    return [f"{guest}: snapshot {_short(name)}, taken {moment(row['snaptime'])}"] if row.get("snaptime") else []


async def _rollback(cluster: Cluster, request: Request) -> list[str]:
    return [f"{line}: everything since then" for line in await _snapshot(cluster, request)]


async def _volume(cluster: Cluster, request: Request) -> list[str]:
    node, storage, volume = (request.text(name) for name in ("node", "storage", "volume"))
    volume = volume if ":" in volume else f"{storage}:{volume}"
    listed = await cluster.get(f"/nodes/{node}/storage/{storage}/content")
    row = next((entry for entry in listed if entry["volid"] == volume), None)
    if row is None:
        return []
    about = [row.get("content", ""), size(row["size"]) if row.get("size") else "", row.get("notes", "")]
    return [f"{_short(volume)}: {_short(', '.join(str(part) for part in about if part))}"]


async def _pruned_volumes(cluster: Cluster, request: Request) -> list[str]:
    """The same endpoint previews what it would delete."""
    path = f"/nodes/{request.text('node')}/storage/{request.text('storage')}/prunebackups"
    preview = await cluster.get(path, **request.params)
    return [_short(str(row["volid"])) for row in preview if row.get("mark") == "remove"]


def _short(text: str) -> str:
    return shorten(one_line(text), LONGEST_NAME)


_READERS: Final[tuple[tuple[str, str, Reader], ...]] = (
    ("DELETE", _GUEST, _guest),
    ("POST", r"/nodes/{node}/(?:qemu|lxc)", _replaced_guest),
    ("PUT", rf"{_GUEST}/config", _config),
    ("POST", rf"{_GUEST}/config", _config),
    ("PUT", rf"{_GUEST}/unlink", _unlinked_disks),
    ("DELETE", rf"{_GUEST}/snapshot/{{snapname}}", _snapshot),
    ("POST", rf"{_GUEST}/snapshot/{{snapname}}/rollback", _rollback),
    ("DELETE", r"/nodes/{node}/storage/{storage}/content/{volume}", _volume),
    ("DELETE", r"/nodes/{node}/storage/{storage}/prunebackups", _pruned_volumes),
)


# -- what changes, value by value --------------------------------------------------------------------------------------


async def differences(backend: Backend, plan: Plan) -> list[Difference]:
    """Empty where nothing that exists is changed; creations and deletions are described elsewhere."""
    changes: list[Difference] = []
    for where, part in plan.parts():
        for call in part.api_calls:
            changes += await _changed_by((where or backend).api, call)
    return list(dict.fromkeys(changes))[:MOST_DIFFERENCES]


async def _changed_by(cluster: Cluster, call: Call) -> list[Difference]:
    facts = await cluster.facts()
    request = read(facts, call.method, call.path, call.params)
    writes = call.method == "PUT" or (call.method == "POST" and call.path.endswith("/config"))
    if request is None or not writes or facts.find("GET", call.path) is None:
        return []
    try:
        current = await cluster.get(call.path)
    except Problem:
        return []
    if not isinstance(current, Mapping):
        return []
    return list(_compare(call, request, hide_secrets(request.template, current)))


def _compare(call: Call, request: Request, current: Mapping[str, Any]) -> Iterator[Difference]:
    subject = str(call.target) if call.target else call.path
    new = {
        name: value if isinstance(value, str) else ", ".join(map(str, value))
        for name, value in redacted_params(call).items()
        if name not in NO_VALUES and f"{{{name}}}" not in request.template
    }
    new |= dict.fromkeys(request.elements("delete"), "")
    for name, after in new.items():
        before = HIDDEN if after == HIDDEN and name in current else str(current.get(name, ""))
        if before != after or after == HIDDEN:
            yield Difference(f"{subject}: {name}", _value(before), _value(after))


def _value(text: str) -> str:
    return shorten(one_line(text), LONGEST_STORED_VALUE)
