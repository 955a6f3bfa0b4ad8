"""What a person should know before they say yes: how the targets are, what would be lost, what to beware of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from quorate.operations.plan import Plan, Target
from quorate.pve.cluster import Cluster
from quorate.pve.errors import NotFound

MOST_TARGETS, MOST_ITEMS = 10, 10
GUESTS = ("vm", "ct")


async def remarks(cluster: Cluster, plan: Plan) -> list[str]:
    """A line for each thing, in our words first: what strangers wrote stands after a colon."""
    parts = [(where or cluster, target) for where, part in plan.parts() for target in targets_of(part)]
    guests = [(where, target) for where, target in parts if target.kind in GUESTS]
    lines = [line for where, target in guests[:MOST_TARGETS] if (line := await _guest(where, target))]
    if len(guests) > MOST_TARGETS:
        lines.append(f"and {len(guests) - MOST_TARGETS} more guests")
    lines += [f"warning: {one}" for one in plan.warnings]
    for name, value in plan.facts.items():
        lines += _fact(name.replace("_", " "), value)
    lines += [f"left as it is: {one}" for one in plan.unchanged]
    return lines + [f"cannot be done: {one}" for one in plan.failures]


def targets_of(plan: Plan) -> list[Target]:
    return list(dict.fromkeys(call.target for call in plan.calls if call.target is not None))


async def _guest(cluster: Cluster, target: Target) -> str:
    try:
        row = (await cluster.guest(int(target.id))).row
    except NotFound:  # one that is to be made
        return ""
    tags = f"; tags: {', '.join(row.tag_list)}" if row.tag_list else ""
    kind = "template" if row.template else row.status
    return f"{target} is {'a ' if row.template else ''}{kind} on {row.node}{tags}"


def _fact(name: str, value: Any) -> Iterator[str]:
    """`disks: scsi0: local-lvm:vm-100-disk-0 32 GiB, …`; what is empty is told only where it would be missed."""
    if isinstance(value, Mapping):
        yield from (line for key, one in value.items() for line in _fact(f"{name} {key}".replace("_", " "), one))
    elif isinstance(value, (list, tuple)):
        yield f"{name}: {_listed(value)}"
    elif value not in (None, ""):
        yield f"{name}: {_word(value)}"


def _listed(values: Iterable[Any]) -> str:
    words = [_word(one) for one in values]
    rest = [f"and {len(words) - MOST_ITEMS} more"] if len(words) > MOST_ITEMS else []
    return ", ".join([*words[:MOST_ITEMS], *rest]) or "none"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={one}" for key, one in value.items())
    return str(value)
