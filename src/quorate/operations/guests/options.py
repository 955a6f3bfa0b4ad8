"""Options of guests: any that PVE knows, checked before they are sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import (
    CLOUDINIT_SET,
    DISK_ADD,
    DISK_CHANGE,
    DISK_DESTROY,
    GUEST_GET,
    NAMED,
    NIC_REMOVE,
    NIC_SET,
    Advice,
    ArgumentHint,
    Sentence,
    either,
    see,
)
from quorate.operations.config_change import (
    Config,
    ConfigEdit,
    check_tags,
    is_set,
    live_and_waiting,
    read_config,
    split_tags,
    write_config,
)
from quorate.operations.exemptions import DISC
from quorate.operations.placement import oversize_warnings
from quorate.operations.plan import Plan
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.operations.root_only import refuse_root_only
from quorate.operations.start_checks import affects_start, start_objections
from quorate.operations.units import parse_size
from quorate.problems import BadArgument, NotFound
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.suggestions import suggest

MIB = 1024**2

# Parameters of PVE's call that are not options of a guest.
_ABOUT_THE_CALL = frozenset(
    ["node", "vmid", "digest", "delete", "revert", "force", "skiplock", "background_delay", "import-working-storage"]
)
_VM_ONLY = ("sockets", "cpu", "balloon", "agent", "boot", "cdrom")
_CLOUDINIT = frozenset(
    ["ciuser", "cipassword", "citype", "ciupgrade", "cicustom", "sshkeys", "nameserver", "searchdomain"]
)
# Changing these on a running VM plugs something in or out, which PVE should do in a task.
_PLUGGED = ("memory", "vcpus", "balloon", "usb", "hostpci", "virtiofs", "cdrom")
_CD_SLOTS = ("ide2", "ide0", "ide1", "ide3", "sata0", "sata1", "sata2", "sata3", "sata4", "sata5")


@operation(
    risk=Risk.CHANGE,
    idempotent=True,
    exemptions=(DISC,),
    search_words=(
        "hot add hotplug double twice vm keeps running out of memory slow bigger size less ram gigs cpu cores vcpu"
        " bump rename name hostname autostart start automatically host boots order description notes tags "
        "protection change settings hardware reduce increase agent ballooning"
    ),
    example="guest=docker01 memory=12G",
)
async def guest_configure(
    pve: Cluster,
    guest: GuestRef,
    cores: int | None = None,
    sockets: int | None = None,
    memory: Annotated[int | str, Meta(description="MiB, or 4G")] | None = None,
    balloon: Annotated[int | str, Meta(description="Least memory; 0: off")] | None = None,
    cpu: Annotated[str, Meta(description="Type such as host")] | None = None,
    name: str | None = None,
    description: str | None = None,
    tags: Annotated[list[str], Meta(description="Replaces all")] | None = None,
    add_tags: list[str] | None = None,
    remove_tags: list[str] | None = None,
    onboot: bool | None = None,
    startup: Annotated[str, Meta(description="order=1,up=30,down=60")] | None = None,
    protection: bool | None = None,
    agent: Annotated[bool | str, Meta(description="Guest agent")] | None = None,
    boot: Annotated[list[str], Meta(description="Devices in order")] | None = None,
    cdrom: Annotated[str, Meta(description="ISO volume to insert, or none")] | None = None,
    options: Annotated[dict[str, Any], Meta(description="Any other PVE option")] | None = None,
    unset: Annotated[list[str], Meta(description="Options to remove")] | None = None,
    revert: Annotated[list[str], Meta(description="Pending changes to drop")] | None = None,
    digest: Annotated[str, Meta(description="Refuse if it has changed")] | None = None,
) -> Plan:
    """Change options of a guest; says what is live and what waits for a restart.

    Disks: disk_*; network cards: nic_set, nic_remove; cloud-init: cloudinit_set.
    """
    found = await pve.guest(guest)
    named = {"sockets": sockets, "cpu": cpu, "balloon": balloon, "agent": agent, "boot": boot, "cdrom": cdrom}
    _refuse_for_containers(found, {key: value for key, value in named.items() if value is not None})
    config = await read_config(found, digest)
    wanted: dict[str, Any] = {
        "cores": cores,
        "sockets": sockets,
        "memory": None if memory is None else _mebibytes(memory),
        "balloon": None if balloon is None else _mebibytes(balloon),
        "cpu": None if cpu is None else _cpu(config, cpu),
        "name" if found.is_vm else "hostname": name,
        "description": description,
        "tags": _tags(config, tags, add_tags, remove_tags),
        "onboot": onboot,
        "startup": startup,
        "protection": protection,
        "agent": None if agent is None else _agent(config, agent),
        "boot": None if boot is None else _boot(found, config, boot),
        **({} if cdrom is None else _cdrom(found, config, cdrom)),
    }
    wanted = {key: value for key, value in wanted.items() if value is not None}
    table = (await pve.facts()).endpoint("PUT", f"/nodes/{{node}}/{found.row.type}/{{vmid}}/config").parameters
    wanted = _with_options(found, wanted, options or {}, table)
    gone = [_removable(found, key, wanted, table) for key in unset or ()]
    removed = {key: config[key] for key in gone if key in config}
    changed = {key: value for key, value in wanted.items() if not is_set(key, value, config)}
    by_hand = f"{'qm' if found.is_vm else 'pct'} set {found.vmid} --{{option}} …"
    way_out = f"Leave it out; to set it, run `{by_hand}` on {found.row.node}"
    refuse_root_only(pve, {**changed, **removed}, is_vm=found.is_vm, way_out=way_out, before=config)
    return await _plan(pve, found, config, wanted, gone, revert or [])


async def _plan(
    pve: Cluster, guest: Guest, config: Config, wanted: dict[str, Any], gone: list[str], revert: list[str]
) -> Plan:
    emptied = [key for key in ("tags", "description") if wanted.get(key) == ""]
    settings = {key: value for key, value in wanted.items() if key not in emptied}
    changed = {key: value for key, value in settings.items() if not is_set(key, value, config)}
    removals = list(dict.fromkeys([*gone, *emptied]))
    removed = [key for key in removals if key in config]
    if revert:
        await _require_pending(guest, revert)
    unchanged = [f"{key} is already {config[key]}" for key in settings if key not in changed]
    unchanged += [f"{key} is not set" for key in removals if key not in config]
    summary = f"Configure {guest}"
    if not changed and not removed and not revert:
        if not unchanged:
            raise BadArgument("No changes were specified", next_step=Advice("Name an option, such as {cores}", cores=2))
        return Plan(summary, unchanged=tuple(unchanged))
    if {"memory", "balloon"} & changed.keys():
        _check_balloon({**config, **changed})
    touched = [*changed, *removed, *revert]
    plugs = guest.is_vm and any(key.startswith(_PLUGGED) or _is_cd(key) for key in touched)
    slow = plugs and await guest.status() == "running"
    change = f"Change {', '.join(touched)} of {guest}"
    call = write_config(guest, config, change, ConfigEdit(changed, removed, revert), slow=slow)
    return Plan(
        summary,
        (call,),
        tuple(unchanged),
        warnings=(
            *await _start_warnings(pve, guest, {**config, **changed}, {**changed, **dict.fromkeys(removed)}),
            *(await oversize_warnings(pve, guest.row.node, changed["memory"] * MIB) if "memory" in changed else ()),
        ),
        after=live_and_waiting(guest, touched),
    )


def _is_cd(key: str) -> bool:
    return values.bus_of(key) in values.BOOTABLE


def _refuse_for_containers(guest: Guest, given: Mapping[str, Any]) -> None:
    for key in given:
        if key in _VM_ONLY and not guest.is_vm:
            raise BadArgument(f"{guest} is a container, which has no {key}", next_step="Leave it out")


def _mebibytes(given: int | str) -> int:
    return parse_size(given, unit="M") // MIB


def _cpu(config: Config, given: str) -> str:
    """A bare type changes the type and keeps flags and the like."""
    if "," in given or "=" in given:
        return given
    return values.merge(str(config.get("cpu", "")), {"cputype": given}, "cputype")


def _agent(config: Config, given: bool | str) -> str:
    """Switching it on or off keeps its other settings."""
    if isinstance(given, str) and given.lower() not in ("0", "1", "true", "false", "on", "off", "yes", "no"):
        return given
    on = values.is_on(int(given) if isinstance(given, bool) else given)
    return values.merge(str(config.get("agent", "")), {"enabled": on}, "enabled")


def _tags(config: Config, given: list[str] | None, add: list[str] | None, remove: list[str] | None) -> str | None:
    if given is None and add is None and remove is None:
        return None
    if given is not None and (add is not None or remove is not None):
        raise BadArgument(
            Sentence("{tags} replaces all tags", tags=NAMED),
            next_step=either(
                "Use it alone", Advice("{add_tags} and {remove_tags} without it", add_tags=NAMED, remove_tags=NAMED)
            ),
        )
    tags = check_tags(given) if given is not None else split_tags(str(config.get("tags", "")))
    out = {tag.lower() for tag in check_tags(remove)}
    tags = [tag for tag in [*tags, *check_tags(add)] if tag.lower() not in out]
    return ";".join(dict.fromkeys(tags))


def _boot(guest: Guest, config: Config, given: list[str]) -> str:
    devices = [device for device in re.split(r"[,;\s]+", ";".join(given).removeprefix("order=")) if device]
    bootable = [key for key in config if values.bus_of(key) in (*values.BOOTABLE, "net") or key.startswith("hostpci")]
    for device in devices:
        if device not in bootable:
            raise NotFound(
                f"{guest} has no device {device!r} to boot from", next_step=f"It has {', '.join(sorted(bootable))}"
            )
    return "order=" + ";".join(devices)


def _cdrom(guest: Guest, config: Config, given: str) -> dict[str, str]:
    """Insert the disc into the existing drive; a VM without one gets a drive."""
    drives = [
        key
        for key, value in config.items()
        if values.parse(str(value)).get("media") == "cdrom" and not values.is_cloudinit(str(value)) and _is_cd(key)
    ]
    slot = drives[0] if drives else next((slot for slot in _CD_SLOTS if slot not in config), None)
    if slot is None:
        raise BadArgument(
            f"{guest} has no free slot for a CD drive",
            next_step=Advice("Free one", DISK_CHANGE(guest=guest.vmid, action="detach")),
        )
    if given != "none" and ":" not in given:
        raise BadArgument(
            f"{given!r} is not a volume", next_step="Write it as storage:iso/file.iso, or none to eject the disc"
        )
    if values.volume_of(str(config.get(slot, ""))) == given:
        return {slot: str(config[slot])}
    return {slot: f"{given},media=cdrom"}


def _with_options(
    guest: Guest, wanted: dict[str, Any], options: Mapping[str, Any], table: Mapping[str, Any]
) -> dict[str, Any]:
    merged = dict(wanted)
    for key, value in options.items():
        _refuse_foreign(key)
        schema = _schema_of(guest, key, table)
        if key in wanted:
            raise BadArgument(f"{key} is specified twice", next_step=Advice("Leave it out of {options}", options=NAMED))
        if guest.is_vm and (key in _CLOUDINIT or values.bus_of(key) == "ipconfig"):
            raise BadArgument(
                f"{key} belongs to cloud-init", next_step=Advice("Use the tool for cloud-init", CLOUDINIT_SET)
            )
        if isinstance(value, (dict, list)) or value is None:
            raise BadArgument(f"{key} takes a string, a number or a boolean", next_step="unset removes an option")
        merged[key] = _convert_value(value, schema)
    return merged


def _convert_value(value: Any, schema: Mapping[str, Any]) -> Any:
    """Booleans may be given in words; PVE itself takes 1 and 0 only."""
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if schema.get("type") == "boolean" and isinstance(value, str):
        return words.get(value.lower(), value)
    return int(value) if isinstance(value, bool) and schema.get("type") != "boolean" else value


def _removable(guest: Guest, key: str, wanted: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    _refuse_foreign(key)
    _schema_of(guest, key, table)
    if key in wanted:
        raise BadArgument(f"{key} cannot be both set and unset")
    return key


def _refuse_foreign(key: str) -> None:
    """Devices have their own tools, which know the pitfalls."""
    bus = values.bus_of(key)
    if bus == "net":
        raise BadArgument(
            f"{key} is a network card", next_step=Advice("Use the tools for network cards", NIC_SET, NIC_REMOVE)
        )
    if bus == "unused":
        raise BadArgument(
            f"{key} is a detached disk",
            next_step=Advice("Use the tools for disks", DISK_CHANGE(action="attach"), DISK_DESTROY),
        )
    if bus in values.DISKS:
        raise BadArgument(
            f"{key} is a disk", next_step=Advice("Use the tools for disks", DISK_ADD, DISK_CHANGE, DISK_DESTROY)
        )
    if key == "cdrom":  # PVE's alias of ide2, whatever is in it
        raise BadArgument(
            Sentence("In {options}, cdrom means the drive ide2", options=NAMED),
            next_step=Advice(
                "Use the argument {cdrom}, or {none} to eject", cdrom=NAMED, none=ArgumentHint("cdrom", "none")
            ),
        )
    if key in _ABOUT_THE_CALL:
        raise BadArgument(
            f"{key} is not an option of a guest",
            next_step=Advice("Use {unset}, {revert} and {digest}", unset=NAMED, revert=NAMED, digest=NAMED),
        )


def _schema_of(guest: Guest, key: str, table: Mapping[str, Any]) -> Mapping[str, Any]:
    schema: Mapping[str, Any] | None = table.get(key) or table.get(re.sub(r"\d+$", "[n]", key))
    if schema is None:
        kind = "VM" if guest.is_vm else "container"
        hint = suggest(
            key,
            table,
            see("See the options that are set", GUEST_GET(guest=guest.vmid, detail=True)),
            count=3,
        )
        raise BadArgument(f"A {kind} has no option {key!r}", next_step=hint)
    return schema


async def _require_pending(guest: Guest, names: list[str]) -> None:
    waiting = values.pending_changes(await guest.get("pending"))
    for key in names:
        if key not in waiting:
            pending = f"Pending: {', '.join(sorted(waiting))}" if waiting else "Nothing is pending"
            raise BadArgument(f"{key} of {guest} has no pending change", next_step=pending)


def _check_balloon(config: Mapping[str, Any]) -> None:
    memory = int(values.parse(str(config.get("memory", 512)), "current").get("current", 512))
    if "balloon" in config and int(config["balloon"]) > memory:
        raise BadArgument(
            Sentence(f"{{balloon}} is more than the memory of {memory} MiB", balloon=config["balloon"]),
            why="Ballooning can only return memory",
            next_step="Give at most as much as memory, or 0 for no ballooning",
        )


async def _start_warnings(
    pve: Cluster, guest: Guest, config: Mapping[str, Any], changed: Mapping[str, Any]
) -> tuple[str, ...]:
    if not guest.is_vm or not affects_start(changed):
        return ()
    kept = {key: value for key, value in config.items() if changed.get(key, value) is not None}
    return tuple(await start_objections(pve, guest.row.node, kept))
