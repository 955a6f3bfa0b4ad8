"""Any sequence of valid calls leaves a consistent world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pve_simulator.guests.guest import Guest
from pve_simulator.world import World
from simulator.consistency import always, at_rest
from simulator.root_client import RootClient, root_client

_STORAGES = ("local-lvm", "tank", "nas")
_NODES = ("pve1", "pve2", "pve3")
_SNAPSHOTS = ("first", "second")
_TEMPLATE = "local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"
_NEW = range(300, 304)


@dataclass(frozen=True, slots=True)
class Step:
    """One call, drawn as numbers; they are resolved to guests and storages when it runs."""

    operation: str
    which: int
    where: int
    pause: float
    flag: bool


Request = tuple[str, str, dict[str, Any]]


def _guest(world: World, step: Step) -> Guest:
    """Mostly one of the new guests: repeated changes of the same guest find the most errors."""
    new = [world.guests[vmid] for vmid in _NEW if vmid in world.guests]
    others = [world.guests[vmid] for vmid in sorted(world.guests)]
    chosen = new if new and step.which % 4 else others
    return chosen[step.which % len(chosen)]


def _path(guest: Guest) -> str:
    return f"/nodes/{guest.node}/{guest.kind}/{guest.vmid}"


def _create_vm(_: World, step: Step) -> Request:
    params = {
        "vmid": _NEW[step.which % len(_NEW)],
        "scsi0": f"{_STORAGES[step.where % 3]}:{1 + step.which % 40}",
        "net0": "virtio,bridge=vmbr0",
        "agent": "1",
        "start": int(step.flag),
    }
    return "POST", f"/nodes/{_NODES[step.where % 3]}/qemu", params


def _create_container(_: World, step: Step) -> Request:
    params = {
        "vmid": _NEW[step.which % len(_NEW)],
        "ostemplate": _TEMPLATE,
        "rootfs": f"{_STORAGES[step.where % 3]}:{1 + step.which % 40}",
        "unprivileged": 1,
    }
    return "POST", f"/nodes/{_NODES[step.where % 3]}/lxc", params


def _clone(world: World, step: Step) -> Request:
    params: dict[str, Any] = {"newid": _NEW[step.where % len(_NEW)], "full": int(step.flag)}
    if step.where % 2:
        params["target"] = _NODES[step.where % 3]
    return "POST", f"{_path(_guest(world, step))}/clone", params


def _add_disk(world: World, step: Step) -> Request:
    guest = _guest(world, step)
    drive = f"{_STORAGES[step.where % 3]}:{1 + step.where % 10}"
    key, value = ("scsi1", drive) if guest.kind == "qemu" else ("mp0", f"{drive},mp=/data")
    return "PUT", f"{_path(guest)}/config", {key: value}


def _detach_disk(world: World, step: Step) -> Request:
    guest = _guest(world, step)
    return "PUT", f"{_path(guest)}/config", {"delete": "scsi1" if guest.kind == "qemu" else "mp0"}


def _destroy_unused(world: World, step: Step) -> Request:
    return "PUT", f"{_path(_guest(world, step))}/config", {"delete": "unused0"}


def _resize(world: World, step: Step) -> Request:
    guest = _guest(world, step)
    size = f"+{1 + step.where}G" if step.flag else "2000G"
    return "PUT", f"{_path(guest)}/resize", {"disk": "scsi0" if guest.kind == "qemu" else "rootfs", "size": size}


def _move(world: World, step: Step) -> Request:
    guest = _guest(world, step)
    params: dict[str, Any] = {"storage": _STORAGES[step.where % 3], "delete": int(step.flag)}
    if guest.kind == "qemu":
        return "POST", f"{_path(guest)}/move_disk", {**params, "disk": "scsi0"}
    return "POST", f"{_path(guest)}/move_volume", {**params, "volume": "rootfs"}


def _snapshot(world: World, step: Step) -> Request:
    guest = _guest(world, step)
    params: dict[str, Any] = {"snapname": _SNAPSHOTS[step.where % 2]}
    if guest.kind == "qemu":
        params["vmstate"] = int(step.flag)
    return "POST", f"{_path(guest)}/snapshot", params


def _roll_back(world: World, step: Step) -> Request:
    return "POST", f"{_path(_guest(world, step))}/snapshot/{_SNAPSHOTS[step.where % 2]}/rollback", {}


def _delete_snapshot(world: World, step: Step) -> Request:
    return "DELETE", f"{_path(_guest(world, step))}/snapshot/{_SNAPSHOTS[step.where % 2]}", {}


def _template(world: World, step: Step) -> Request:
    return "POST", f"{_path(_guest(world, step))}/template", {}


def _power(world: World, step: Step) -> Request:
    action = ("start", "stop", "shutdown", "suspend", "resume", "reboot")[step.where % 6]
    return "POST", f"{_path(_guest(world, step))}/status/{action}", {}


def _migrate(world: World, step: Step) -> Request:
    guest = _guest(world, step)
    params: dict[str, Any] = {"target": _NODES[step.where % 3]}
    if guest.kind == "qemu":
        params |= {"online": 1, "with-local-disks": 1} if step.flag else {}
    else:
        params |= {"restart": 1} if step.flag else {}
    return "POST", f"{_path(guest)}/migrate", params


def _back_up(world: World, step: Step) -> Request:
    guest = _guest(world, step)
    mode = ("snapshot", "suspend", "stop")[step.where % 3]
    return "POST", f"/nodes/{guest.node}/vzdump", {"vmid": guest.vmid, "storage": "nas", "mode": mode}


def _restore(world: World, step: Step) -> Request:
    backups = [volume for volume in world.storages["nas"].volumes("pve1") if volume.content == "backup"]
    volume = backups[step.which % len(backups)]
    params: dict[str, Any] = {"vmid": _NEW[step.where % len(_NEW)], "storage": "local-lvm", "force": int(step.flag)}
    if "vzdump-lxc" in volume.volid:
        return "POST", f"/nodes/{_NODES[step.where % 3]}/lxc", {**params, "ostemplate": volume.volid, "restore": 1}
    return "POST", f"/nodes/{_NODES[step.where % 3]}/qemu", {**params, "archive": volume.volid}


def _put_into_pool(world: World, step: Step) -> Request:
    params: dict[str, Any] = {"poolid": "lab", "vms": _guest(world, step).vmid, "allow-move": 1}
    return "PUT", "/pools", params | ({"delete": 1} if step.flag else {})


def _cancel(world: World, step: Step) -> Request:
    active = world.tasks.active()
    if not active:
        return "GET", "/version", {}
    upid = active[step.which % len(active)].upid
    return "DELETE", f"/nodes/{upid.node}/tasks/{upid}", {}


def _hand_over(world: World, step: Step) -> Request:
    guest = _guest(world, step)
    others = [other.vmid for other in world.guests_on(guest.node, guest.kind) if other is not guest] or [999]
    target = others[step.where % len(others)]
    if guest.kind == "qemu":
        params = {"disk": "scsi1", "target-vmid": target, "target-disk": "scsi2"}
        return "POST", f"{_path(guest)}/move_disk", params
    return "POST", f"{_path(guest)}/move_volume", {"volume": "mp0", "target-vmid": target, "target-volume": "mp1"}


def _cloud_init(world: World, step: Step) -> Request:
    return "PUT", f"{_path(_guest(world, step))}/config", {"ide2": f"{_STORAGES[step.where % 3]}:cloudinit"}


def _efi_disk(world: World, step: Step) -> Request:
    return "PUT", f"{_path(_guest(world, step))}/config", {"efidisk0": f"{_STORAGES[step.where % 3]}:1"}


def _replace_disk(world: World, step: Step) -> Request:
    """Set a new disk where one exists; the old one must not be lost."""
    guest = _guest(world, step)
    drive = f"{_STORAGES[step.where % 3]}:3"
    key, value = ("scsi0", drive) if guest.kind == "qemu" else ("mp0", f"{drive},mp=/other")
    return "PUT", f"{_path(guest)}/config", {key: value}


def _care_for(world: World, step: Step) -> Request:
    guest = _guest(world, step)
    if guest.sid in world.ha and step.flag:
        return "DELETE", f"/cluster/ha/resources/{guest.sid}", {}
    state = ("started", "stopped", "disabled")[step.where % 3]
    return "POST", "/cluster/ha/resources", {"sid": guest.sid, "state": state}


def _delete_backup(world: World, step: Step) -> Request:
    backups = [volume for volume in world.storages["nas"].volumes("pve1") if volume.content == "backup"]
    volume = backups[step.which % len(backups)]
    return "DELETE", f"/nodes/pve1/storage/nas/content/{volume.volid}", {}


def _delete(world: World, step: Step) -> Request:
    guest = _guest(world, step)
    return "DELETE", _path(guest), {"purge": int(step.flag)}


_OPERATIONS: dict[str, Callable[[World, Step], Request]] = {
    function.__name__.strip("_"): function
    for function in (
        _create_vm, _create_container, _clone, _add_disk, _replace_disk, _detach_disk, _destroy_unused, _resize, _move,
        _hand_over, _cloud_init, _efi_disk, _snapshot, _roll_back, _delete_snapshot, _template, _power, _migrate,
        _back_up, _restore, _delete_backup, _put_into_pool, _care_for, _cancel, _delete,
    )
}  # fmt: skip

_STEPS = st.lists(
    st.builds(
        Step,
        operation=st.sampled_from(sorted(_OPERATIONS)),
        which=st.integers(0, 60),
        where=st.integers(0, 11),
        pause=st.sampled_from((0.0, 0.7, 3.0, 600.0)),
        flag=st.booleans(),
    ),
    min_size=8,
    max_size=40,
)


async def _take(client: RootClient, step: Step) -> tuple[str | None, list[str]]:
    """Run one step; returns the UPID it started and the violations afterwards."""
    method, path, params = _OPERATIONS[step.operation](client.world, step)
    reply = await client.ask(method, path, params, by_token=True)  # a ticket would not last as long
    text = f"{method} {path} {params} -> {reply.status} {reply.reason}"
    wrong = [f"{text}: {text}" for text in always(client.world)]
    if reply.status == 501 or "internal error" in reply.reason:
        wrong.append(text)
    started = reply.data if isinstance(reply.data, str) and reply.data.startswith("UPID:") else None
    await client.clock.advance(step.pause)
    return started, wrong


async def _live(steps: list[Step]) -> list[str]:
    async with root_client() as client:
        started, wrong = [], []
        for step in steps:
            upid, problems = await _take(client, step)
            wrong += problems
            started += [upid] if upid else []
        await client.finish_tasks()
        wrong += at_rest(client.world)
        for upid in started:
            found_again = await client.ask("GET", f"/nodes/{upid.split(':')[1]}/tasks/{upid}/status", by_token=True)
            if found_again.status != 200:
                wrong.append(f"{upid} is not found again")
        return wrong


def test_the_demo_world_is_consistent_from_the_start():
    async def look() -> list[str]:
        async with root_client() as client:
            return list(at_rest(client.world))

    assert asyncio.run(look()) == []


@pytest.mark.parametrize("sequences", [10, pytest.param(200, marks=pytest.mark.thorough)])
def test_any_sequence_of_calls_leaves_a_consistent_world(sequences: int):
    @settings(
        max_examples=sequences,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(steps=_STEPS)
    def is_consistent(steps: list[Step]) -> None:
        assert asyncio.run(_live(steps)) == []

    is_consistent()
