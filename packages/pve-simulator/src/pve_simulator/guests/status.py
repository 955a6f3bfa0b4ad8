"""Status of guests and nodes: list rows, `status/current`, node status."""

from __future__ import annotations

import hashlib
from typing import Any

from pve_simulator.guests.guest import Guest, Value, is_net
from pve_simulator.http.parameters import split_pairs
from pve_simulator.nodes import status_daemon
from pve_simulator.storage import volumes
from pve_simulator.world import Node, World

QEMU_VERSION = "10.1.2"
SAVED_STATE = ("vmstate", "runningmachine", "runningcpu", "running-nets-host-mtu")
"""Options that exist only with saved memory."""
_RUNNING_CPU = "kvm64,enforce,+kvm_pv_eoi,+kvm_pv_unhalt,+lahf_lm,+sep"
_SUPPORTED = (
    "backup-access-api backup-fleecing backup-max-workers pbs-dirty-bitmap pbs-dirty-bitmap-migration"
    " pbs-dirty-bitmap-savevm pbs-masterkey query-bitmap-info"
)
_READ_SIZE = 16384
_UNTOUCHED = {"diskread": 0, "diskwrite": 0}
_HOST_MEMORY = 2 * 1024**3  # used by PVE itself
_PRESSURE_KEYS = tuple(f"pressure{what}{level}" for what in ("cpu", "io", "memory") for level in ("full", "some"))


_Running = Guest | status_daemon.GuestReport  # as it is, or as it was when last reported


def guest_seed(world: World, guest: _Running) -> int:
    """The seed of one guest's load."""
    return world.seed * 7919 + guest.vmid


def load(world: World, guest: _Running, now: float) -> dict[str, Any]:
    """The load of a guest; all zero while it is stopped."""
    if not guest.running:
        return {"uptime": 0, "cpu": 0, "mem": 0, "netin": 0, "netout": 0, "diskread": 0, "diskwrite": 0}
    seed = guest_seed(world, guest)
    profile = status_daemon.profile(seed)
    age = max(0.0, now - guest.process_began)
    counted = status_daemon.counted_seconds(age, guest.process_began)
    return {
        "uptime": int(age),
        "cpu": 0 if guest.paused else status_daemon.cpu_load(seed, now),
        "mem": int(guest.memory * status_daemon.memory_share(seed, now)),
        "netin": int(profile.netin * counted),
        "netout": int(profile.netout * counted),
        "diskread": int(profile.diskread * counted),
        "diskwrite": int(profile.diskwrite * counted),
    }


def disk_usage(world: World, guest: _Running) -> int:
    """The `disk` of a guest: known only for running containers."""
    if guest.kind == "qemu" or not guest.running:
        return 0
    return int(guest.disk_size * status_daemon.profile(guest_seed(world, guest)).disk)


def host_memory(guest: _Running, used: int) -> int:
    """Host memory of a guest: a VM takes more than it uses itself."""
    return used + used // 16 if guest.kind == "qemu" else used


def list_row(world: World, guest: Guest, *, full: bool = False) -> dict[str, Any]:
    """The guest in the list of its node."""
    now = world.clock.now()
    moving = load(world, guest, now)
    row: dict[str, Any] = {
        "vmid": guest.vmid, "name": guest.name, "status": guest.status, "cpus": world.guest_cpus(guest),
        "maxmem": guest.memory, "maxdisk": guest.disk_size, "disk": disk_usage(world, guest),
        **{key: moving[key] for key in ("uptime", "cpu", "mem", "netin", "netout")},
    }  # fmt: skip
    if guest.kind == "lxc":
        row |= {"type": "lxc", "maxswap": guest.swap, "swap": 0}
        row |= {"diskread": moving["diskread"], "diskwrite": moving["diskwrite"]}
    else:
        row["memhost"] = host_memory(guest, moving["mem"])
        if "serial0" in guest.config:
            row["serial"] = 1
    if guest.running:
        row |= {"pid": guest.pid, **_pressure(world, guest, now)}
    if guest.template:
        row["template"] = 1
    row |= {key: guest.config[key] for key in ("tags", "lock") if key in guest.config}
    if full and guest.kind == "qemu":
        row |= {"qmpstatus": qmp_status(guest), **(_running_vm(world, guest) if guest.running else {})}
    return row


def current(world: World, guest: Guest) -> dict[str, Any]:
    """`status/current`: the list row and what the guest itself reports."""
    row = list_row(world, guest, full=True)
    row["ha"] = _ha(world, guest)
    if guest.kind == "lxc":
        return row
    if "vga" in guest.config:
        display = str(guest.config["vga"])
        row["clipboard"] = split_pairs(display).get("clipboard")
        row |= {"spice": 1} if display.removeprefix("type=").startswith("qxl") else {}
    if guest.config.get("balloon"):
        row |= {"balloon_min": int(guest.config["balloon"]) * 1024**2, "shares": int(guest.config.get("shares", 1000))}
    if guest.agent_enabled():
        row["agent"] = 1
    return row


