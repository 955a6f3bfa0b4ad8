"""Undoing a change to a configuration, exactly or not at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.operations.undo import Values, fingerprint, read_options, takes_snapshot, why_inexact
from quorate.problems import Conflict, NotFound, Problem
from quorate.pve.cluster import Cluster
from quorate.runs.start import runs_of
from quorate.state.chain import CHANGE
from quorate.state.journal import Journal, Outcome
from quorate.state.trail import Filters, seconds_of

_GUEST = re.compile(r"/nodes/(?P<node>[^/]+)/(?P<type>qemu|lxc)/(?P<vmid>\d+)/config")
MOST_EXAMINED, MOST_LISTED = 50, 10
DONE = (Outcome.DONE, Outcome.WARNINGS)


@operation(
    toolset="runs",
    risk=Risk.CHANGE,
    search_words="undo revert change back configuration mistake previous value restore setting",
    example="change=0123456789abcdef dry_run=true",
)
async def change_undo(
    pve: Cluster,
    change: Annotated[str, Meta(description="The `change` in its result; default: list the last ones")] | None = None,
) -> Plan:
    """Undo a configuration change exactly; refused with the reason if that is not possible."""
    if change is None:
        return await _list_undoable(pve)
    entry = await runs_of(pve).find_change(change.strip())
    if entry is None or entry.get("cluster") != pve.name or await _is_hidden(pve, entry):
        raise NotFound(
            f"There is no change {change!r} in the audit trail",
            next_step="The result of a change that can be undone has its id as `change`; `quorate audit` shows it, too",
        )
    if entry.get("outcome") not in DONE:
        raise Conflict(
            f"The change {change} cannot be undone: it ended as {entry.get('outcome')}",
            next_step="Only a change that is done can be undone",
        )
    calls, unchanged = await _plan_undo(pve, entry)
    return Plan(
        f"Undo: {entry.get('plan')}",
        calls,
        unchanged=unchanged,
        facts={"undoes": change.strip(), "of": entry.get("time", "")},
    )


async def _list_undoable(pve: Cluster) -> Plan:
    """The last changes that could be undone now, newest first; nothing is done."""
    entries = await pve.attachment(Journal).trail.entries(Filters(clusters=frozenset([pve.name])), MOST_EXAMINED)
    rows: list[dict[str, Any]] = []
    for entry in reversed(entries):
        if len(rows) < MOST_LISTED and entry.get(CHANGE) and await _is_undoable(pve, entry):
            rows.append({"change": entry[CHANGE], "time": entry.get("time", ""), "plan": entry.get("plan", "")})
    if not rows:
        return Plan("List what can be undone", unchanged=("None of the last changes can be undone",))
    return Plan(
        "List what can be undone",
        unchanged=("Nothing was undone yet: give the id of one of these changes",),
        facts={"undoable": rows},
    )


async def _is_undoable(pve: Cluster, entry: Mapping[str, Any]) -> bool:
    if entry.get("outcome") not in DONE or not entry.get("replaced") or await _is_hidden(pve, entry):
        return False
    try:
        calls, _ = await _plan_undo(pve, entry)
    except Problem:
        return False
    return bool(calls)


async def _plan_undo(pve: Cluster, entry: Mapping[str, Any]) -> tuple[tuple[Call, ...], tuple[str, ...]]:
    """The calls that restore what the change replaced, and what they leave as it is."""
    steps = [step for step in entry.get("wire") or [] if isinstance(step, Mapping)]
    calls: list[Call] = []
    unchanged: list[str] = []
    for number, wire in reversed(list(enumerate(steps, 1))):
        if takes_snapshot(str(wire.get("method")), str(wire.get("path"))):
            unchanged.append(f"The snapshot {wire.get('params', {}).get('snapname', '')} stays")
            continue
        both = _replaced_values(entry, number)
        before, after = ({key: value[place] for key, value in both.items()} for place in (0, 1))
        call = await _undo(pve, entry, wire, before, after)
        if call is None:
            unchanged.append(f"{wire.get('method')} {wire.get('path')} changed nothing")
        else:
            calls.append(call)
    return tuple(calls), tuple(unchanged)


async def _is_hidden(pve: Cluster, entry: Mapping[str, Any]) -> bool:
    """Whether the change is about a guest that the caller must not know about."""
    blank = await pve.blanker()
    words = [str(entry.get("plan", "")), *(str(word.get("path", "")) for word in entry.get("wire") or ())]
    return any(blank(word) != word for word in words)


def _replaced_values(entry: Mapping[str, Any], number: int) -> dict[str, list[Any]]:
    """The value of each option before and after the step."""
    rows = entry.get("replaced")
    row = (
        next((candidate for candidate in rows if candidate.get("step") == number), None)
        if isinstance(rows, list)
        else None
    )
    if row is None:
        raise Conflict(f"This cannot be undone: {_name(entry)}", why="Only changes of options can be undone")
    kept: dict[str, list[Any]] = row["values"]
    if fingerprint(kept) != row["sha256"]:
        raise _refusal(entry, "the audit trail keeps secrets and very long texts only in part")
    return kept


async def _undo(
    pve: Cluster, entry: Mapping[str, Any], wire: Mapping[str, Any], before: Values, after: Values
) -> Call | None:
    """The call that restores everything; None if nothing has changed."""
    if "revert" in wire.get("params", {}):
        raise _refusal(entry, "it dropped pending changes, which are not recorded")
    method, path, target = str(wire["method"]), str(wire["path"]), None
    extra: dict[str, Any] = {}
    if guest := _GUEST.fullmatch(path):
        current_guest = await pve.guest(int(guest["vmid"]))
        path = current_guest.path("config")
        config = await current_guest.get("config")
        name = str(
            config.get("name") or config.get("hostname") or current_guest.row.name
        )  # the change may have renamed it just now
        target = replace(Target.of_guest(current_guest), name=name)
        if config.get("lock"):
            raise Conflict(f"{current_guest} is locked ({config['lock']})", next_step="Wait until its task has ended")
        extra = {"digest": config["digest"]} if config.get("digest") else {}
    keys = [key for key in before if before[key] != after[key]]
    if not keys:
        return None
    for key in keys:
        if inexact := why_inexact(key, before[key], after[key]):
            raise _refusal(entry, inexact)
    probe = Call("", method, path, dict.fromkeys(before, ""))
    current = await read_options(pve, probe)
    if current is None:
        raise _refusal(entry, f"{path} cannot be read now")
    if all(current.get(key) == before[key] for key in keys):
        await _refuse_repetition(pve, entry)
    if changed := [key for key in keys if current.get(key) != after[key]]:
        raise _refusal(entry, f"{', '.join(changed)} changed again since then")
    back = {key: before[key] for key in keys if before[key] is not None}
    gone = [key for key in keys if before[key] is None]
    if gone:
        match = (await pve.facts()).find(method, path)
        if match is None or "delete" not in match.endpoint.parameters:
            raise _refusal(entry, f"PVE cannot remove {', '.join(gone)} there")
        back["delete"] = ",".join(gone)
    summary = f"Set {', '.join(keys)} back to {', '.join(_render(before[key]) for key in keys)}"
    return Call(summary, method, path, {**back, **extra}, target)


async def _refuse_repetition(pve: Cluster, entry: Mapping[str, Any]) -> None:
    """What is as it was before the change may have been undone already."""
    began = seconds_of(entry.get("time")) or 0.0
    for later in await pve.attachment(Journal).entries_since(began):
        if (
            later.get("tool") == "change_undo"
            and str((later.get("arguments") or {}).get("change", "")).strip() == entry[CHANGE]
            and later.get("outcome") in DONE
            and later.get("cluster") == pve.name
            and not later.get("dry_run")
        ):
            raise Conflict(
                f"{_name(entry)}: already undone by {later[CHANGE]}",
                why=f"That was at {later.get('time')}",
                next_step=Advice("Undo that one to have it again", tools.change_undo(change=later[CHANGE])),
            )


def _refusal(entry: Mapping[str, Any], why: str) -> Problem:
    return Conflict(
        f"{_name(entry)}: this cannot be undone exactly",
        why=why,
        next_step=Advice("Set it by hand, or go back to a snapshot if there is one", tools.snapshot_list),
    )


def _name(entry: Mapping[str, Any]) -> str:
    return str(entry.get("plan") or entry.get("tool"))


def _render(value: Any) -> str:
    return "nothing" if value is None else str(value)
