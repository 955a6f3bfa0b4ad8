"""Reading a guest: configuration, pending changes, snapshots."""

from __future__ import annotations

from typing import Any

from quorate.sim.guests import Guest, Kind, Snapshot
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route

_MASKED = "**********"


@route("GET /nodes/{node}/qemu/{vmid}/config")
def vm_config(call: Call) -> dict[str, Any]:
    return _config(call, "qemu")


@route("GET /nodes/{node}/lxc/{vmid}/config")
def container_config(call: Call) -> dict[str, Any]:
    return _config(call, "lxc")


def _config(call: Call, kind: Kind) -> dict[str, Any]:
    guest = call.guest(kind)
    snapname = call.params.get("snapshot")
    if snapname is not None:
        return {**_masked(_snapshot(guest, snapname).config), "digest": guest.digest()}
    shown = guest.config if call.params.get("current") else guest.effective_config()
    return {**_masked(shown), "digest": guest.digest()}


def _masked(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "cipassword": _MASKED} if "cipassword" in config else dict(config)


@route("GET /nodes/{node}/qemu/{vmid}/pending")
def vm_pending(call: Call) -> list[dict[str, Any]]:
    return _pending(call.guest("qemu"))


@route("GET /nodes/{node}/lxc/{vmid}/pending")
def container_pending(call: Call) -> list[dict[str, Any]]:
    return _pending(call.guest("lxc"))


def _pending(guest: Guest) -> list[dict[str, Any]]:
    now, next_ = _masked(guest.config), _masked(guest.pending)
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


@route("GET /nodes/{node}/qemu/{vmid}/snapshot")
def vm_snapshots(call: Call) -> list[dict[str, Any]]:
    return _snapshots(call.guest("qemu"))


@route("GET /nodes/{node}/lxc/{vmid}/snapshot")
def container_snapshots(call: Call) -> list[dict[str, Any]]:
    return _snapshots(call.guest("lxc"))


def _snapshots(guest: Guest) -> list[dict[str, Any]]:
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
    row: dict[str, Any] = {
        "name": snapshot.name,
        "description": snapshot.description,
        "snaptime": snapshot.snaptime,
    }
    if guest.kind == "qemu":
        row["vmstate"] = int(snapshot.vmstate)
    if snapshot.parent is not None:
        row["parent"] = snapshot.parent
    if snapshot.state is not None:
        row["snapstate"] = snapshot.state
    return row


@route("GET /nodes/{node}/qemu/{vmid}/snapshot/{snapname}/config")
def vm_snapshot_config(call: Call) -> dict[str, Any]:
    return _snapshot_config(call, "qemu")


@route("GET /nodes/{node}/lxc/{vmid}/snapshot/{snapname}/config")
def container_snapshot_config(call: Call) -> dict[str, Any]:
    return _snapshot_config(call, "lxc")


def _snapshot_config(call: Call, kind: Kind) -> dict[str, Any]:
    snapshot = _snapshot(call.guest(kind), call.params["snapname"])
    shown = {**_masked(snapshot.config), "snaptime": snapshot.snaptime}
    shown |= {"description": snapshot.description} if snapshot.description else {}
    return shown | ({"parent": snapshot.parent} if snapshot.parent else {})


def _snapshot(guest: Guest, name: str) -> Snapshot:
    snapshot = guest.snapshots.get(name)
    if snapshot is None:
        raise failure(f"snapshot '{name}' does not exist")
    return snapshot
