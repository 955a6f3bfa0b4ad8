"""washyu's rows. Those about Proxmox VE are here."""

from tests.coverage import lists, looks, washyu_containers, washyu_hosts, washyu_services
from tests.coverage.brynnjocelyn import ISO, TEMPLATE
from tests.coverage.rows import Done, Turned, native, row

LISTS = {"vm": ("guest_list", {"type": "vm"}), "lxc": ("guest_list", {"type": "ct"}), "node": ("node_list", {}),
         "storage": ("storage_list", {}), "pool": ("access_list", {"kind": "pools"})}  # fmt: skip


async def list_every_kind(done: Done) -> None:
    """The kinds of one row are lists of their own here."""
    for tool, arguments in LISTS.values():
        await done.call(tool, **arguments)


def every_kind_is_listed(done: Done) -> None:
    world = done.world
    expected = {
        "vm": {vmid for vmid, guest in world.guests.items() if guest.kind == "qemu"},
        "lxc": {vmid for vmid, guest in world.guests.items() if guest.kind == "lxc"},
        "node": set(world.nodes),
        "storage": set(world.storages),
        "pool": set(world.access.pools),
    }
    for (kind, wanted), answer in zip(expected.items(), done.answers, strict=True):
        column = answer["columns"].index("vmid" if kind in ("vm", "lxc") else kind)
        assert {row[column] for row in answer["rows"]} == wanted, kind


async def every_action_in_turn(done: Done) -> None:
    """The hard stop is another risk and therefore another tool."""
    guest = done.guest()
    seen = []
    for action in ("start", "reboot", "reset", "suspend", "resume", "shutdown", done.given["action"]):
        await done.call("guest_power", guest=done.given["vmid"], action=action)
        seen.append((guest.running, guest.paused))
    running, paused, off = (True, False), (True, True), (False, False)
    assert seen == [running, running, running, paused, running, off, running]
    await done.call("guest_stop", guest=done.given["vmid"])
    assert not guest.running
    await done.call("guest_power", guest=done.given["vmid"], action=done.given["action"])


PROXMOX = [
    row(
        "list_proxmox_resources",
        {"resource_type": "vm"},
        list_every_kind,
        every_kind_is_listed,
        uses=("resource_type",),
    ),
    row("get_proxmox_node_status", {"node": "pve1"}, native("node_get", {"node": "node"}), lists.node_is_told),
    row(
        "get_proxmox_vm_status",
        {"node": "pve3", "vmid": 106, "vm_type": "qemu"},
        native("guest_get", {"guest": "vmid"}),
        looks.is_described,
    ),
    row(
        "manage_proxmox_vm",
        {"node": "pve1", "vmid": 108, "action": "start", "vm_type": "qemu"},
        every_action_in_turn,
        looks.is_running,
        uses=("vmid", "action"),
    ),
    row(
        "create_proxmox_lxc",
        {
            "node": "pve2", "vmid": 320, "hostname": "ct320", "ostemplate": TEMPLATE, "storage": "local-lvm",
            "memory": 512, "cores": 1, "rootfs_size": 9, "password": "long-enough", "start": True,
        },
        native(
            "container_create",
            {
                "node": "node", "vmid": "vmid", "hostname": "hostname", "template": "ostemplate",
                "storage": "storage", "memory": "memory", "cores": "cores", "password": "password", "start": "start",
                "rootfs": Turned("rootfs_size", "{}G".format),
            },
        ),
        looks.is_made("lxc", hostname="ct320", rootfs=looks.holds("local-lvm:", "size=9G")),
    ),
    row(
        "create_proxmox_vm",
        {
            "node": "pve1", "vmid": 321, "name": "vm321", "memory": 2048, "cores": 2, "disk_size": 20,
            "storage": "local-lvm", "iso": ISO, "start": True,
        },
        native(
            "vm_create",
            {
                "node": "node", "vmid": "vmid", "name": "name", "memory": "memory", "cores": "cores",
                "storage": "storage", "iso": "iso", "start": "start",
                "disks": Turned("disk_size", lambda size: [f"{size}G"]),
            },
        ),
        looks.is_made("qemu", name="vm321", scsi0=looks.holds("local-lvm:", "size=20G"), ide2=looks.holds(ISO)),
    ),
    row(
        "clone_proxmox_vm",
        {"node": "pve3", "vmid": 206, "new_vmid": 322, "name": "ct322", "full": True, "vm_type": "lxc"},
        native("guest_clone", {"guest": "vmid", "vmid": "new_vmid", "name": "name", "full": "full"}),
        looks.is_cloned("lxc", new="new_vmid", hostname="ct322"),
    ),
    row(
        "delete_proxmox_vm",
        {"node": "pve3", "vmid": 205, "vm_type": "lxc", "purge": True},
        native("guest_delete", {"guest": "vmid", "purge": "purge"}, stop=True),
        looks.is_gone,
    ),
]  # fmt: skip

ROWS = [*PROXMOX, *washyu_hosts.ROWS, *washyu_containers.ROWS, *washyu_services.ROWS]
