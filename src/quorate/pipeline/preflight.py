"""Before anything is sent: parameters against the API's facts, privileges, and volumes that are still in use.

PVE deletes a volume by name: it does not look into the configurations of other guests. So the named tools, the raw API
and the drop-in tools all pass this check.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pve_schema.schema import Endpoint, Facts
from quorate.hints import Advice, tools
from quorate.operations.backend import Backend
from quorate.operations.option_privileges import joined_pool
from quorate.operations.plan import Action, Call, Plan
from quorate.operations.preconditions import snapshots_of
from quorate.operations.privileges import NeededCall, call_needs, is_decided, missing_needs
from quorate.pipeline.caller import Caller
from quorate.pipeline.sites import Site, Sites
from quorate.problems import Conflict, NotFound, ParameterRejected, PermissionMissing
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.privileges import root_only
from quorate.pve.targets import owner
from quorate.pve.wire import Request, read
from quorate.tools.volume_references import (
    NAMED_AT_MOST,
    NamedVolume,
    Reference,
    Survey,
    drive_volumes,
    find_references,
    may_be_referenced,
)

_GUEST: Final = r"/nodes/{node}/(?:qemu|lxc)/{vmid}"
_VOLUME: Final = "/nodes/{node}/storage/{storage}/content/{volume}"


async def check_plan(backend: Backend, plan: Plan) -> str:
    """Raise the first error that PVE would answer with; return a clause that says what was checked."""
    if not plan.api_calls:
        return "Parameters are checked"
    parts = [await _check((where or backend).api, part) for where, part in plan.parts() if part.api_calls]
    return "Parameters and privileges are checked" if all(parts) else "Parameters are checked, but not all privileges"


async def _check(cluster: Cluster, plan: Plan) -> bool:
    """Return whether the privileges could be checked in full."""
    facts = await cluster.facts()
    complete = True
    pools: dict[str, str] = {}
    for call in plan.api_calls:
        endpoint, parameters = _endpoint(facts, call)
        _check_parameters(call, endpoint, parameters)
        needed = NeededCall(call.method, endpoint.template, parameters)
        await _check_privileges(cluster, call, needed, facts, pools)
        complete = complete and is_decided(facts, needed)
        pools |= joined_pool(call.params)
    return complete


def _endpoint(facts: Facts, call: Call) -> tuple[Endpoint, dict[str, Any]]:
    match = facts.find(call.method, call.path)
    if match is None:
        raise ParameterRejected(f"PVE {facts.version} has no {call.method} {call.path}")
    return match.endpoint, {**match.values, **call.params}


def _check_parameters(call: Call, endpoint: Endpoint, parameters: Mapping[str, Any]) -> None:
    errors = endpoint.check(parameters)
    if errors:
        listed = "; ".join(f"{name}: {why.strip()}" for name, why in errors.items())
        raise ParameterRejected(
            f"PVE would not accept {call.method} {call.path}",
            why=listed,
            next_step="Nothing was sent",
            facts={"errors": errors},
        )


async def _check_privileges(
    cluster: Cluster, call: Call, needed: NeededCall, facts: Facts, pools: Mapping[str, str]
) -> None:
    """The same check as the one of `permission_audit`, which asks for any user."""
    identity = cluster.client.identity
    endpoint = facts.endpoint(needed.method, needed.template)
    asked = call.summary[:1].lower() + call.summary[1:]
    if cluster.client.is_token and (root_only(endpoint.permission) or not endpoint.allow_token):
        raise PermissionMissing(
            f"{identity} may not {asked}",
            why="PVE reserves this for root@pam logged in with a password"
            if root_only(endpoint.permission)
            else "No token may",
        )

    async def may(path: str, privilege: str) -> bool:
        return await cluster.may(path, privilege) or (path in pools and await cluster.may(pools[path], privilege))

    # In sequence, because the first answer is cached for the rest.
    held = {
        (need.path, privilege): await may(need.path, privilege)
        for need in call_needs(facts, needed)
        for privilege in need.privileges
    }
    lacking = missing_needs(facts, needed, lambda path, privilege: held.get((path, privilege), False))
    if lacking:
        need = lacking[0]
        raise await cluster.refusal(asked, need.path, need.privileges, any_of=need.any_of)


# -- volumes in use ----------------------------------------------------------------------------------------------------


async def check_references(sites: Sites, site: Site, caller: Caller, plan: Plan) -> Plan:
    """Refuse a plan that deletes a volume in use. Returns it with a fact that says what was checked."""
    checked: list[str] = []
    for where, part in plan.parts():
        volumes = await _deleted_volumes(where or site.backend, part)
        if not volumes:
            continue
        cluster = (where or site.backend).api
        others = [other.cluster for other in sites if other.name != cluster.name]
        survey = await find_references(cluster, volumes, others)
        _refuse_referenced(survey, {reached.name for reached in sites.open_to(caller)})
        _refuse_unproven(survey, volumes)
        checked.append(survey.describe(len(volumes)))
    return replace(plan, facts={**plan.facts, "checked": "; ".join(checked)}) if checked else plan


async def _deleted_volumes(backend: Backend, plan: Plan) -> list[NamedVolume]:
    calls = [step for step in plan.calls if isinstance(step, Call)]
    calls += [call for step in plan.calls if isinstance(step, Action) and not step.later for call in step.needs]
    if not calls:
        return []
    cluster = backend.api.original
    facts = await cluster.facts()
    volumes: list[NamedVolume] = []
    for call in calls:
        request = read(facts, call.method, call.path, call.params)
        if request is not None:
            volumes += await _deleted_by(cluster, request)
    return [volume for volume in dict.fromkeys(volumes) if may_be_referenced(volume.volid)]


async def _deleted_by(cluster: Cluster, request: Request) -> list[NamedVolume]:
    template, method = request.template, request.method
    if method == "DELETE" and template == _VOLUME:
        volume = request.text("volume")
        volid = volume if ":" in volume else f"{request.text('storage')}:{volume}"
        return [NamedVolume(volid, request.text("node"))]
    if method == "DELETE" and re.fullmatch(_GUEST, template):
        return await _volumes_of_guest(cluster, request, unreferenced=request.is_on("destroy-unreferenced-disks"))
    if method == "POST" and re.fullmatch(r"/nodes/{node}/(?:qemu|lxc)", template) and request.is_on("force"):
        return await _volumes_of_guest(cluster, request)
    if method in ("PUT", "POST") and re.fullmatch(rf"{_GUEST}/config", template):
        return await _removed_drives(cluster, request, request.elements("delete"))
    if method == "PUT" and re.fullmatch(rf"{_GUEST}/unlink", template):
        return await _removed_drives(cluster, request, request.elements("idlist"))
    if method == "POST" and re.fullmatch(rf"{_GUEST}/move_(?:disk|volume)", template) and request.is_on("delete"):
        moved = request.text("disk") or request.text("volume")
        return await _removed_drives(cluster, request, (moved,), force=True)
    return []


async def _find_guest(cluster: Cluster, request: Request) -> Guest | None:
    vmid = request.text("vmid")
    try:
        return await cluster.guest(int(vmid)) if vmid.isascii() and vmid.isdigit() else None
    except NotFound:
        return None


async def _volumes_of_guest(cluster: Cluster, request: Request, *, unreferenced: bool = False) -> list[NamedVolume]:
    """What goes with a guest: its own disks, and on request everything that is named after it."""
    guest = await _find_guest(cluster, request)
    if guest is None:
        return []
    named = drive_volumes(await guest.get("config"))
    for snapshot in await snapshots_of(guest):
        named += drive_volumes(await guest.get(f"snapshot/{snapshot['name']}/config"))
    volumes = [_own_volume(guest, volid) for volid in dict.fromkeys(named) if owner(volid) == guest.vmid]
    return volumes + (await _named_after(guest, named) if unreferenced else [])


async def _named_after(guest: Guest, known: Collection[str]) -> list[NamedVolume]:
    """The disks on all storages of the guest's node that have its id in their names, apart from those it uses."""
    cluster, node = guest.cluster, guest.row.node
    volumes = []
    for storage in await cluster.inventory.fresh_storages(node):
        if {"images", "rootdir"} & {*storage.content.split(",")}:
            listed = await cluster.get(f"/nodes/{node}/storage/{storage.storage}/content", vmid=guest.vmid)
            volumes += [
                NamedVolume(row["volid"], node, guest.vmid)
                for row in listed
                if row.get("content") in ("images", "rootdir") and row["volid"] not in known
            ]
    return volumes


