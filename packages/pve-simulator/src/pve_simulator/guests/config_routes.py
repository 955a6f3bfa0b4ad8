"""Reading a guest: configuration, cloud-init data, features and addresses."""

from __future__ import annotations

from typing import Any

from pve_simulator.guest_os.agent_facts import NO_MAC, by_interface, with_link_local
from pve_simulator.guests import cloudinit
from pve_simulator.guests.drives import disks
from pve_simulator.guests.guest import Guest, Snapshot, Value
from pve_simulator.guests.guest_volumes import silent
from pve_simulator.guests.start_requirements import write_cloudinit
from pve_simulator.http.refusals import bad_parameters, existing
from pve_simulator.http.routing import GUEST, LXC, QEMU, Call, route
from pve_simulator.nodes.settings_routes import Settings
from pve_simulator.nodes.tasks import config_lock
from pve_simulator.storage.volume_names import Feature, format_of, has_feature
from pve_simulator.world import World

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
