"""`safely`: a snapshot of every guest that a change is about, before anything changes.

The guests come from the plan, not from the tool, so every change takes it: what PVE is asked to do decides whether a
snapshot could undo it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pve_schema.formats import split_list
from quorate.hints import NAMED, Advice, Sentence, tools
from quorate.operations.backend import Backend
from quorate.operations.plan import Action, ActionResult, Call, Plan, StepContext, in_wire_form
from quorate.operations.preconditions import NEWEST_ONLY, data_volumes, snapshots_of, storages_on
from quorate.operations.registry import NOT_ABOUT_GUESTS, PLANNED_LATER
from quorate.problems import Conflict, Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.tools.snapshots import Loss, creation, name_from_time

_GUEST = re.compile(r"/nodes/[^/]+/(?:qemu|lxc)/(?P<vmid>\d+)(?:/(?P<rest>.+))?")
_HELD = re.compile(
    r"config|resize|unlink|cloudinit|sendkey|move_disk|move_volume|agent(/.+)?|status/.+|snapshot/[^/]+/rollback"
)
"""Changes that a snapshot undoes: those of the disks, of what runs and is written there, and of the options."""
_NEW_GUEST = re.compile(r"/nodes/[^/]+/(?:qemu|lxc)")
_OF_THE_SNAPSHOT = ("parent", "lock", "digest")
"""Options that change when a snapshot is taken."""
_NOT_HELD = {
    "": "Its snapshots are deleted with it",
    "template": "A guest with snapshots cannot become a template",
    "firewall": "Snapshots hold disks and options, not firewall rules",
}
"""Reasons, by the first part of the path below the guest's own."""
_NOT_NEEDED = {
    **dict.fromkeys(("clone", "migrate", "remote_migrate"), "Nothing in the guest changes, so no snapshot is needed"),
    "snapshot": "This call itself manages snapshots",
}
_WITHOUT = Advice("Call again without `{safely}`", safely=NAMED)


@dataclass(frozen=True, slots=True)
class _SnapshotTarget:
    """A guest that needs a snapshot."""

    cluster: Cluster
    guest: Guest
    apart: bool
    """The plan itself is not about a cluster."""


async def after_snapshots(backend: Backend, plan: Plan) -> Plan:
    """The plan, in wire form, with a snapshot of each of its guests first; a Problem if that would not undo it."""
    if not plan.calls:
        return plan
    protected: dict[tuple[str, int], _SnapshotTarget] = {}
    left_out: list[str] = []
    for step in plan.calls:
        vmid = _vmid_of(step)
        if vmid is None:
            left_out.append(_refuse_elsewhere(step))
            continue
        where = step.where if isinstance(step, Action) else None
        cluster = where or backend.api
        guest = await cluster.guest(vmid)
        await _refuse_conflict(cluster, guest, step)
        _refuse_not_held(guest, step)
        protected[cluster.name, vmid] = _SnapshotTarget(cluster, guest, where is not None)
    if not protected:
        raise _not_applicable(NOT_ABOUT_GUESTS)
    snapshots = [await _snapshot(target, plan) for target in protected.values()]
    names = {str(target.guest.vmid): name for target, (name, _) in zip(protected.values(), snapshots, strict=True)}
    first = (await in_wire_form(backend, Plan("", tuple(step for _, step in snapshots)))).calls
    return replace(
        plan,
        calls=(*first, *[await _with_later_digest(backend, step) for step in plan.calls]),
        first=len(first),
        contested=plan.contested + len(first),
        chosen_names=(*plan.chosen_names, *sorted({*names.values()}, key=len, reverse=True)),
        facts={**plan.facts, "snapshots": names, "afterwards": _cleanup(names)},
        warnings=(
            *(
                warning.kept_in(", ".join(names.values())) if isinstance(warning, Loss) else warning
                for warning in plan.warnings
            ),
            *(f"A snapshot does not bring this back: {warning}" for warning in left_out),
        ),
    )


def _cleanup(names: Mapping[str, str]) -> Advice:
    """A forgotten snapshot uses space and keeps a running VM from moving with its local disks.

    It is not the plan's next step, which may be a restart or a wait.
    """
    [(vmid, name), *more] = names.items()
    which = "each of the snapshots" if more else "the snapshot"
    return Advice(f"Delete {which} once you have verified the change", tools.snapshot_delete(guest=vmid, snapshot=name))


def _vmid_of(step: Call | Action) -> int | None:
    if isinstance(step, Call):
        match = _GUEST.fullmatch(step.path)
        return int(match["vmid"]) if match else None
    target = step.target
    return int(target.id) if target is not None and target.kind in ("vm", "ct") and not step.later else None


