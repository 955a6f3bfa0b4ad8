"""Requirements for a start: bridges, volumes, and options that QEMU accepts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pve_simulator.cluster.datacenter import Datacenter
from pve_simulator.cluster.sdn import Sdn
from pve_simulator.guests import drives
from pve_simulator.guests.guest import Guest, Value
from pve_simulator.guests.status import QEMU_VERSION
from pve_simulator.http.parameters import split_pairs
from pve_simulator.nodes.tasks import TaskContext, TaskError
from pve_simulator.routes.cluster import mapping as mapping_routes
from pve_simulator.storage import volumes
from pve_simulator.world import World

Log = Callable[[str], None]

_NUMA_NODES = 8
_OLDEST_MACHINE = (2, 6)  # QEMU drops its oldest machine types from time to time
_PVE_REVISIONS = {(4, 1): 2, (9, 2): 1, (10, 0): 1}  # PVE's own revisions of a QEMU machine type
_HOT_MEMORY = 1024  # minimum MiB for memory hotplug
_NESTING_SYSTEMD = 242
_SCRIPT = "/usr/libexec/qemu-server/pve-bridge"


def require_parts(world: World, guest: Guest, log: Log) -> None:
    """End the start as PVE does if something is missing or incompatible."""
    config = guest.effective_config()
    if guest.kind == "lxc" and config.get("unprivileged"):
        for key, value in config.items():
            if drives.is_drive("lxc", key) and drives.parse(world, "lxc", key, str(value)).get("quota") == "1":
                raise TaskError("Quotas are not supported by unprivileged containers.")
    if guest.kind == "qemu":
        _check_machine(guest, config)
        _check_processors(world, guest, config)
        _check_memory(config)
        _check_numa(world, config)
        _check_display(config)
        _check_mapped_devices(world, guest, config)
    for key, value in config.items():
        bridge = missing_bridge(world, guest, key, value) if drives.is_net(key) else None
        if bridge is not None:
            _fail_without_bridge(world, guest, key, bridge, log)
    for key, value in config.items():
        if drives.is_drive(guest.kind, key):
            volume = drives.parse(world, guest.kind, key, str(value))[drives.volume_key(guest.kind)]
            if ":" in volume:
                volumes.existing(world, guest.node, volume)
    if guest.kind == "qemu":
        _let_qemu_check(config, log)


def warn_about_nesting(context: TaskContext, guest: Guest) -> None:
    """Warn about a container whose systemd needs namespaces of its own, which only nesting allows."""
    nesting = split_pairs(str(guest.effective_config().get("features", ""))).get("nesting", "0")
    if guest.system.systemd >= _NESTING_SYSTEMD and nesting == "0":
        context.warn(f"Systemd {guest.system.systemd} detected. You may need to enable nesting.")


def write_cloudinit(world: World, guest: Guest, log: Log) -> None:
    """Write the cloud-init drive, if there is one; custom snippets must exist."""
    config = guest.effective_config()
    if guest.kind == "lxc" or drives.cloudinit_drive(world, config) is None:
        return
    custom = str(config.get("cicustom", "")).strip()
    files = drives.parse(world, "qemu", "cicustom", custom) if custom else {}
    for name in ("network", "user", "meta", "vendor"):
        if name in files:
            if volumes.content_of(world, files[name])[0] != "snippets":
                raise TaskError(f"{files[name]} is not in the snippets directory")
            volumes.existing(world, guest.node, files[name])
    log("generating cloud-init ISO")


def _check_machine(guest: Guest, config: dict[str, Value]) -> None:
    """Refuse a machine type of a future version."""
    machine = _machine(config)
    version = re.search(r"-(\d+)\.(\d+)", machine)
    have = tuple(int(part) for part in QEMU_VERSION.split(".")[:2])
    if version is None:
        return
    requested = (int(version[1]), int(version[2]))
    full = machine if "+pve" in machine else f"{machine}+pve0"
    highest = _PVE_REVISIONS.get(requested, 0)
    installed = f"QEMU version '{QEMU_VERSION}'"
    if requested <= have:
        if int(full.partition("+pve")[2].partition(".")[0]) <= highest:
            return
        installed = f"qemu-server (max feature level for {requested[0]}.{requested[1]} is pve{highest})"
    too_old = f"Installed {installed} is too old to run machine type '{full}'"
    raise TaskError(f"{too_old}, please upgrade node '{guest.node}'")


def _machine(config: dict[str, Value]) -> str:
    return str(config.get("machine", "pc")).split(",")[0].removeprefix("type=")


def _check_processors(world: World, guest: Guest, config: dict[str, Value]) -> None:
    have, requested = world.nodes[guest.node].cpus, int(config.get("cores", 1)) * int(config.get("sockets", 1))
    if requested > have:
        raise TaskError(f"MAX {have} vcpus allowed per vm on this node")


def _memory(config: dict[str, Value]) -> int:
    return int(str(config.get("memory", 512)).split(",")[0].removeprefix("current="))


def _check_memory(config: dict[str, Value]) -> None:
    """Memory hotplug needs NUMA and at least one GiB."""
    if "memory" not in str(config.get("hotplug", "")).split(","):
        return
    if not config.get("numa"):
        raise TaskError("NUMA needs to be enabled for memory hotplug")
    if any(f"numa{number}" in config for number in range(_NUMA_NODES)):
        raise TaskError("cannot enable memory hotplugging with custom NUMA topology")
    if _memory(config) < _HOT_MEMORY:
        raise TaskError(f"minimum memory must be {_HOT_MEMORY}MB")


def _check_display(config: dict[str, Value]) -> None:
    display = str(config.get("vga", "")).split(",")[0].removeprefix("type=")
    if display == "virtio-gl":
        needed = "Please install 'libgl1' and 'libegl1'"
        raise TaskError(f"missing libraries for '{display}' detected! {needed}")


def _check_numa(world: World, config: dict[str, Value]) -> None:
    """Explicit NUMA nodes must add up to the whole VM."""
    if not config.get("numa"):
        return
    total = 0
    for number in range(_NUMA_NODES):
        if f"numa{number}" not in config:
            continue
        node = drives.parse(world, "qemu", f"numa{number}", str(config[f"numa{number}"]))
        if not float(node.get("memory", 0)):
            raise TaskError(f"missing NUMA node{number} memory value")
        total += int(float(node["memory"]))
        if "cpus" not in node:
            raise TaskError(f"missing NUMA node{number} cpus")
        for host in re.findall(r"\d+", node.get("hostnodes", "")):
            if int(host) > 0:
                raise TaskError(f"host NUMA node{host} doesn't exist")
        if "hostnodes" in node and "policy" not in node:
            raise TaskError(f"you need to define a policy for hostnode {node['hostnodes']}")
    if total and total != _memory(config):
        raise TaskError("total memory for NUMA nodes must be equal to vm static memory")


def _check_mapped_devices(world: World, guest: Guest, config: dict[str, Value]) -> None:
    """Mapped devices must exist on this node."""
    mappings = world.part(Datacenter).mappings
    for key in sorted(config):
        kind = "pci" if key.startswith("hostpci") else "usb" if re.fullmatch(r"usb\d+", key) else None
        mapping = None if kind is None else drives.parse(world, "qemu", key, str(config[key])).get("mapping")
        if mapping is None or kind is None:
            continue
        entries = mapping_routes.entries_of(mappings[kind].sections.get(mapping, {}).get("map", []), guest.node)
        if not entries:
            raise TaskError(f"{kind.upper()} device mapping not found for '{mapping}'")
        for entry in entries:
            problem = mapping_routes.problem_of(world, kind, mapping, entry)
            if problem is not None:
                what = "PCI device mapping" if kind == "pci" else "USB Mapping"
                raise TaskError(f"{what} invalid (hardware probably changed): {problem}\n")
    for key in sorted(config):
        if key.startswith("virtiofs"):
            directory = drives.parse(world, "qemu", key, str(config[key]))["dirid"]
            _check_directory(world, guest, mappings["dir"].sections.get(directory))


def _check_directory(world: World, guest: Guest, mapping: Mapping[str, Any] | None) -> None:
    if mapping is None:
        where = "/usr/share/perl5/PVE/Mapping/Dir.pm line 206."
        raise TaskError(f"Can't use an undefined value as an ARRAY reference at {where}")
    for entry in mapping_routes.entries_of(mapping["map"], guest.node):
        problem = mapping_routes.problem_of(world, "dir", "", entry)
        if problem is not None:
            raise TaskError(f"directory mapping invalid: {problem}")


def _let_qemu_check(config: dict[str, Value], log: Log) -> None:
    """Errors that PVE does not check and QEMU reports."""
    cores, sockets = int(config.get("cores", 1)), int(config.get("sockets", 1))
    vcpus, machine = int(config.get("vcpus", 0)), _machine(config)
    version = re.search(r"-(\d+)\.(\d+)", machine)
    if vcpus > cores * sockets:
        log("kvm: Invalid SMP CPUs: maxcpus must be equal to or greater than smp")
    elif (
        machine.startswith("virt")
        or machine.endswith(".pxe")
        or (version is not None and (int(version[1]), int(version[2])) < _OLDEST_MACHINE)
    ):
        log(f"kvm: unsupported machine type '{machine}'")
        log("Use -machine help to list supported machines")
    elif str(config.get("cpu", "")).split(",")[0].removeprefix("cputype=") == "host" and not config.get("kvm", 1):
        log("kvm: CPU model 'host' requires KVM or HVF")
    else:
        return
    raise TaskError("start failed: QEMU exited with code 1")


def missing_bridge(world: World, guest: Guest, key: str, value: Value) -> str | None:
    """The bridge of a network device, if the node lacks it."""
    bridge = drives.parse(world, guest.kind, key, str(value)).get("bridge")
    known = bridge is None or bridge in world.nodes[guest.node].bridges or bridge in world.part(Sdn).running("vnets")
    return None if known else bridge


def _fail_without_bridge(world: World, guest: Guest, key: str, bridge: str, log: Log) -> None:
    if guest.kind == "qemu" and world.version_at_least(9, 0):
        model = drives.parse(world, "qemu", key, str(guest.effective_config()[key]))["model"]
        if model == "virtio":  # PVE reads the bridge's MTU
            raise TaskError(f"bridge '{bridge}' does not exist")
    log(f"bridge '{bridge}' does not exist")
    if guest.kind == "lxc":
        log("run_buffer: 571 Script exited with status 2")
        log(f'lxc_init: 845 Failed to run lxc.hook.pre-start for container "{guest.vmid}"')
        log(f'__lxc_start: 2034 Failed to initialize container "{guest.vmid}"')
        raise TaskError(f"startup for container '{guest.vmid}' failed")
    device = f"type=tap,id={key},ifname=tap{guest.vmid}i{key[3:]},script={_SCRIPT}"
    log(f"kvm: -netdev {device}: network script {_SCRIPT} failed with status 512")
    raise TaskError("start failed: QEMU exited with code 1")
