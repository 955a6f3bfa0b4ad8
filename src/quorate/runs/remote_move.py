"""Moving a guest to another cluster; the source stays until the target runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.operations.placement import choose_vmid, pick_node, pick_storage
from quorate.operations.plan import Action, ActionResult, Call, Plan, StepContext, Target, guest_call
from quorate.operations.preconditions import data_volumes, refuse_locked, replication_jobs
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.problems import BadArgument, Conflict, NotFound
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest, OtherCluster
from quorate.pve.connection import Token
from quorate.runs.kind import Next, Step, StepResult, Work, declare, fail, finish
from quorate.runs.start import At, Outline, Window, number_lines, start_plan
from quorate.runs.steps import find_guest
from quorate.runs.store import Bound, Pending, Run, literal
from quorate.units import duration

KIND = "remote_move"
RUN_SECONDS = 300.0
API_PORT = 8006
_CARD = re.compile(r"net\d+")
_OWN_CERTIFICATES = ("pveproxy-ssl.pem", "pve-ssl.pem")
"""The certificates that a node's API may present; the first that exists is used."""

Mapped = Annotated[str, Meta(description="One name, or old:new,…; default: the same names")]
ToCluster = Annotated[str, Meta(description="Name of the other cluster")]


@operation(
    toolset="runs",
    risk=Risk.DESTROY,
    plans_later=True,
    search_words="move migrate guest to another other remote cluster datacenter cross-cluster",
    example="guest=108 to=other dry_run=true",
    shown_by=("run_list",),
)
async def run_remote_move(
    pve: Cluster,
    guest: GuestRef,
    to: ToCluster,
    other_cluster: OtherCluster,
    node: Annotated[str, Meta(description="Target node there")] | None = None,
    vmid: Annotated[int, Meta(ge=100, le=999_999_999, description="Default: the same if free")] | None = None,
    storage: Mapped | None = None,
    bridge: Mapped | None = None,
    delete_source: Annotated[bool, Meta(description="Once the target runs")] = False,
    at: At | None = None,
    window: Window | None = None,
) -> Plan:
    """Start a run that moves a guest to another cluster; the source stays until the target runs."""
    source = await pve.guest(guest)
    remote = await _other(pve, to, other_cluster)
    status = await source.get("status/current")
    chosen = await _vmid_there(remote, source, vmid)
    where = await pick_node(remote, node or await _answering_node(remote))
    running = status.get("status") == "running"
    mode = ("live" if source.is_vm else "restarted") if running else "stopped"
    destination = _Destination(remote, where, chosen)
    move = await _prepare(source, destination, status, storage=storage, bridge=bridge)
    facts = {
        "order": number_lines(
            [
                f"Migrate {source} to {to}/{where} as {chosen} ({mode})",
                f"Wait until it {'runs' if running else 'is'} there",
                f"Delete {source} here" if delete_source else f"{source} stays here, stopped",
            ]
        ),
        "storages": move["target-storage"],
        "bridges": move["target-bridge"],
    }
    outline = Outline(
        KIND,
        "run_remote_move",
        f"Move {source} to {to}",
        f"move {source} to {to}/{where} as {chosen}" + (", then delete it here" if delete_source else ""),
        {
            "vmid": source.vmid,
            "name": source.row.name,
            "type": source.row.type,
            "to": to,
            "node": where,
            "target_vmid": chosen,
            "storage": storage,
            "bridge": bridge,
            "running": running,
            "delete_source": delete_source,
        },
        lambda _: _bounds(source, destination, move, delete_source=delete_source),
        Target.of_guest(source),
        facts=facts,
        warnings=(f"{source} is down while it moves",) if running and not source.is_vm else (),
        needs=_departure(source, move, delete_source=delete_source),
        elsewhere=(_room_check(source, destination, move),),
        risk=Risk.DESTROY,
        risk_because=f"{source} leaves this cluster" + (", and is deleted here" if delete_source else ""),
    )
    return start_plan(pve, outline, at, window)


