"""What a guest needs on its node before it can start: bridges for its network cards, volumes for its drives."""

from __future__ import annotations

from collections.abc import Callable

from quorate.sim import drives, volumes
from quorate.sim.guests import Guest, Value
from quorate.sim.sdn import Sdn
from quorate.sim.tasks import TaskError
from quorate.sim.world import World

Log = Callable[[str], None]

_SCRIPT = "/usr/libexec/qemu-server/pve-bridge"


def require_parts(world: World, guest: Guest, log: Log) -> None:
    """End the start as PVE does if something is not there."""
    config = guest.effective_config()
    for key, value in config.items():
        if drives.is_drive(guest.kind, key):
            volume = drives.parse(world, guest.kind, key, str(value))[drives.volume_key(guest.kind)]
            if ":" in volume:
                volumes.existing(world, guest.node, volume)
    for key, value in config.items():
        bridge = missing_bridge(world, guest, key, value) if drives.is_net(key) else None
        if bridge is not None:
            _fail_without_bridge(guest, key, bridge, log)


def missing_bridge(world: World, guest: Guest, key: str, value: Value) -> str | None:
    """The bridge of a network card, if the guest's node does not have it."""
    bridge = drives.parse(world, guest.kind, key, str(value)).get("bridge")
    known = bridge is None or bridge in world.nodes[guest.node].bridges or bridge in world.part(Sdn).running("vnets")
    return None if known else bridge


def _fail_without_bridge(guest: Guest, key: str, bridge: str, log: Log) -> None:
    log(f"bridge '{bridge}' does not exist")
    if guest.kind == "lxc":
        log("run_buffer: 571 Script exited with status 2")
        log(f'lxc_init: 845 Failed to run lxc.hook.pre-start for container "{guest.vmid}"')
        log(f'__lxc_start: 2034 Failed to initialize container "{guest.vmid}"')
        raise TaskError(f"startup for container '{guest.vmid}' failed")
    device = f"type=tap,id={key},ifname=tap{guest.vmid}i{key[3:]},script={_SCRIPT}"
    log(f"kvm: -netdev {device}: network script {_SCRIPT} failed with status 512")
    raise TaskError("start failed: QEMU exited with code 1")