async def _removed_drives(
    cluster: Cluster, request: Request, keys: Sequence[str], *, force: bool = False
) -> list[NamedVolume]:
    """The disks that are destroyed, not merely detached: unused ones, and all of them by force."""
    force = force or request.is_on("force")
    keys = [key for key in keys if values.bus_of(key) == "unused" or (force and values.bus_of(key) in values.DISKS)]
    guest = await _find_guest(cluster, request) if keys else None
    if guest is None:
        return []
    config = await guest.get("config")
    named = drive_volumes({key: config[key] for key in keys if key in config})
    return [_own_volume(guest, volid) for volid in named if owner(volid) == guest.vmid]


def _own_volume(guest: Guest, volid: str) -> NamedVolume:
    """A volume that its guest uses and is named after: that others cannot be read does not stop its deletion."""
    return NamedVolume(volid, guest.row.node, guest.vmid, must_be_proven=False)


def _refuse_referenced(survey: Survey, visible_clusters: Collection[str]) -> None:
    if not survey.references:
        return
    first = survey.references[0]
    uses = [
        _describe(reference, visible_clusters) for reference in survey.references if reference.volume == first.volume
    ]
    more = f" and {len(uses) - NAMED_AT_MOST} more" if len(uses) > NAMED_AT_MOST else ""
    named_owner = owner(first.volume.volid)
    misleading = named_owner is not None and first.vmid not in (None, named_owner)
    raise Conflict(
        f"{first.volume.volid} is in use: {', '.join(uses[:NAMED_AT_MOST])}{more}",
        why="Its name suggests another guest, but configurations decide" if misleading else None,
        next_step=_way_out(first),
    )


