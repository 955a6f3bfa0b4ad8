"""Power, creation, clones, sizes, snapshots, backups and commands of guests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.problems import BadArgument
from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ChangeResult, ToolCall
from quorate.surfaces.compat.gilby125.markdown import (
    BOTH,
    LXC,
    VM,
    Fact,
    Kind,
    about_guest,
    bold,
    card,
    change_card,
    fence,
)
from quorate.surfaces.compat.recipes import Source, change, change_guest, guest_on_node, number
from quorate.tools.storages import StoredVolume

STREAMS = (("Output", "stdout"), ("Errors", "stderr"))
REMARKS = ("signal", "timed_out", "stdout_cut", "stderr_cut", "stdout_note", "stderr_note", "note")


# -- power -------------------------------------------------------------------------------------------------------------


def power(kind: Kind, verb: str, icon: str, tip: str = "", *, action: str | None = None) -> Recipe:
    shape = change_card(icon, f"{verb.capitalize()} of {kind.word}", about_guest(kind), tip)
    return change_guest("guest_power", type=kind.type, action=action or verb, shape=shape)


def _power_of(kind: Kind) -> dict[str, Recipe]:
    stop = change_card("⏹️", f"Stop of {kind.word}", about_guest(kind))
    return {
        f"proxmox_start_{kind.suffix}": power(
            kind, "start", "▶️", "**Tip**: `proxmox_get_vm_status` shows how it is doing."
        ),
        f"proxmox_reboot_{kind.suffix}": power(kind, "reboot", "🔄"),
        f"proxmox_shutdown_{kind.suffix}": power(kind, "shutdown", "⏸️"),
        f"proxmox_stop_{kind.suffix}": change_guest("guest_stop", type=kind.type, shape=stop),
    }


# -- new guests --------------------------------------------------------------------------------------------------------


def gigabytes(name: str) -> Callable[[ToolCall], str]:
    """A size whose bare number means GB."""
    return lambda call: f"{call[name]}G" if str(call[name]).strip().isdigit() else str(call[name])


def name_or_id(name: str, prefix: str) -> Callable[[ToolCall], str]:
    """The given name, else one derived from the id."""
    return lambda call: call[name] or f"{prefix}{call['vmid']}"


def _start_hint(kind: Kind) -> str:
    return f"**Next**: `proxmox_start_{kind.suffix}` starts it."


create_lxc = change(
    "container_create",
    {
        **{name: name for name in ("node", "password", "storage")},
        **{name: number(name) for name in ("vmid", "memory")},
        "template": "ostemplate",
        "name": name_or_id("hostname", "ct"),
        "rootfs": gigabytes("rootfs"),
    },
    shape=change_card(
        "✅",
        "Creation of container",
        {
            "VM ID": "vmid",
            "Hostname": lambda call, _: name_or_id("hostname", "ct")(call),
            "Node": "node",
            "Template": "ostemplate",
            "Memory": lambda call, _: f"{call['memory']:g} MB",
            "Storage": "storage",
            "Root Disk": lambda call, _: gigabytes("rootfs")(call),
        },
        _start_hint(LXC),
    ),
)

create_vm = change(
    "vm_create",
    {
        **{name: name for name in ("node", "storage", "iso", "ostype")},
        **{name: number(name) for name in ("vmid", "memory", "cores", "sockets")},
        "name": name_or_id("name", "vm"),
        "disks": lambda call: [gigabytes("disk_size")(call)],
        "networks": lambda call: [call["net0"]],
    },
    shape=change_card(
        "✅",
        "Creation of VM",
        {
            "VM ID": "vmid",
            "Name": lambda call, _: name_or_id("name", "vm")(call),
            "Node": "node",
            "Memory": lambda call, _: f"{call['memory']:g} MB",
            "CPU": lambda call, _: f"{call['sockets']:g} socket(s), {call['cores']:g} core(s)",
            "Disk": lambda call, done: next(iter(done.facts.get("disks", {}).values()), call["storage"]),
            "Network": "net0",
            "ISO": "iso",
        },
        _start_hint(VM),
    ),
)


def clone(kind: Kind) -> Recipe:
    """PVE copies anything but a template in full, so `full=false` cannot be enforced."""
    facts: dict[str, Fact] = {
        "Source ID": "vmid",
        "New ID": "newid",
        "Name": lambda _, done: done.facts.get("name"),
        "Type": lambda *_: kind.label,
        "Node": "node",
        "Clone Type": lambda _, done: done.facts.get("mode"),
    }
    arguments: dict[str, Source] = {"vmid": number("newid"), "name": "name", "full": lambda call: call["full"] or None}
    shape = change_card("📋", f"Clone of {kind.word}", facts, _start_hint(kind))
    return change_guest("guest_clone", arguments, type=kind.type, shape=shape)


def resize(kind: Kind) -> Recipe:
    facts = about_guest(kind, New_Cores=lambda call, _: number("cores")(call), New_Memory=_megabytes)
    shape = change_card("⚙️", f"Resize of {kind.word}", facts)

    async def recipe(call: ToolCall) -> Any:
        if call["cores"] is None and call["memory"] is None:
            raise BadArgument(f"{call.tool} needs cores or memory", next_step="Give at least one of them")
        guest = await guest_on_node(call, kind.type)
        sizes = {name: number(name)(call) for name in ("cores", "memory")}
        return await shape(call, await call.change("guest_configure", guest=guest.vmid, **sizes))

    return recipe


def _megabytes(call: ToolCall, _: ChangeResult) -> str | None:
    return None if call["memory"] is None else f"{call['memory']:g} MB"


def delete(kind: Kind) -> Recipe:
    shape = change_card("🗑️", f"Deletion of {kind.word}", about_guest(kind))
    return change_guest("guest_delete", type=kind.type, shape=shape)


# -- snapshots and backups ---------------------------------------------------------------------------------------------


def snapshot(kind: Kind, operation: str, icon: str, title: str) -> Recipe:
    shape = change_card(icon, title, about_guest(kind, Snapshot_Name="snapname"))
    return change_guest(operation, {"snapshot": "snapname"}, type=kind.type, shape=shape)


def back_up(kind: Kind) -> Recipe:
    facts = about_guest(kind, Storage="storage", Mode="mode", Compression="compress", Backup=_backup_names)
    shape = change_card("💾", f"Backup of {kind.word}", facts, "**Tip**: `proxmox_list_backups` shows all of them.")
    arguments = {name: name for name in ("storage", "mode", "compress")}
    return change_guest("backup_create", arguments, type=kind.type, shape=shape)


def _backup_names(_: ToolCall, done: ChangeResult) -> str:
    return ", ".join(done.facts.get("backups", {}).values())


def restore(kind: Kind) -> Recipe:
    facts: dict[str, Fact] = {"New VM ID": "vmid", "Archive": "archive", "Type": lambda *_: kind.label, "Node": "node",
             "Storage": "storage"}  # fmt: skip
    restored = change(
        "backup_restore",
        {"node": "node", "vmid": number("vmid"), "backup": "archive", "storage": "storage"},
        shape=change_card("♻️", f"Restore of {kind.word}", facts, _start_hint(kind)),
    )

    async def recipe(call: ToolCall) -> Any:
        if StoredVolume(call["archive"]).is_container is not (kind is LXC):
            other = next(other_kind for other_kind in BOTH if other_kind is not kind)
            raise BadArgument(
                f"{call['archive']} is not a backup of a {kind.word}",
                next_step=f"If it is the right one, use proxmox_restore_backup_{other.suffix}",
            )
        return await restored(call)

    return recipe


async def delete_backup(call: ToolCall) -> Any:
    """Deletes only backups of that storage: the tool promises no more."""
    storage, name = call["storage"], call["volume"]
    volume = name if name.startswith(f"{storage}:") else f"{storage}:{name}"
    if not volume.removeprefix(f"{storage}:").startswith("backup/"):
        raise BadArgument(f"{name} is not a backup on {storage}", next_step="See proxmox_list_backups")
    done = await call.change("volume_delete", node=call["node"], volume=volume)
    facts: dict[str, Fact] = {"Node": "node", "Storage": "storage", "Volume": lambda *_: volume}
    return await change_card("🗑️", "Deletion of backup", facts)(call, done)


# -- commands ----------------------------------------------------------------------------------------------------------


async def execute(call: ToolCall) -> str:
    """Run a command in a VM or a container; the id decides which."""
    guest = await guest_on_node(call)
    follow = None if call["wait"] else 0.0
    done = await call.change("guest_exec", guest=guest.vmid, command=call["command"], follow=follow)
    kind = next(kind for kind in BOTH if kind.type == guest.type)
    if done.was_dry_run:
        return str(await change_card("💻", f"Command in {kind.word}", {})(call, done))
    facts = {"VM ID": guest.vmid, "Type": kind.label, "Node": guest.node}
    code = done.facts.get("exit_code")
    ended = {"Exit Code": code} if code is not None else {"Background Job": done.facts.get("job")}
    state = "still running" if done.is_running else str(done.facts["result"])
    remarks = [f"**Note**: {done.facts[name]}" for name in REMARKS if name in done.facts]
    return card("💻", bold(f"Command in {kind.word}: {state}"), facts | ended, *remarks, *_outputs(done))


def _outputs(done: ChangeResult) -> list[str]:
    """What the guest printed, in a fence: it is data from strangers."""
    printed = [
        (f"{title} (base64)" if encoded else title, str(done.facts[key]))
        for title, stream in STREAMS
        for encoded, key in ((False, stream), (True, f"{stream}_base64"))
        if done.facts.get(key)
    ]
    return [f"{bold(title)}:\n{fence(text)}" for title, text in printed]


def _guest_recipes(kind: Kind) -> dict[str, Recipe]:
    return {
        **_power_of(kind),
        f"proxmox_clone_{kind.suffix}": clone(kind),
        f"proxmox_resize_{kind.suffix}": resize(kind),
        f"proxmox_delete_{kind.suffix}": delete(kind),
        f"proxmox_create_snapshot_{kind.suffix}": snapshot(kind, "snapshot_create", "📸", "Snapshot"),
        f"proxmox_rollback_snapshot_{kind.suffix}": snapshot(kind, "snapshot_rollback", "⏮️", "Rollback to snapshot"),
        f"proxmox_delete_snapshot_{kind.suffix}": snapshot(kind, "snapshot_delete", "🗑️", "Deletion of snapshot"),
        f"proxmox_create_backup_{kind.suffix}": back_up(kind),
        f"proxmox_restore_backup_{kind.suffix}": restore(kind),
    }


RECIPES: dict[str, Recipe] = {
    **_guest_recipes(LXC),
    **_guest_recipes(VM),
    "proxmox_pause_vm": power(VM, "pause", "⏸️", "**Tip**: `proxmox_resume_vm` resumes it.", action="suspend"),
    "proxmox_resume_vm": power(VM, "resume", "▶️"),
    "proxmox_create_lxc": create_lxc,
    "proxmox_create_vm": create_vm,
    "proxmox_delete_backup": delete_backup,
    "proxmox_execute_vm_command": execute,
}