@operation(
    toolset="runs",
    risk=Risk.DESTROY,
    search_words="remote migrate guest other cluster once",
    example="guest=108 to=other node=pve1 vmid=608 dry_run=true",
)
async def guest_remote_migrate(
    pve: Cluster,
    guest: GuestRef,
    to: ToCluster,
    node: Annotated[str, Meta(description="Target node there")],
    vmid: Annotated[int, Meta(ge=100, le=999_999_999, description="Its id there")],
    other_cluster: OtherCluster,
    storage: Mapped | None = None,
    bridge: Mapped | None = None,
) -> Plan:
    """Migrate a guest to another cluster. It stays here, stopped."""
    source = await pve.guest(guest)
    remote = await _other(pve, to, other_cluster)
    status = await source.get("status/current")
    destination = _Destination(remote, node, vmid)
    move = await _prepare(source, destination, status, storage=storage, bridge=bridge)
    endpoint = await _endpoint(remote, node)
    arrival = _room_check(source, destination, move)
    summary = f"Migrate {source} to {to}/{node} as {vmid}"
    call = guest_call(source, "POST", "remote_migrate", summary, **{**move, "target-endpoint": endpoint})
    facts = {"storages": move["target-storage"], "bridges": move["target-bridge"]}
    return Plan(summary, (arrival, call), facts=facts, about=(Target.of_guest(source),))


@dataclass(frozen=True, slots=True)
class _Destination:
    cluster: Cluster
    node: str
    vmid: int

    def receive_line(self, guest: Guest) -> str:
        return f"receive {guest} on {self.cluster.name}/{self.node} as {self.vmid}"


def _room_check(guest: Guest, destination: _Destination, move: Mapping[str, Any]) -> Action:
    """A step in the other cluster, so that its rules, limits and privileges there are checked as well."""
    remote, node, vmid = destination.cluster, destination.node, destination.vmid

    async def receive(_: StepContext) -> ActionResult:
        await choose_vmid(remote, vmid)
        remote.reserved_vmids.discard(vmid)
        return ActionResult({"received_by": f"{remote.name}/{node}"})

    return Action(
        f"Check that {remote.name} has room",
        destination.receive_line(guest),
        receive,
        needs=(_creation(guest, node, vmid, move),),
        where=remote,
        later=True,
    )


def _creation(guest: Guest, node: str, vmid: int, move: Mapping[str, Any]) -> Call:
    """What PVE will do there: create a guest of this name on these storages."""
    storages = _targets(str(move["target-storage"]))
    if guest.is_vm:
        new: dict[str, Any] = {"name": guest.row.name}
        new |= {f"scsi{number}": f"{name}:1" for number, name in enumerate(storages)}
    else:
        new = {"hostname": guest.row.name, "ostemplate": "-", "restore": 1}
        new |= {f"mp{number}": f"{name}:1,mp=/mnt" for number, name in enumerate(storages)}
    return Call(f"Create {guest} as {vmid}", "POST", f"/nodes/{node}/{guest.row.type}", {"vmid": vmid, **new})


async def _require_privileges(remote: Cluster, vmid: int, storages: str) -> None:
    """What the tunnel between the clusters needs on the other side; PVE would refuse it halfway."""
    needed = [("/", "Sys.Incoming"), (f"/vms/{vmid}", "VM.Allocate")]
    needed += [(f"/storage/{name}", "Datastore.AllocateSpace") for name in _targets(storages)]
    for path, privilege in needed:
        if not await remote.may(path, privilege):
            raise await remote.refusal(f"receive a guest in {remote.name}", path, (privilege,))


def _targets(mapping: str) -> list[str]:
    """The names on the other side; none if nothing is mapped (`1`)."""
    return [] if mapping in ("", "1") else list(dict.fromkeys(new for _, new in _pairs(mapping)))


def _departure(guest: Guest, move: Mapping[str, Any], *, delete_source: bool) -> tuple[Call, ...]:
    """What happens here. The other side's address and token are not part of what is judged."""
    leaving = guest_call(
        guest, "POST", "remote_migrate", f"Migrate {guest}", **{**move, "target-endpoint": "host=there,apitoken=ours"}
    )
    return (leaving, guest_call(guest, "DELETE", "", f"Delete {guest}")) if delete_source else (leaving,)


async def _other(pve: Cluster, name: str, other_cluster: OtherCluster) -> Cluster:
    if name == pve.name:
        raise BadArgument(
            f"The guest is already in {name}", next_step=Advice("Move it to another node", tools.guest_migrate)
        )
    return await other_cluster(name)


async def _vmid_there(remote: Cluster, guest: Guest, requested: int | None) -> int:
    if requested is not None:
        return await choose_vmid(remote, requested)
    try:
        return await choose_vmid(remote, guest.vmid)
    except Conflict:
        chosen = await choose_vmid(remote, None)
        remote.reserved_vmids.discard(chosen)
        return chosen