def _describe(reference: Reference, visible_clusters: Collection[str]) -> str:
    if not reference.cluster:
        return str(reference)
    if reference.cluster not in visible_clusters:
        return "a guest of another cluster on the same storage"
    return f"a guest of the cluster {reference.cluster} on the same storage"


def _way_out(reference: Reference) -> Advice:
    if reference.cluster:
        return Advice("Nothing was done. Make that guest independent of it first, in its own cluster")
    if reference.vmid is None:
        return Advice("Nothing was done. Delete the linked clone first, or move it to another storage")
    if reference.where.startswith("snapshot"):
        return Advice("Nothing was done. Delete that snapshot first, if nobody needs it")
    return Advice(
        "Nothing was done. Detach and destroy it, or delete the guest",
        tools.disk_change(action="detach"),
        tools.disk_destroy,
        tools.guest_delete,
    )


def _refuse_unproven(survey: Survey, volumes: Sequence[NamedVolume]) -> None:
    """What cannot be read may use the volume."""
    strict = [volume for volume in volumes if volume.must_be_proven]
    if not survey.unread or not strict:
        return
    more = f" and {len(survey.unread) - NAMED_AT_MOST} more" if len(survey.unread) > NAMED_AT_MOST else ""
    raise Conflict(
        f"{strict[0].volid} may be in use: not everything that could refer to it can be read",
        why=f"Not read: {'; '.join(survey.unread[:NAMED_AT_MOST])}{more}",
        next_step="Nothing was done. Bring the nodes and clusters back, or grant the privileges, and call again",
    )