def qmp_status(guest: Guest) -> str:
    if not guest.running:
        return "stopped"
    return "paused" if guest.paused else "running"


def _ha(world: World, guest: Guest) -> dict[str, Any]:
    resource = world.ha.get(guest.sid)
    if resource is None or resource.state == "ignored":
        return {"managed": 0}
    return {
        "managed": 1,
        "state": resource.shown_state,
        "max_restart": resource.max_restart,
        "max_relocate": resource.max_relocate,
    }


def _pressure(world: World, guest: Guest, now: float) -> dict[str, Any]:
    """Pressure stall information; PVE 9 has it, containers as text."""
    if not world.version_at_least(9, 0):
        return {}
    value = round(0.6 * status_daemon.wave(guest_seed(world, guest) + 3, now, 900.0), 2)
    pressure = {key: value if key.startswith("pressurecpu") else 0 for key in _PRESSURE_KEYS}
    return {key: f"{number:.2f}" for key, number in pressure.items()} if guest.kind == "lxc" else pressure


def _running_machine(guest: Guest) -> str:
    """The running machine type: the configured version, or the chipset's latest."""
    chosen = str(guest.config.get("machine", "pc")).split(",")[0].removeprefix("type=")
    if chosen in ("pc", "q35"):
        chosen = f"pc-{'q35' if chosen == 'q35' else 'i440fx'}-{QEMU_VERSION.rpartition('.')[0]}"
    return chosen if "+pve" in chosen else f"{chosen}+pve0"


def running_hardware(guest: Guest) -> dict[str, Value]:
    """The exact hardware that saved memory needs to resume."""
    emulated = not guest.config.get("kvm", 1)
    hardware: dict[str, Value] = {"runningmachine": _running_machine(guest)}
    hardware["runningcpu"] = "qemu64" if emulated else _RUNNING_CPU
    cards = [key for key, value in guest.config.items() if is_net(key) and str(value).startswith("virtio")]
    return hardware | ({"running-nets-host-mtu": ",".join(f"{key}=1500" for key in sorted(cards))} if cards else {})


def _running_vm(world: World, guest: Guest) -> dict[str, Any]:
    now = world.clock.now()
    moving = load(world, guest, now)
    extra: dict[str, Any] = {
        "diskread": moving["diskread"],
        "diskwrite": moving["diskwrite"],
        "running-machine": _running_machine(guest),
        "running-qemu": QEMU_VERSION,
        "proxmox-support": dict.fromkeys(_SUPPORTED.split(), True) | {"pbs-library-version": "2.0.1 (simulated)"},
    }
    nics = _nics(guest, moving)
    blocks = {
        key: _block_statistics(moving if _is_in_use(world, guest, key, volid) else _UNTOUCHED)
        for key, volid in guest.drives()
    }
    extra |= {key: value for key, value in (("nics", nics), ("blockstat", blocks)) if value}
    return extra | ({} if str(guest.config.get("balloon")) == "0" else _balloon(guest, moving["mem"], now))


def _balloon(guest: Guest, used: int, now: float) -> dict[str, Any]:
    """The balloon device, whose driver in the guest reports free memory."""
    memory = guest.memory
    info: dict[str, Any] = {"actual": memory, "max_mem": memory}
    if not guest.system.agent_installed:
        return {"balloon": memory, "ballooninfo": info}
    free = memory - used
    info |= {
        "total_mem": memory - memory // 24, "free_mem": free, "mem_swapped_in": 0, "mem_swapped_out": 0,
        "major_page_faults": 184, "minor_page_faults": 250_917, "last_update": int(now),
    }  # fmt: skip
    return {"balloon": memory, "ballooninfo": info, "freemem": free}


