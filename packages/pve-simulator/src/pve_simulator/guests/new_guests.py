"""New guests: their vmid, pool, operating system and addresses."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from pve_simulator.access.directory import Access
from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.guests import drives, power
from pve_simulator.guests.guest import Address, Guest, Kind, OperatingSystem, Value, task_type
from pve_simulator.guests.power import GuestAddress
from pve_simulator.http.refusals import failure, forbidden
from pve_simulator.http.routing import Call
from pve_simulator.nodes.tasks import TaskContext
from pve_simulator.world import HaResource, World

_SYSTEMS = {
    "debian": OperatingSystem(),
    "debian-12": OperatingSystem(version="12 (bookworm)", version_id="12", kernel="6.1.0-41-amd64", systemd=252),
    "debian-11": OperatingSystem(version="11 (bullseye)", version_id="11", kernel="5.10.0-36-amd64", systemd=247),
    "ubuntu": OperatingSystem(
        "ubuntu", "Ubuntu", "24.04.3 LTS (Noble Numbat)", "24.04", "6.8.0-87-generic", systemd=255
    ),
    "ubuntu-22.04": OperatingSystem(
        "ubuntu", "Ubuntu", "22.04.5 LTS (Jammy Jellyfish)", "22.04", "5.15.0-161-generic", systemd=249
    ),
    "alpine": OperatingSystem("alpine", "Alpine Linux", "3.22.1", "3.22.1", "6.12.38-0-lts", systemd=0),
    "fedora": OperatingSystem("fedora", "Fedora Linux", "42 (Forty Two)", "42", "6.14.0-63.fc42"),
    "centos": OperatingSystem("centos", "CentOS Stream", "9", "9", "5.14.0-570.el9", systemd=252),
    "archlinux": OperatingSystem("archlinux", "Arch Linux", "", "", "6.17.1-arch1-1", systemd=258),
    "opensuse": OperatingSystem("opensuse", "openSUSE Leap", "15.6", "15.6", "6.4.0-150600", systemd=254),
}
"""By operating system, and by release where it differs from the newest."""
_WITHOUT_NAME = OperatingSystem(systemd=0)


def require_new_guest(call: Call, vmid: int, pool: str | None) -> None:
    """Require the privilege to create this guest, on itself or on its pool."""
    if pool is not None and pool not in call.world.access.pools:
        raise forbidden(f"pool '{pool}' does not exist")
    if call.is_root or call.allowed(f"/vms/{vmid}", "VM.Allocate"):
        return
    if pool is None or not call.allowed(f"/pool/{pool}", "VM.Allocate"):
        raise forbidden()


def refuse_taken(world: World, vmid: int, complaint: str = "") -> None:
    """Refuse a vmid that is in use in the cluster."""
    guest = world.guests.get(vmid)
    if guest is not None:
        raise failure(f"{complaint}{guest.word} {vmid} already exists on node '{guest.node}'")


def reserve(world: World, node: str, kind: Kind, vmid: int) -> Guest:
    """Reserve the vmid with an empty guest, locked until its task has created it."""
    guest = Guest(vmid, kind, node, {"lock": "create"})
    world.add_guest(guest)
    return guest


def abandon(world: World, guest: Guest) -> None:
    """Drop a guest that could not be created."""
    if world.guests.get(guest.vmid) is guest:
        world.remove_guest(guest)
        leave_pool(world.access, guest.vmid)


def enter_pool(access: Access, vmid: int, pool: str | None) -> None:
    if pool is not None and pool in access.pools:
        leave_pool(access, vmid)
        access.pools[pool].vms.add(vmid)
        access.invalidate_cache()


def leave_pool(access: Access, vmid: int) -> None:
    for pool in access.pools.values():
        pool.vms.discard(vmid)
    access.invalidate_cache()


def create_in_task(call: Call, worker: str, guest: Guest, make: Callable[[TaskContext], Awaitable[None]]) -> str:
    """Start the task in which `make` fills the reserved guest; if it fails, the guest is dropped."""

    async def work(context: TaskContext) -> None:
        try:
            async with context.config_lock(guest):
                await make(context)
        except BaseException:
            abandon(call.world, guest)
            raise
        after_creation(call, context, guest)

    return call.start_task(worker, str(guest.vmid), work)


def after_creation(call: Call, context: TaskContext, guest: Guest) -> None:
    """Add the guest to HA and start it, if requested."""
    started = bool(call.params.get("start"))
    if call.params.get("ha-managed"):
        context.log("Add as HA resource")
        state = "started" if started else "stopped"
        call.world.ha[guest.sid] = HaResource(guest.sid, state, crm_state=None, shown_state="queued")
        call.world.part(HaManager).wake()
        guest.touch()
    if started:
        if guest.kind == "qemu":
            context.log("Execute autostart")
        start, kind = power.start(GuestAddress.of_guest(call.world, guest)), task_type(guest.kind, "start")
        call.world.tasks.start(guest.node, kind, str(guest.vmid), call.authid, start, inside=True)


_INSTALLER = re.compile(r"netinst|install|dvd|live-server|virtio-win|windows|server_eval", re.IGNORECASE)
"""Names of images that boot into an installer, or are drivers for one."""


def system_of_vm(world: World, config: Mapping[str, Value], *, imported: bool) -> OperatingSystem:
    """The system on the imported disk or the CD-ROM; an empty disk boots nothing.

    A live system has an agent, as images for clouds do here; an installer, Windows and unknown systems have none.
    """
    discs = [
        file
        for key, value in config.items()
        if drives.is_drive("qemu", key) and ":iso/" in (file := drives.parse(world, "qemu", key, str(value))["file"])
    ]
    kind = str(config.get("ostype", "l26"))
    if not (imported or discs):
        return OperatingSystem("", "", "", "", "", agent_installed=False, obeys_shutdown=False)
    if kind.startswith("w"):
        return OperatingSystem("mswindows", "Microsoft Windows", "11 Pro", "11", "26100", agent_installed=False)
    if kind not in ("l24", "l26"):
        return OperatingSystem("unknown", "Unknown", "1", "1", "1", agent_installed=False)
    return OperatingSystem(agent_installed=imported or not all(map(_INSTALLER.search, discs)))


def os_type_of_template(name: str) -> str:
    """The distribution in a container template's file name."""
    first = name.rpartition("/")[2].partition("-")[0].lower()
    return first if first in _SYSTEMS else "unmanaged"


