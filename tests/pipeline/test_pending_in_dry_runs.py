"""A dry run says what would wait for a restart, and afterwards exactly that waits."""

from typing import Any

import pytest

pytestmark = pytest.mark.anyio

VM, STOPPED_VM, CT = 102, 108, 201

CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "cores and memory of a VM": ("guest_configure", {"guest": VM, "cores": 2, "memory": 4096}),
    "a name and start at boot": ("guest_configure", {"guest": VM, "name": "other", "onboot": True}),
    "the type of CPU next to notes": ("guest_configure", {"guest": VM, "cpu": "host", "description": "x"}),
    "ballooning": ("guest_configure", {"guest": VM, "balloon": 512}),
    "the guest agent": ("guest_configure", {"guest": VM, "agent": False}),
    "weights of a VM": ("guest_configure", {"guest": VM, "options": {"cpuunits": 500, "cpulimit": 2}}),
    "a VLAN": ("nic_set", {"guest": VM, "nic": "net0", "vlan": 30}),
    "a new card": ("nic_set", {"guest": VM, "bridge": "vmbr0"}),
    "a disk on a bus that plugs": ("disk_add", {"guest": VM, "size": 1}),
    "a disk on a bus that does not plug": ("disk_add", {"guest": VM, "size": 1, "disk": "sata"}),
    "firmware": ("disk_add", {"guest": VM, "disk": "efidisk0"}),
    "a disc": ("guest_configure", {"guest": VM, "cdrom": "nas:iso/virtio-win-0.1.271.iso"}),
    "cores and memory of a container": ("guest_configure", {"guest": CT, "cores": 1, "memory": 768}),
    "features of a container": ("guest_configure", {"guest": CT, "options": {"features": "nesting=1"}}),
    "a mount point": ("disk_add", {"guest": CT, "size": 1, "path": "/data"}),
    "a removed option": ("guest_configure", {"guest": VM, "unset": ["ostype"]}),
    "a stopped VM": ("guest_configure", {"guest": STOPPED_VM, "cores": 2}),
}


async def waiting(quorate, guest):
    return {*(await quorate.facts("guest_get", guest=guest)).get("pending", {})}


@pytest.mark.parametrize("case", CHANGES)
async def test_a_dry_run_names_exactly_what_waits_for_a_restart(quorate, case):
    tool, arguments = CHANGES[case]
    waited = await waiting(quorate, arguments["guest"])
    plan = await quorate.facts(tool, **arguments, dry_run=True)
    predicted = {name for names in plan.get("pending_until_restart", {}).values() for name in names}
    await quorate.facts(tool, **arguments)
    # PVE itself adds a new drive to the boot order.
    assert predicted == await waiting(quorate, arguments["guest"]) - waited - {"boot"}


async def test_the_guest_is_named(quorate):
    plan = await quorate.facts("guest_configure", guest=104, cores=2, onboot=False, dry_run=True)
    assert plan["pending_until_restart"] == {"vm 104 k3s-server": ["cores"]}
