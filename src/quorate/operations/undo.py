"""What a change replaced, so that it can be undone exactly.

The options that a change sets are read with the same request before it, and again after it; the journal keeps both.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pve_schema.formats import split_list
from pve_schema.schema import Facts
from quorate.operations.plan import Action, Call
from quorate.problems import Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.pve.stored_objects import CONTROL, hide_secrets
from quorate.state.chain import canonical

_SIDE_EFFECT: Final = re.compile(r"boot|bootdisk|unused\d+")
"""Options that PVE itself adjusts when devices come or go."""
_SNAPSHOT: Final = re.compile(r"/nodes/[^/]+/(?:qemu|lxc)/\d+/snapshot")
_MASKED: Final = re.compile(r"\*+")
Values = dict[str, Any]
"""The options of an object."""


def touched_keys(call: Call, path_values: Mapping[str, str]) -> list[str]:
    """The options that a call sets or deletes."""
    set_ = [name for name in call.params if name not in CONTROL and name not in path_values]
    return sorted({*set_, *(name for name in split_list(str(call.params.get("delete", ""))) if name)})


def is_observable(facts: Facts, call: Call) -> bool:
    """Whether the options that it sets can be read where they are written."""
    writes = call.method == "PUT" or (call.method == "POST" and call.path.endswith("/config"))
    known = facts.find(call.method, call.path) is not None and facts.find("GET", call.path) is not None
    return writes and known and call.upload is None


def options_in(facts: Facts, call: Call, content: Any) -> Values | None:
    """The options that the call is about, as the object that it writes to has them; None if it has no options."""
    match = facts.find(call.method, call.path)
    if match is None or not isinstance(content, dict):
        return None
    now = hide_secrets(match.endpoint.template, content)  # the journal keeps what is returned here
    keys = {*touched_keys(call, match.values), *(key for key in now if _SIDE_EFFECT.fullmatch(key))}
    return {name: now.get(name) for name in sorted(keys)}


async def read_options(cluster: Cluster, call: Call) -> Values | None:
    """The options that the call is about, as they are now; None if they cannot be read."""
    facts = await cluster.facts()
    if not is_observable(facts, call):
        return None
    try:
        return options_in(facts, call, await cluster.get(call.path))
    except Problem:
        return None


async def read_all_options(cluster: Cluster, calls: Sequence[Call | Action]) -> dict[int, Values]:
    """By the number of the step."""
    options: dict[int, Values] = {}
    for number, call in enumerate(calls, 1):
        current = await read_options(cluster, call) if isinstance(call, Call) else None
        if current is not None:
            options[number] = current
    return options


def replaced_values(before: Mapping[int, Values], after: Mapping[int, Values]) -> list[dict[str, Any]]:
    """For the journal: what each step replaced. The fingerprint shows whether the journal kept it unchanged."""
    rows = []
    for number in sorted(before.keys() & after.keys()):
        keys = sorted({*before[number], *after[number]})
        both = {key: [before[number].get(key), after[number].get(key)] for key in keys}
        rows.append({"step": number, "values": both, "sha256": fingerprint(both)})
    return rows


def can_be_undone(calls: Sequence[Call | Action], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether change_undo could restore what the journal keeps, as far as that is known when the change ends."""
    kept = {row["step"]: row for row in rows}
    changed = False
    for number, call in enumerate(calls, 1):
        if isinstance(call, Call) and takes_snapshot(call.method, call.path):
            continue
        row = kept.get(number)
        if row is None or not isinstance(call, Call) or "revert" in call.params:
            return False
        if fingerprint(row["values"]) != row["sha256"]:
            return False
        changes = {key: both for key, both in row["values"].items() if both[0] != both[1]}
        if any(why_inexact(key, *both) for key, both in changes.items()):
            return False
        changed = changed or bool(changes)
    return changed


def takes_snapshot(method: str, path: str) -> bool:
    return method == "POST" and _SNAPSHOT.fullmatch(path) is not None


def why_inexact(key: str, before: Any, after: Any) -> str | None:
    """Why an option cannot be restored exactly; None if it can."""
    for value in (before, after):
        if value is not None and not isinstance(value, (str, int, float)):
            return f"{key} has a form that cannot be written back"
        if is_masked(value):
            return f"{key} is a secret that PVE does not show"
    if values.bus_of(key) in (*values.DISKS, "unused"):
        same = before and after and values.volume_of(str(before)) == values.volume_of(str(after))
        if not same:
            return f"{key} is a disk: it was created, attached, detached or removed"
    return None


def is_masked(value: object) -> bool:
    """Whether stars replace a secret."""
    return isinstance(value, str) and _MASKED.fullmatch(value) is not None


def fingerprint(options: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(dict(options))).hexdigest()
