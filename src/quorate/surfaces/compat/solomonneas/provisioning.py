"""New guests, clones, and deleting."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from quorate.operations.registry import Risk
from quorate.surfaces.compat.declaring import Tool, may, need, one_of
from quorate.surfaces.compat.gates import CONFIRM as CONFIRMED
from quorate.surfaces.compat.gates import DESTRUCTIVE as ENABLED
from quorate.surfaces.compat.running import Run
from quorate.surfaces.compat.solomonneas.shapes import CONFIRM, DESTRUCTIVE, NODE, PATIENCE, VMID, acting, told

NEW_VMID = need("vmid", "integer", "Id of the new guest")
START = may("start", "boolean", about="Start it when it is made")
NET = may("net", "string", about="Network card, such as bridge=vmbr0")
TAGS = may("tags", "string", about="With ; between them")
SIZE_IN_GIB = "In GiB, or with a unit"

CONTAINER = (
    NEW_VMID,
    need("hostname", "string"),
    need("ostemplate", "string", "Volume of the template"),
    NODE,
    may("storage", "string", about="For the root disk"),
    may("memory", "integer", about="MiB"),
    may("cores", "integer"),
    may("rootfs_size", "string", about=SIZE_IN_GIB),
    NET,
    START,
    may("pool", "string"),
    may("onboot", "boolean"),
    may("unprivileged", "boolean"),
    may("protection", "boolean"),
    may("features", "string", about="Such as nesting=1"),
    may("description", "string"),
    TAGS,
    may("password", "string", about="Of root"),
    may("ssh_public_keys", "string", about="One a line"),
    CONFIRM,
)
VM = (
    NEW_VMID,
    need("name", "string"),
    NODE,
    may("memory", "integer", about="MiB"),
    may("cores", "integer"),
    may("iso", "string", about="Volume of the installation image"),
    may("disk_size", "string", about=SIZE_IN_GIB),
    may("storage", "string", about="For the disks"),
    NET,
    START,
    may("pool", "string"),
    may("onboot", "boolean"),
    may("protection", "boolean"),
    may("agent", "boolean", about="The guest agent is or will be installed"),
    may("scsihw", "string"),
    may("boot", "string", about="Such as order=scsi0"),
    one_of("bios", "seabios", "ovmf"),
    may("machine", "string"),
    may("cpu", "string"),
    may("sockets", "integer"),
    may("description", "string"),
    TAGS,
    may("ciuser", "string", about="Cloud-init: user"),
    may("cipassword", "string", about="Cloud-init: its password"),
    may("sshkeys", "string", about="Cloud-init: public keys, one a line"),
    may("ipconfig0", "string", about="Cloud-init: such as ip=dhcp"),
    may("nameserver", "string"),
    may("searchdomain", "string"),
    CONFIRM,
)


async def create_container(run: Run) -> dict[str, Any]:
    same = ("vmid", "hostname", "node", "storage", "memory", "cores", "start", "pool", "onboot", "unprivileged",
            "features", "description", "password")  # fmt: skip
    keys = run["ssh_public_keys"]
    done = await run.change(
        "container_create",
        follow=PATIENCE,
        **{name: run[name] for name in same},
        template=run["ostemplate"],
        rootfs=_size(run["rootfs_size"]),
        networks=_one(run["net"]),
        tags=_tags(run["tags"]),
        ssh_keys=keys.splitlines() if keys else None,
        options=_set(run, "protection") or None,
    )
    return told(done, vmid=run["vmid"], node=done.facts.get("node"), hostname=run["hostname"])


async def create_vm(run: Run) -> dict[str, Any]:
    same = ("vmid", "name", "node", "memory", "cores", "iso", "storage", "start", "pool", "onboot", "agent", "bios",
            "machine", "cpu", "sockets", "description")  # fmt: skip
    done = await run.change(
        "vm_create",
        follow=PATIENCE,
        **{name: run[name] for name in same},
        disks=[_size(run["disk_size"]) or "32G"],
        networks=_one(run["net"]),
        tags=_tags(run["tags"]),
        options=_set(run, "protection", "scsihw", "boot") or None,
        cloud_init=_cloud_init(run) or None,
    )
    return told(done, vmid=run["vmid"], node=done.facts.get("node"), name=run["name"])


def _cloud_init(run: Run) -> dict[str, Any]:
    keys = run["sshkeys"]
    given = {
        "user": run["ciuser"],
        "password": run["cipassword"],
        # PVE wants them percent-encoded, and so have callers of the API learned to send them
        "ssh_keys": (unquote(keys) if "%20" in keys else keys).splitlines() if keys else None,
        "ipconfig0": run["ipconfig0"],
        "dns": run["nameserver"],
        "search_domain": run["searchdomain"],
    }
    return {name: value for name, value in given.items() if value}


def _set(run: Run, *names: str) -> dict[str, Any]:
    return {name: run[name] for name in names if run[name] is not None}


def _one(given: str | None) -> list[str] | None:
    return [given] if given else None


def _size(given: str | None) -> str | None:
    return f"{given}G" if given and given.strip().isdecimal() else given


def _tags(given: str | None) -> list[str] | None:
    return [tag for tag in given.replace(",", ";").split(";") if tag] if given else None


async def clone(run: Run) -> dict[str, Any]:
    same = ("name", "storage", "pool", "description")
    source = await run.guest(run["source_vmid"])
    done = await run.change(
        "guest_clone",
        guest=source.vmid,
        vmid=run["new_vmid"],
        full=run["full"] is not False,
        node=run["target_node"],
        snapshot=run["snapname"],
        **{name: run[name] for name in same},
    )
    about = {"source_vmid": source.vmid, "new_vmid": run["new_vmid"], "node": source.node, "type": source.type}
    return told(done, **about, name=run["name"])


def _with_leftovers(run: Run) -> bool:
    """Unless told not to, a guest goes with all that refers to it or carries its id."""
    return run["purge"] is not False


TOOLS = (
    Tool(
        "proxmox_create_container",
        "Make a container from a template.",
        CONTAINER,
        Risk.CHANGE,
        "container_create",
        create_container,
        CONFIRMED,
    ),
    Tool("proxmox_create_vm", "Make a VM.", VM, Risk.CHANGE, "vm_create", create_vm, CONFIRMED),
    Tool(
        "proxmox_clone_resource",
        "Clone a VM or container under a new id.",
        (
            need("source_vmid", "integer"),
            need("new_vmid", "integer"),
            need("name", "string", "Name of the clone"),
            may("full", "boolean", about="false: a linked clone of a template"),
            may("storage", "string"),
            may("target_node", "string"),
            may("pool", "string"),
            may("snapname", "string", about="Clone this snapshot"),
            may("description", "string"),
            CONFIRM,
        ),
        Risk.CHANGE,
        "guest_clone",
        clone,
        CONFIRMED,
    ),
    Tool(
        "proxmox_destroy_resource",
        "Delete a guest with its disks.",
        (
            VMID,
            may("purge", "boolean", about="Also from jobs, HA and replication (default true)"),
            may("force", "boolean", about="Cut its power first if it runs"),
            CONFIRM,
            DESTRUCTIVE,
        ),
        Risk.DESTROY,
        "guest_delete",
        acting(
            "guest_delete",
            {"purge": _with_leftovers, "destroy_unreferenced_disks": _with_leftovers, "stop": "force"},
            follow=PATIENCE,
        ),
        ENABLED,
    ),
)
