"""Guests: making, cloning, power, moving, deleting."""

from __future__ import annotations

from typing import Any

from quorate.operations.registry import Risk
from quorate.surfaces.compat.bsahane.shapes import (
    CONTAINER,
    GUEST,
    NODE,
    STORAGE,
    SURE,
    VM,
    act,
    acting,
    following,
    making,
)
from quorate.surfaces.compat.declaring import may, need
from quorate.surfaces.compat.running import Run

NEW_VMID = may("vmid", "integer", 0, "0: the next free one")
BRIDGE = may("bridge", "string")
PURGE = may("purge", "boolean", True, "Also from jobs, HA and replication")


def _vmid(run: Run) -> int | None:
    return run["vmid"] or None


def _gib(name: str) -> Any:
    return lambda run: f"{run[name]}G"


def _card(run: Run) -> list[dict[str, Any]] | None:
    """One network card; the usual one where nothing is said."""
    given = {"bridge": run["bridge"], "ip": run.arguments.get("net_ip")}
    parts = {key: value for key, value in given.items() if value}
    return [parts] if parts else None


TOOLS = (
    act(
        "proxmox-clone-vm",
        "Clone a VM or template.",
        "guest_clone",
        making(
            "guest_clone",
            {"guest": "source_vmid", "vmid": "new_vmid", "node": "target_node", "name": "name", "storage": "storage",
             "full": "full"},
        ),
        need("source_vmid", "integer"),
        need("new_vmid", "integer"),
        may("source_node", "string", about="Accepted; the guest tells its node"),
        may("target_node", "string"),
        may("name", "string"),
        STORAGE,
        may("full", "boolean", True, "false: a linked clone of a template"),
        *SURE,
        *following(False, 900),
    ),
    act(
        "proxmox-create-vm",
        "Make a VM, to be installed from an ISO image.",
        "vm_create",
        making(
            "vm_create",
            {"node": "node", "vmid": _vmid, "name": "name", "cores": "cores", "memory": "memory_mb",
             "disks": lambda run: [f"{run['disk_gb']}G"], "storage": "storage", "networks": _card, "iso": "iso"},
        ),
        NODE,
        NEW_VMID,
        may("name", "string", ""),
        may("cores", "integer", 2),
        may("memory_mb", "integer", 2048),
        may("disk_gb", "integer", 20),
        STORAGE,
        BRIDGE,
        may("iso", "string", about="Installation image"),
        *SURE,
        *following(False, 900),
        needs=("name",),
    ),
    act(
        "proxmox-delete-vm",
        "Delete a VM with its disks.",
        "guest_delete",
        acting("guest_delete", VM, {"purge": "purge"}),
        *GUEST,
        PURGE,
        *SURE,
        *following(False, 600),
        risk=Risk.DESTROY,
    ),
    act(
        "proxmox-start-vm",
        "Start a VM.",
        "guest_power action=start",
        acting("guest_power", VM, action="start"),
        *GUEST,
        *following(False, 300),
    ),
    act(
        "proxmox-stop-vm",
        "Cut the power of a VM.",
        "guest_stop",
        acting("guest_stop", VM),
        *GUEST,
        may("hard", "boolean", False, "Accepted; a stop is hard in any case"),
        *following(False, None),
        risk=Risk.DESTROY,
    ),
    act(
        "proxmox-reboot-vm",
        "Reboot a VM.",
        "guest_power action=reboot",
        acting("guest_power", VM, action="reboot"),
        *GUEST,
    ),
    act(
        "proxmox-shutdown-vm",
        "Shut a VM down gracefully.",
        "guest_power action=shutdown",
        acting("guest_power", VM, {"timeout": "timeout"}, action="shutdown"),
        *GUEST,
        *following(False, None),
    ),
    act(
        "proxmox-migrate-vm",
        "Move a VM to another node.",
        "guest_migrate",
        acting(
            "guest_migrate",
            VM,
            {"node": "target_node", "mode": lambda run: None if run["live"] else "offline"},
        ),
        *GUEST,
        may("target_node", "string", ""),
        may("live", "boolean", True, "While it runs, if it does"),
        *following(True, 1800),
        needs=("target_node",),
    ),
    act(
        "proxmox-create-lxc",
        "Make a container from a template.",
        "container_create",
        making(
            "container_create",
            {"node": "node", "vmid": _vmid, "hostname": "hostname", "template": "ostemplate", "cores": "cores",
             "memory": "memory_mb", "rootfs": _gib("rootfs_gb"), "storage": "storage", "networks": _card},
        ),
        NODE,
        NEW_VMID,
        may("hostname", "string", ""),
        may("ostemplate", "string", ""),
        may("cores", "integer", 2),
        may("memory_mb", "integer", 1024),
        may("rootfs_gb", "integer", 8),
        STORAGE,
        BRIDGE,
        may("net_ip", "string", about="Address with prefix, or dhcp"),
        *SURE,
        *following(True, 900),
        needs=("hostname", "ostemplate"),
    ),
    act(
        "proxmox-delete-lxc",
        "Delete a container with its disks.",
        "guest_delete",
        acting("guest_delete", CONTAINER, {"purge": "purge"}),
        *GUEST,
        PURGE,
        *SURE,
        *following(False, 600),
        risk=Risk.DESTROY,
    ),
    act(
        "proxmox-start-lxc",
        "Start a container.",
        "guest_power action=start",
        acting("guest_power", CONTAINER, action="start"),
        *GUEST,
        *following(False, 300),
    ),
    act(
        "proxmox-stop-lxc",
        "Cut the power of a container.",
        "guest_stop",
        acting("guest_stop", CONTAINER),
        *GUEST,
        *following(False, None),
        risk=Risk.DESTROY,
    ),
)  # fmt: skip