def _nics(guest: Guest, moving: dict[str, Any]) -> dict[str, Any]:
    numbers = sorted(int(key[3:]) for key in guest.config if is_net(key))
    share = max(1, len(numbers))
    return {
        f"tap{guest.vmid}i{number}": {"netin": moving["netin"] // share, "netout": moving["netout"] // share}
        for number in numbers
    }


def _is_in_use(world: World, guest: Guest, key: str, volid: str) -> bool:
    """Whether the guest reads the volume: not if it was hotplugged, or is empty and nothing looks at it at boot."""
    storage = world.storages.get(volid.partition(":")[0])
    volume = None if storage is None or not storage.on_node(guest.node) else storage.volume(guest.node, volid)
    if storage is None or volume is None:
        return True
    if volume.ctime > guest.started_at:
        return False
    is_empty = volume.used <= volumes.initial_usage(storage, volume.format, volume.size)
    return not is_empty or bool(guest.system.id) or key == guest.boot_disk()


def _block_statistics(moving: dict[str, Any]) -> dict[str, Any]:
    read, written = moving["diskread"], moving["diskwrite"]
    zero = (
        "failed_flush_operations failed_rd_operations failed_unmap_operations failed_wr_operations"
        " invalid_flush_operations invalid_rd_operations invalid_unmap_operations invalid_wr_operations"
        " failed_zone_append_operations invalid_zone_append_operations zone_append_bytes zone_append_merged"
        " zone_append_operations zone_append_total_time_ns"
        " rd_merged wr_merged unmap_bytes unmap_merged unmap_operations unmap_total_time_ns"
    )
    used = {"idle_time_ns": 731_000_000} if read >= _READ_SIZE else {}  # absent before the first access
    return {
        **dict.fromkeys(zero.split(), 0),
        **used,
        "account_failed": True, "account_invalid": True, "timed_stats": [],
        "rd_bytes": read, "rd_operations": read // _READ_SIZE, "rd_total_time_ns": read * 12,
        "wr_bytes": written, "wr_operations": written // 8192, "wr_total_time_ns": written * 30,
        "wr_highest_offset": written, "flush_operations": written // 65536, "flush_total_time_ns": written * 4,
    }  # fmt: skip


def node_load(world: World, node: Node, now: float) -> dict[str, Any]:
    """The current load of a node."""
    busy, memory = 0.0, 0
    for guest in world.guests_on(node.name):
        moving = load(world, guest, now)
        busy += moving["cpu"] * world.guest_cpus(guest)
        memory += moving["mem"]
    return node_numbers(node, now, busy_cpus=busy, memory=memory)


def node_numbers(node: Node, now: float, *, busy_cpus: float, memory: int) -> dict[str, Any]:
    """The node's load: that of its guests plus a little of its own."""
    own = 0.01 + 0.02 * status_daemon.wave(node.number, now, 1800.0)
    return {
        "cpu": min(0.97, own + 0.5 * busy_cpus / node.cpus),
        "maxcpu": node.cpus,
        "mem": min(memory + _HOST_MEMORY, int(node.memory * 0.96)),
        "maxmem": node.memory,
        "disk": node.disk_used,
        "maxdisk": node.disk,
        "uptime": int(now - node.booted_at),
    }


def node_status(world: World, node: Node) -> dict[str, Any]:
    """`/nodes/{node}/status`."""
    now = world.clock.now()
    moving = node_load(world, node, now)
    busy = moving["cpu"] * node.cpus
    free = node.memory - moving["mem"]
    swap_used = int(node.swap * 0.02)
    built = "#1 SMP PREEMPT_DYNAMIC PMX 6.17.2-1 (2025-10-21T11:55Z)"
    return {
        "uptime": moving["uptime"],
        "idle": 0,
        "cpu": moving["cpu"],
        "wait": round(0.004 * status_daemon.wave(node.number + 5, now, 600.0), 6),
        "loadavg": [f"{busy * factor:.2f}" for factor in (1.0, 0.95, 0.9)],
        "kversion": f"Linux {node.kernel} {built}",
        "current-kernel": {"sysname": "Linux", "release": node.kernel, "version": built, "machine": "x86_64"},
        "boot-info": {"mode": "efi", "secureboot": 0},
        "cpuinfo": {
            "model": node.cpu_model,
            "vendor": node.cpu_vendor,
            "family": "25",
            "cpus": node.cpus,
            "cores": node.cpus // node.sockets // 2,
            "sockets": node.sockets,
            "mhz": node.cpu_mhz,
            "flags": "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat lm aes avx avx2 svm",
            "hvm": "1",
            "user_hz": 100,
        },
        "memory": {"total": node.memory, "used": moving["mem"], "free": free // 2, "available": free},
        "swap": {"total": node.swap, "used": swap_used, "free": node.swap - swap_used},
        "ksm": {"shared": 0},
        "rootfs": {
            "total": node.disk,
            "used": node.disk_used,
            "free": node.disk - node.disk_used,
            "avail": node.disk - node.disk_used - node.disk // 20,
        },
        "pveversion": f"pve-manager/{world.version}/{repoid(world.version)}",
    }


def repoid(version: str) -> str:
    """The short commit hash next to PVE's version."""
    return hashlib.sha256(version.encode()).hexdigest()[:16]