async def _prepare(
    guest: Guest, destination: _Destination, status: Mapping[str, Any], *, storage: str | None, bridge: str | None
) -> dict[str, Any]:
    """The parameters, after everything that PVE would refuse halfway."""
    remote, node = destination.cluster, destination.node
    refuse_locked(guest, status)
    if (status.get("ha") or {}).get("managed"):
        raise Conflict(f"{guest} is managed by HA", next_step=Advice("Take it out of HA first", tools.ha_remove))
    if await replication_jobs(guest.cluster, guest):
        raise Conflict(f"{guest} is replicated", next_step="Delete the replication first")
    config = await guest.get("config")
    running = status.get("status") == "running"
    content = "images" if guest.is_vm else "rootdir"
    used = sorted({volume.storage for volume in data_volumes(config)})
    storages = await _mapping(used, storage, "storage", lambda name: _has_storage(remote, node, content, name))
    bridges_here = {
        values.parse(str(value), "model").get("bridge", "") for key, value in config.items() if _CARD.fullmatch(key)
    }
    known = {str(row["iface"]) for row in await remote.get(f"/nodes/{node}/network", type="any_bridge")}

    async def has_bridge(name: str) -> str:
        return "" if name in known else f"{remote.name}/{node} has {', '.join(sorted(known)) or 'no bridge'}"

    bridges = await _mapping(sorted(bridges_here - {""}), bridge, "bridge", has_bridge)
    await _require_privileges(remote, destination.vmid, storages)
    how = {"online": 1} if guest.is_vm else {"restart": 1}
    return {
        "target-vmid": destination.vmid,
        "target-storage": storages or "1",
        "target-bridge": bridges or "1",
        **(how if running else {}),
    }


async def _has_storage(remote: Cluster, node: str, content: str, name: str) -> str:
    try:
        await pick_storage(remote, node, content, requested=name)
    except BadArgument as problem:
        return str(problem)
    return ""


async def _mapping(used: list[str], text: str | None, what: str, objection: Any) -> str:
    """`old:new,…` for everything that is used, each checked against the other cluster."""
    mapped = dict(_pairs(text))
    pairs = {name: mapped.get(name, mapped.get("", name)) for name in used}
    for old, new in pairs.items():
        if why := await objection(new):
            raise Conflict(
                f"The {what} {new!r} of the other cluster cannot be used",
                why=why,
                next_step=f"Give {what}={old}:NAME, or one for all",
            )
    return ",".join(f"{old}:{new}" for old, new in pairs.items())


def _pairs(text: str | None) -> list[tuple[str, str]]:
    pairs = []
    for part in (text or "").replace(";", ",").split(","):
        old, _, new = part.strip().rpartition(":")
        if new:
            pairs.append((old, new))
    return pairs


async def _endpoint(remote: Cluster, node: str) -> str:
    """Address, token and fingerprint of the other side. The fingerprint is read over the trusted connection."""
    connection = remote.connection
    if not isinstance(connection.credentials, Token):
        raise Conflict(
            f"{remote.name} is reached with a password, and PVE needs an API token for this",
            next_step="Configure a token for that cluster",
        )
    host, port = await _address(remote, node)
    rows = {row["filename"]: row for row in await remote.get(f"/nodes/{node}/certificates/info")}
    own: dict[str, Any] = next((rows[name] for name in _OWN_CERTIFICATES if name in rows), {})
    token = connection.credentials
    return ",".join(
        [
            f"host={host}",
            f"port={port}",
            f"apitoken=PVEAPIToken={token.id}={token.secret.reveal()}",
            *([f"fingerprint={own['fingerprint']}"] if own.get("fingerprint") else []),
        ]
    )


async def _answering_node(remote: Cluster) -> str | None:
    rows = await remote.get("/cluster/status")
    return next((str(row["name"]) for row in rows if row.get("type") == "node" and row.get("local")), None)


async def _address(remote: Cluster, node: str) -> tuple[str, int]:
    """The guest lands on the node that answers at this address."""
    rows = {str(row["name"]): row for row in await remote.get("/cluster/status") if row.get("type") == "node"}
    if node not in rows:
        raise NotFound(f"{remote.name} has no node {node!r}", next_step=f"Available: {', '.join(sorted(rows))}")
    if rows[node].get("local") or not rows[node].get("ip"):
        url = urlsplit(remote.connection.endpoints[0])
        return str(url.hostname), url.port or API_PORT
    return str(rows[node]["ip"]), API_PORT