def system_of_container(template: str, ostype: str) -> OperatingSystem:
    """The system that a container template unpacks: that of its release, or of its operating system."""
    release = "-".join(template.rpartition("/")[2].lower().split("-")[:2])
    return replace(_SYSTEMS.get(release) or _SYSTEMS.get(ostype) or _WITHOUT_NAME)


def addresses_of(world: World, guest: Guest) -> list[Address]:
    """The guest's configured addresses; DHCP leases are reproducible."""
    addresses = []
    known = {address.mac: address for address in guest.addresses}
    for key, value in guest.config.items():
        if not drives.is_net(key):
            continue
        net = drives.parse(world, guest.kind, key, str(value))
        number = int(key[3:])
        setting = net if guest.kind == "lxc" else _ip_config(world, guest, number)
        mac = net.get("hwaddr" if guest.kind == "lxc" else "macaddr", "")
        if mac in known and setting.get("ip") in (None, "dhcp"):  # keep the lease
            addresses.append(known[mac])
            continue
        ip, _, prefix = _address(world, guest, key, setting.get("ip")).partition("/")
        if ip:
            name = net["name"] if guest.kind == "lxc" else f"ens{18 + number}"
            addresses.append(Address(name, mac, ip, int(prefix or 24)))
    return addresses


def _ip_config(world: World, guest: Guest, number: int) -> Mapping[str, str]:
    text = str(guest.config.get(f"ipconfig{number}", ""))
    return drives.parse(world, "qemu", f"ipconfig{number}", text) if text else {"ip": "dhcp"}


def _address(world: World, guest: Guest, key: str, setting: str | None) -> str:
    if setting != "dhcp":
        return "" if setting in (None, "manual") else str(setting)
    digest = hashlib.sha256(f"dhcp {world.seed} {guest.vmid} {key}".encode()).digest()
    return f"192.168.10.{100 + digest[0] % 150}/24"