def _refuse_elsewhere(step: Call | Action) -> str:
    """Describe a step that changes no guest; raise if it changes something that no snapshot holds."""
    if isinstance(step, Action) and step.later:
        raise _not_applicable(PLANNED_LATER)
    if isinstance(step, Action) and step.target is not None:
        raise _refusal(f"{step.target} is not a guest of a cluster")
    if isinstance(step, Call) and _NEW_GUEST.fullmatch(step.path) and values.is_on(str(step.params.get("force", 0))):
        raise _refusal(f"{step.summary}: it replaces the guest, with its snapshots")
    return f"{step.summary}: it changes no disk or option of a guest"


def _refuse_not_held(guest: Guest, step: Call | Action) -> None:
    rest = _rest_of(step)
    if rest is None or _HELD.fullmatch(rest):
        return
    what = rest.partition("/")[0]
    if what in _NOT_NEEDED:
        raise _not_applicable(_NOT_NEEDED[what])
    raise _refusal(f"{step.summary}: {_NOT_HELD.get(what, 'Snapshots do not hold it')}", guest)


def _rest_of(step: Call | Action) -> str | None:
    """The path below the guest's own; None for something inside the guest."""
    match = _GUEST.fullmatch(step.path) if isinstance(step, Call) else None
    return (match["rest"] or "") if match else None


async def _refuse_conflict(pve: Cluster, guest: Guest, step: Call | Action) -> None:
    """PVE refuses some calls because of a snapshot, and some disks are in none."""
    if not isinstance(step, Call):
        return
    rest, params = _rest_of(step), step.params
    removed = split_list(str(params.get("delete" if rest == "config" else "idlist", ""))) if rest else []
    if removed and (
        values.is_on(str(params.get("force", 0))) or any(values.bus_of(key) == "unused" for key in removed)
    ):
        raise _refusal("A disk in a snapshot cannot be destroyed, and an unused disk is in none", guest)
    if rest in ("move_disk", "move_volume") and values.is_on(str(params.get("delete", 0))):
        raise _refusal("A disk in a snapshot cannot be moved without keeping its source", guest)
    if rest in ("move_disk", "move_volume") and "target-vmid" in params:
        raise _refusal("A disk in a snapshot cannot be given to another guest", guest)
    if rest and rest.endswith("/rollback"):
        known = await storages_on(pve, guest.row.node)
        disks = data_volumes(await guest.get("config"))
        if any(volume.storage in known and known[volume.storage].plugintype in NEWEST_ONLY for volume in disks):
            raise _refusal("ZFS can only roll back to the newest snapshot, which would be the one taken now", guest)


async def _snapshot(target: _SnapshotTarget, plan: Plan) -> tuple[str, Call | Action]:
    cluster, guest = target.cluster, target.guest
    name = await _free_name(cluster, guest)
    try:
        call, _ = await creation(guest, name, f"before: {plan.summary}")
    except Conflict as problem:
        problem.next_step = _alternative(guest)
        raise
    if not target.apart:
        return name, call

    async def perform(context: StepContext) -> ActionResult:
        await context.carry_out(cluster, Plan(call.summary, (call,)), context.wait, context.report)
        return ActionResult()

    return name, Action(call.summary, f"snapshot {name} of {guest}", perform, call.target, (call,), cluster)


def _options(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in _OF_THE_SNAPSHOT}


def _concurrent_change(guest: Guest) -> Problem:
    return Conflict(
        f"{guest} was changed by someone else in the meantime",
        why="Its configuration is not the one that this change was planned from",
        next_step="Look at it, then call again",
    )


async def _free_name(pve: Cluster, guest: Guest) -> str:
    """A free name from the time; two changes within a second get two snapshots."""
    used, name = {row["name"] for row in await snapshots_of(guest)}, name_from_time(pve)
    return next(
        candidate for candidate in (name, *(f"{name}-{number}" for number in range(2, 1000))) if candidate not in used
    )


async def _with_later_digest(backend: Backend, step: Call | Action) -> Call | Action:
    """Taking the snapshot changes the digest that a step was planned with, so the one after that is sent."""
    vmid = _vmid_of(step)
    if not isinstance(step, Call) or vmid is None or "digest" not in step.params:
        return step
    guest = await backend.api.guest(vmid)
    config = await guest.get("config")
    if config.get("digest") != step.params["digest"]:
        raise _concurrent_change(guest)

    async def digest() -> str:
        now = await guest.get("config")
        if _options(now) != _options(config):
            raise _concurrent_change(guest)
        return str(now["digest"])

    others = {name: value for name, value in step.params.items() if name != "digest"}
    return replace(step, params=others, digest=digest)


def _refusal(why: str, guest: Guest | None = None) -> Problem:
    return Conflict("A snapshot would not undo this, so nothing was changed", why=why, next_step=_alternative(guest))


def _not_applicable(why: str) -> Problem:
    return Conflict(
        Sentence("`{safely}` does not apply, so nothing was changed", safely=NAMED), why=why, next_step=_WITHOUT
    )


def _alternative(guest: Guest | None) -> str | Advice:
    if guest is None:
        return _WITHOUT
    return Advice(
        "Back it up first, then call again without `{safely}`", tools.backup_create(guest=guest.vmid), safely=NAMED
    )
