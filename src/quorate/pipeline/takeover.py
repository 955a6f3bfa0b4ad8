"""Changes that take a VM over at its next start: another medium to boot from, or other logins by cloud-init.

They are changes of a configuration, but with them the caller decides what runs in the guest, as with a command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from quorate.operations.plan import Call
from quorate.problems import NotFound
from quorate.pve import values
from quorate.pve.cluster import Cluster

_CONFIG: Final = re.compile(r"/nodes/[^/]+/qemu/\d+/config")
_DECIDES: Final = frozenset({"boot", "bootdisk", "cicustom", "cipassword", "ciuser", "sshkeys"})
_DISC: Final = re.compile(r"[^/:,\s]+:iso/")


async def takes_over(cluster: Cluster, call: Call) -> bool:
    if call.method == "GET" or not _CONFIG.fullmatch(call.path):
        return False
    if _DECIDES & call.params.keys():
        return True
    drives = [name for name, value in call.params.items() if _is_disc(name, value)]
    if not drives:
        return False
    try:
        config = await cluster.get(call.path)
    except NotFound:  # an earlier call of the plan creates it
        return False
    return any(_boots_first(name, config) for name in drives)


def _is_disc(name: str, value: object) -> bool:
    return values.bus_of(name) in values.BOOTABLE and _DISC.search(str(value)) is not None


def _boots_first(drive: str, config: Mapping[str, Any]) -> bool:
    """Whether the VM tries this drive before its disk; without an order in the current form, it may."""
    order, disk = values.boot_devices(config), values.boot_disk(config, is_vm=True)
    return not order or disk is None or drive in order[: order.index(disk)]
