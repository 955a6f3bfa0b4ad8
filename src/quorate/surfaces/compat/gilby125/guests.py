"""Making, cloning, sizing and deleting guests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.operations.registry import Risk
from quorate.pve.errors import BadArgument
from quorate.surfaces.compat.declaring import Tool, may, need
from quorate.surfaces.compat.gates import ELEVATED
from quorate.surfaces.compat.gilby125.shapes import BOTH, LXC, NODE, VM, VMID, Kind, about_guest, told
from quorate.surfaces.compat.placed import changing_guest, number, placed
from quorate.surfaces.compat.recipes import changing
from quorate.surfaces.compat.running import Done, Run

NEXT = {kind: f"**Next**: `proxmox_start_{kind.suffix}` starts it." for kind in BOTH}


def gigabytes(name: str) -> Callable[[Run], str]:
    """A size whose bare number means GB."""
    return lambda run: f"{run[name]}G" if str(run[name]).strip().isdigit() else str(run[name])


def called(name: str, prefix: str) -> Callable[[Run], str]:
    """The given name, else one made of the id."""
    return lambda run: run[name] or f"{prefix}{run['vmid']}"


CREATE_LXC = Tool(
    "proxmox_create_lxc",
    "Make a container.",
    (
        NODE,
        need("vmid", "string", "An id that is free"),
        need("ostemplate", "string", "Such as local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"),
        may("hostname", "string", about="Left out: ct with its id"),
        may("password", "string", about="Of root; left out: nobody can log in by password"),
        may("memory", "number", 512, "MB"),
        may("storage", "string", "local-lvm", "For its root file system"),
        may("rootfs", "string", "8", "Size of its root file system in GB"),
    ),
    Risk.CHANGE,
    "container_create",
    changing(
        "container_create",
        {
            **{name: name for name in ("node", "password", "storage")},
            **{name: number(name) for name in ("vmid", "memory")},
            "template": "ostemplate",
            "hostname": called("hostname", "ct"),
            "rootfs": gigabytes("rootfs"),
        },
        shape=told(
            "✅",
            "Creation of container",
            {
                "VM ID": "vmid",
                "Hostname": lambda run, _: called("hostname", "ct")(run),
                "Node": "node",
                "Template": "ostemplate",
                "Memory": lambda run, _: f"{run['memory']:g} MB",
                "Storage": "storage",
                "Root Disk": lambda run, _: gigabytes("rootfs")(run),
            },
            NEXT[LXC],
        ),
    ),
    ELEVATED,
)

CREATE_VM = Tool(
    "proxmox_create_vm",
    "Make a VM.",
    (
        NODE,
        need("vmid", "string", "An id that is free"),
        may("name", "string", about="Left out: vm with its id"),
        may("memory", "number", 512, "MB"),
        may("cores", "number", 1),
        may("sockets", "number", 1),
        may("disk_size", "string", "8G"),
        may("storage", "string", "local-lvm", "For its disk"),
        may("iso", "string", about="Such as local:iso/debian.iso"),
        may("ostype", "string", "l26", "l26, win11 …"),
        may("net0", "string", "virtio,bridge=vmbr0", "Its network card"),
    ),
    Risk.CHANGE,
    "vm_create",
    changing(
        "vm_create",
        {
            **{name: name for name in ("node", "storage", "iso", "ostype")},
            **{name: number(name) for name in ("vmid", "memory", "cores", "sockets")},
            "name": called("name", "vm"),
            "disks": lambda run: [gigabytes("disk_size")(run)],
            "networks": lambda run: [run["net0"]],
        },
        shape=told(
            "✅",
            "Creation of VM",
            {
                "VM ID": "vmid",
                "Name": lambda run, _: called("name", "vm")(run),
                "Node": "node",
                "Memory": lambda run, _: f"{run['memory']:g} MB",
                "CPU": lambda run, _: f"{run['sockets']:g} socket(s), {run['cores']:g} core(s)",
                "Disk": lambda run, done: next(iter(done.facts.get("disks", {}).values()), run["storage"]),
                "Network": "net0",
                "ISO": "iso",
            },
            NEXT[VM],
        ),
    ),
    ELEVATED,
)


def _clone(kind: Kind, name: str) -> Tool:
    return Tool(
        f"proxmox_clone_{kind.suffix}",
        f"Clone a {kind.word}: linked if it is a template, a full copy otherwise.",
        (NODE, VMID, need("newid", "string", "Id of the clone, which must be free"), may(name, "string")),
        Risk.CHANGE,
        "guest_clone",
        changing_guest(
            "guest_clone",
            {"vmid": number("newid"), "name": name},
            type=kind.type,
            shape=told(
                "📋",
                f"Clone of {kind.word}",
                {
                    "Source ID": "vmid",
                    "New ID": "newid",
                    "Name": lambda _, done: done.facts.get("name"),
                    "Type": lambda *_: kind.label,
                    "Node": "node",
                    "Clone Type": lambda _, done: done.facts.get("mode"),
                },
                NEXT[kind],
            ),
        ),
        ELEVATED,
    )


def _resize(kind: Kind) -> Tool:
    shape = told("⚙️", f"Resize of {kind.word}", about_guest(kind, New_Cores=_plain("cores"), New_Memory=_megabytes))

    async def recipe(run: Run) -> Any:
        if run["cores"] is None and run["memory"] is None:
            raise BadArgument(f"{run.tool} needs cores or memory", next_step="Say at least one of them")
        guest = await placed(run, kind.type)
        sizes = {name: number(name)(run) for name in ("cores", "memory")}
        return await shape(run, await run.change("guest_configure", guest=guest.vmid, **sizes))

    return Tool(
        f"proxmox_resize_{kind.suffix}",
        f"Give a {kind.word} more or fewer cores, more or less memory.",
        (NODE, VMID, may("memory", "number", about="MB"), may("cores", "number")),
        Risk.CHANGE,
        "guest_configure",
        recipe,
        ELEVATED,
    )


def _plain(name: str) -> Callable[[Run, Done], Any]:
    return lambda run, _: number(name)(run)


def _megabytes(run: Run, _: Done) -> str | None:
    return None if run["memory"] is None else f"{run['memory']:g} MB"


def _delete(kind: Kind) -> Tool:
    return Tool(
        f"proxmox_delete_{kind.suffix}",
        f"Delete a stopped {kind.word} with its disks, for good.",
        (NODE, VMID),
        Risk.DESTROY,
        "guest_delete",
        changing_guest("guest_delete", type=kind.type, shape=told("🗑️", f"Deletion of {kind.word}", about_guest(kind))),
        ELEVATED,
    )


TOOLS = (
    CREATE_LXC,
    CREATE_VM,
    _clone(LXC, "hostname"),
    _clone(VM, "name"),
    *map(_resize, BOTH),
    *map(_delete, BOTH),
)