def _bounds(guest: Guest, destination: _Destination, move: Mapping[str, Any], *, delete_source: bool) -> list[Bound]:
    base, name = f"/nodes/*/{guest.row.type}/{guest.vmid}", literal(guest.row.name)
    params = {key: [str(value)] for key, value in move.items()}
    bounds = [
        Bound("POST", f"{base}/remote_migrate", {**params, "target-endpoint": ["*"]}, target=name),
        Bound("RUN", literal(destination.receive_line(guest)), cluster=destination.cluster.name),
    ]
    return [*bounds, Bound("DELETE", base, {"*": []}, target=name)] if delete_source else bounds


@dataclass(frozen=True, slots=True)
class RemoteMove:
    name: str = KIND

    async def next(self, work: Work) -> Next:
        if work.aborting or work.busy:
            return Next()
        scope, memory = work.scope, work.memory
        if work.closing and not memory.get("migrated") and "failed" not in memory:
            return Next()
        if "failed" in memory:
            return fail(f"{memory['failed']}; the source is as it was")
        remote = work.clusters.get(str(scope["to"]))
        if remote is None:
            return Next(pause=f"The cluster {scope['to']} is not configured or not open to the caller")
        arrived = await find_guest(remote, int(scope["target_vmid"]), str(scope["name"]))
        if not memory.get("migrated"):
            return Next((self._migrate(scope),))
        if arrived is None:
            return Next(pause=f"{scope['to']} does not show guest {scope['target_vmid']}; the source is kept")
        if scope["running"] and not memory.get("runs"):
            return await self._wait_until_it_runs(work, arrived)
        if scope["delete_source"]:
            source = await find_guest(work.pve, int(scope["vmid"]), str(scope["name"]))
            if source is not None:
                return await self._delete(work, source)
        work.run.report = {
            "target": f"{scope['to']}/{arrived.row.node} {arrived}",
            "source": "deleted" if scope["delete_source"] else "kept, stopped",
        }
        return finish(f"moved to {scope['to']} as {scope['target_vmid']}")

    def _migrate(self, scope: Mapping[str, Any]) -> Step:
        mapped = {name: scope[name] for name in ("storage", "bridge") if scope[name]}
        arguments = {
            "guest": scope["vmid"],
            "to": scope["to"],
            "node": scope["node"],
            "vmid": scope["target_vmid"],
            **mapped,
        }
        return Step("migrate", "guest_remote_migrate", arguments, f"Migrate {scope['vmid']} to {scope['to']}")

    async def _wait_until_it_runs(self, work: Work, arrived: Guest) -> Next:
        now = work.pve.clock.time()
        since = float(work.memory.setdefault("waiting_since", now))
        status = await arrived.get("status/current")
        if status.get("status") == "running" and not status.get("lock"):
            work.memory["runs"] = True
            return Next(seconds=0.0)
        if now - since > RUN_SECONDS:
            work.memory.pop("waiting_since")
            return Next(pause=f"{arrived} does not run after {duration(now - since)}; the source is kept")
        return Next(waits_for=f"{arrived} runs in {work.scope['to']}")

    async def _delete(self, work: Work, source: Guest) -> Next:
        """Only a stopped source: if it runs, someone has started it, and there are two of them."""
        status = await source.get("status/current")
        if status.get("status") != "stopped":
            return Next(pause=f"{source} runs again; it is not deleted")
        if error := work.memory.pop("delete_error", ""):
            return Next(pause=f"{source} was moved but not deleted here: {error}")
        return Next((Step("delete", "guest_delete", {"guest": source.vmid}, f"Delete {source} here"),))

    def settle(self, run: Run, key: str, step: Pending, result: StepResult) -> None:
        if not result.was_sent:
            return
        if key == "delete":
            if not result.is_done:
                run.memory["delete_error"] = result.error
        elif result.is_done:
            run.memory["migrated"] = True
        else:
            run.memory["failed"] = f"{step.says}: {result.error}"

    async def list_unfinished(self, work: Work) -> list[str]:
        scope, memory = work.scope, work.memory
        if not memory.get("migrated"):
            return [f"guest {scope['vmid']} was not moved" + (f": {memory['failed']}" if "failed" in memory else "")]
        source = await find_guest(work.pve, int(scope["vmid"]), str(scope["name"]))
        where = f"guest {scope['vmid']} is in {scope['to']} as {scope['target_vmid']}"
        return [f"{where}, and its source is {'deleted' if source is None else 'kept'} here"]


declare(RemoteMove())
