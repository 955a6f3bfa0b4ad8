"""Reading a guest: configuration, cloud-init data, features, addresses and load."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from pve_simulator.guest_os.agent_facts import NO_MAC, by_interface, with_link_local
from pve_simulator.guests import cloudinit
from pve_simulator.guests.drives import disks
from pve_simulator.guests.guest import Guest, Snapshot, Value
from pve_simulator.guests.guest_volumes import silent
from pve_simulator.guests.start_requirements import write_cloudinit
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.http.routing import GUEST, LXC, QEMU, Call, route
from pve_simulator.nodes import rrd
from pve_simulator.nodes.settings_routes import Settings
from pve_simulator.nodes.status_daemon import StatusDaemon
from pve_simulator.nodes.tasks import config_lock
from pve_simulator.storage.volume_names import Feature, format_of, has_feature
from pve_simulator.world import Node, World

_MASKED = "**********"


@route(f"GET {GUEST}/config")
def config(call: Call) -> dict[str, Any]:
    guest = call.guest()
    snapname = call.params.get("snapshot")
    if snapname is not None:
        if call.params.get("current"):
            both = "cannot use 'snapshot' parameter with 'current'"
            raise bad_parameters({"snapshot": both, "current": both})
        return _shown_snapshot(_snapshot(guest, snapname)) | {"digest": guest.digest()}
    shown = guest.config if call.params.get("current") else guest.effective_config()
    return {**_mask_password(shown), "digest": guest.digest()}


def _mask_password(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "cipassword": _MASKED} if "cipassword" in config else dict(config)


@route(f"GET {GUEST}/pending")
def pending_changes(call: Call) -> list[dict[str, Any]]:
    guest = call.guest()
    now, next_ = _mask_password(guest.config), _mask_password(guest.pending)
    rows: list[dict[str, Any]] = []
    for key in (*now, *(key for key in next_ if key not in now)):
        row: dict[str, Any] = {"key": key}
        if key in now:
            row["value"] = now[key]
        if key in next_:
            row["pending"] = next_[key]
        if key in guest.pending_delete:
            row["delete"] = guest.pending_delete[key]
        rows.append(row)
    return [*rows, {"key": "digest", "value": guest.digest()}]


@route(f"GET {GUEST}/snapshot")
def snapshots(call: Call) -> list[dict[str, Any]]:
    guest = call.guest()
    rows = [_snapshot_row(guest, snapshot) for snapshot in guest.snapshots.values()]
    here: dict[str, Any] = {
        "name": "current",
        "description": "You are here!",
        "running": int(guest.running),
        "digest": guest.digest(),
    }
    if "parent" in guest.config:
        here["parent"] = guest.config["parent"]
    return [*rows, here]


def _snapshot_row(guest: Guest, snapshot: Snapshot) -> dict[str, Any]:
    row: dict[str, Any] = {"name": snapshot.name, "description": snapshot.description, "snaptime": snapshot.snaptime}
    if guest.kind == "qemu":
        row["vmstate"] = int(snapshot.vmstate)
    if snapshot.parent is not None:
        row["parent"] = snapshot.parent
    if snapshot.state is not None:
        row["snapstate"] = snapshot.state
    return row


@route(f"GET {GUEST}/snapshot/{{snapname}}/config")
def snapshot_config(call: Call) -> dict[str, Any]:
    return _shown_snapshot(_snapshot(call.guest(), call.params["snapname"]))


def _shown_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    shown = {**_mask_password(snapshot.config), "snaptime": snapshot.snaptime}
    shown |= {"description": snapshot.description} if snapshot.description else {}
    return shown | ({"parent": snapshot.parent} if snapshot.parent else {})


def _snapshot(guest: Guest, name: str) -> Snapshot:
    return existing(guest.snapshots.get(name), f"snapshot '{name}' does not exist")


_PATH = f"{QEMU}/cloudinit"


@route(f"GET {_PATH}")
def pending(call: Call) -> list[dict[str, Any]]:
    return cloudinit.rows(call.guest())


@route(f"PUT {_PATH}")
async def regenerate(call: Call) -> None:
    """Rewrite the drive with the current settings."""
    guest = call.guest()
    async with config_lock(call.world.clock, guest):
        call.guest().check_lock()
        write_cloudinit(call.world, guest, silent)
        guest.cloudinit = cloudinit.settings(guest.effective_config())


@route(f"GET {_PATH}/dump")
def dump(call: Call) -> str:
    dns = call.world.part(Settings).of(call.node).dns
    return cloudinit.dump(call.world, call.guest(), call.params["type"], dns)


@route(f"GET {GUEST}/feature")
def feature(call: Call) -> dict[str, Any]:
    guest = call.guest() if call.kind == "lxc" else call.located_vm()
    snapname = call.params.get("snapname")
    config = guest.config if snapname is None else _snapshot(guest, snapname).config
    has = _all_have(call.world, config, call.params["feature"], of_snapshot=snapname is not None)
    return {"hasFeature": int(has)} | ({"nodes": _nodes_of(call.world, guest)} if call.kind == "qemu" else {})


def _all_have(world: World, config: dict[str, Value], feature: Feature, *, of_snapshot: bool) -> bool:
    return all(
        drive.storage in world.storages
        and has_feature(
            world.storages[drive.storage], drive.volid, format_of(drive.volid), feature, of_snapshot=of_snapshot
        )
        for drive in disks(config)
    )


def _nodes_of(world: World, guest: Guest) -> list[str]:
    """The nodes that can reach all disks: only its own if any disk is local."""
    nodes = list(world.nodes)
    for drive in disks(guest.config):
        storage = world.storages.get(drive.storage)
        if storage is not None:
            nodes = [node for node in nodes if storage.on_node(node) and (storage.shared or node == guest.node)]
    return nodes


@route(f"GET {LXC}/interfaces")
def container_interfaces(call: Call) -> list[dict[str, Any]] | None:
    guest = call.find_guest()
    if guest is None or not guest.running:
        return None
    rows = [_container_interface("lo", NO_MAC, [("127.0.0.1", 8), ("::1", 128)])]
    for name, addresses in by_interface(guest).items():
        rows.append(_container_interface(name, addresses[0].mac.lower(), with_link_local(addresses)))
    return rows


def _container_interface(name: str, mac: str, addresses: list[tuple[str, int]]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "hwaddr": mac, "hardware-address": mac}
    row["ip-addresses"] = [
        {"ip-address": ip, "prefix": str(prefix), "ip-address-type": "inet6" if ":" in ip else "inet"}
        for ip, prefix in addresses
    ]
    for ip, prefix in addresses:
        row.setdefault("inet6" if ":" in ip else "inet", f"{ip}/{prefix}")
    return row


def _node(call: Call) -> Node:
    """The node of an RRD file; every node has all files, so it may be down."""
    name = call.local_node.name if call.node == "localhost" else call.node
    return existing(call.world.nodes.get(name), rrd.missing_file(f"{_prefix(call, 'node')}/{name}"))


def _guest(call: Call) -> Guest:
    """The guest, once pvestatd has written its first data."""
    guest = call.world.guests.get(call.vmid)
    if guest is None or call.vmid not in call.world.part(StatusDaemon).guests:
        raise failure(rrd.missing_file(f"{_prefix(call, 'vm')}/{call.vmid}"))
    return guest


def _prefix(call: Call, what: str) -> str:
    return f"pve-{what}-9.0" if call.world.version_at_least(9, 0) else f"pve2-{what}"


@route("GET /nodes/{node}/rrddata")
def node_data(call: Call) -> list[dict[str, Any]]:
    return rrd.node_points(call.world, _node(call), call.params["timeframe"], call.params.get("cf"))


@route(f"GET {GUEST}/rrddata")
def guest_data(call: Call) -> list[dict[str, Any]]:
    return rrd.guest_points(call.world, _guest(call), call.params["timeframe"], call.params.get("cf"))


@route("GET /nodes/{node}/rrd")
def node_picture(call: Call) -> dict[str, str]:
    return picture(call, f"{_prefix(call, 'node')}/{_node(call).name}", rrd.NODE_FIELDS)


@route(f"GET {GUEST}/rrd")
def guest_picture(call: Call) -> dict[str, str]:
    _guest(call)
    return picture(call, f"{_prefix(call, 'vm')}/{call.vmid}", rrd.GUEST_FIELDS)


def picture(call: Call, path: str, known: Container[str]) -> dict[str, str]:
    """The path of the rendered graph in PVE."""
    file = f"/var/lib/rrdcached/db/{path}"
    sources = split_list(call.params["ds"])
    for source in sources:
        if source not in known:
            raise failure(f"RRD error: No DS called '{source}' in '{file}'")
    return {"filename": f"{file}_{'_'.join(sources)}.png"}
