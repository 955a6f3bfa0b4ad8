"""What the approving person reads: losses, every target, the reason for the question, every step.

Nothing is left out, and only free text is shortened: in any other value the end may matter, such as the last user of a
list. A question that is too long to read is refused, not cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from quorate.operations.api.risk import Effect
from quorate.operations.backend import Backend
from quorate.operations.plan import Action, Call, Plan, Target
from quorate.operations.registry import Risk
from quorate.pipeline.authorization import ON_A_NODE
from quorate.pipeline.dependents import describe_dependents
from quorate.pipeline.losses import losses
from quorate.pipeline.responses import redacted_params
from quorate.pipeline.sanitization import clean_text, one_line, shorten
from quorate.problems import NotFound, Problem, Refused
from quorate.pve.cluster import STATUS, Cluster
from quorate.pve.subjects import Subject
from quorate.pve.targets import GUEST
from quorate.pve.tasks import gather_bounded
from quorate.state.approvals import Approval, Remark, RemarkKind

GUESTS = ("vm", "ct")
GUESTS_AT_ONCE = 16
LONGEST_VALUE, LONGEST_WORD = 160, 100
CODE = frozenset({"command", "args", "hookscript", "script", "entrypoint"})
"""Parameters that run."""
FREE_TEXT = frozenset({"description", "comment", "comments", "comments6", "notes", "notes-template", "consent-text"})
"""Parameters that PVE only keeps and shows."""
LONGEST_QUESTION = 24_000
"""About as much as a person reads before answering; more targets must be split into several calls."""


async def briefing(
    backend: Backend,
    plan: Plan,
    reach: Sequence[tuple[Backend, Sequence[Subject]]],
    effects: Sequence[Effect],
    risk: Risk,
) -> list[Remark]:
    """What to know in addition to the steps; text written by others comes after a colon."""
    grave = [one for one in effects if one.risk is risk]
    reasons = [str(one) for one in grave]
    grave_steps = [step for step in plan.calls if isinstance(step, Action) and step.risk is risk]
    reasons += [step.risk_because or ON_A_NODE for step in grave_steps]
    reasons = reasons or ["every change needs approval" if risk is Risk.CHANGE else plan.summary]
    final = any(not one.undoable for one in grave) or (risk is Risk.DESTROY and not grave)
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
            *(f"left as it is: {one}" for one in plan.unchanged),
            *(f"cannot be done: {one}" for one in plan.failures),
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
    yield from (f"{place}: guest {one.id}" for one in plan.about if one.kind in GUESTS)
    for step in plan.calls:
        target = step.target
        if target is not None and target.kind in GUESTS:
            yield f"{place}: guest {target.id}"
        elif isinstance(step, Call):
            new = step.method == "POST" and target is not None and target.kind not in ("api", "node", "storage")
            yield f"{place}: {step.path}/{target.id}" if new and target is not None else f"{place}: {step.path}"
        elif target is not None:
            yield f"{place}: {target}"


def question(row: Approval) -> str:
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
    """Everything that the calls reach, each once; guests with their state."""
    named = {(one.kind, one.id): str(one) for _, subjects in reach for one in subjects if one.kind != GUEST}
    guests = {(place.name, one.id): place for place, subjects in reach for one in subjects if one.kind == GUEST}
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
    """Whether it can be typed: a name with blanks or unseen characters may be meant to mislead."""
    return bool(name) and len(name) <= LONGEST_WORD and clean_text(name) == name and not re.search(r"\s", name)


def _fact(name: str, value: Any) -> Iterator[str]:
    """`disks: scsi0: local-lvm:vm-100-disk-0 32 GiB, …`; empty values are left out, empty lists are not."""
    if isinstance(value, Mapping):
        yield from (line for key, one in value.items() for line in _fact(f"{name} {key}".replace("_", " "), one))
    elif isinstance(value, (list, tuple)):
        yield f"{name}: {', '.join(_word(one) for one in value) or 'none'}"
    elif value not in (None, ""):
        yield f"{name}: {_word(value)}"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={shorten(str(one), LONGEST_VALUE)}" for key, one in value.items())
    return shorten(str(value), LONGEST_VALUE)
