"""Options of guests: any that PVE knows, checked before they are sent and compared afterwards."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import NAMED, Advice, ArgumentHint, Sentence, either, see, tools
from quorate.operations.exemptions import DISC
from quorate.operations.placement import oversize_warnings
from quorate.operations.plan import Call, Plan, guest_call
from quorate.operations.preconditions import affects_start, refuse_locked, refuse_root_only, start_objections
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.problems import BadArgument, Conflict, NotFound
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.suggestions import suggest
from quorate.tools.oci_images import merge_environment
from quorate.units import parse_size

Config = dict[str, Any]

_TAG = re.compile(r"[a-z0-9_][a-z0-9_\-+.]*", re.I)


async def read_config(guest: Guest, digest: str | None = None) -> Config:
    """The configuration with its pending changes, if the guest can be changed now.

    `digest` is the caller's: what it has decided on must still be what is there.
    """
    config: Config = await guest.get("config")
    refuse_locked(guest, config)
    if digest is not None and digest != config.get("digest"):
        raise Conflict(
            f"The configuration of {guest} has changed since you read it",
            why=f"Its digest is {config.get('digest')} now",
            next_step=Advice("Read it again, then decide", tools.guest_get(guest=guest.vmid, detail=True)),
        )
    return config


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """Options of a guest to set, to delete, and pending changes to drop."""

    set: Mapping[str, Any] = field(default_factory=dict)
    delete: Sequence[str] = ()
    revert: Sequence[str] = ()
    force: bool = False
    """Destroys the volumes of deleted disks."""


def write_config(
    guest: Guest,
    config: Config,
    summary: str,
    edit: ConfigEdit,
    *,
    slow: bool = False,
    settled: Callable[[], Awaitable[bool]] | None = None,
) -> Call:
    """The call that changes options, bound to the configuration that was read.

    `slow` is for edits that create disks or plug devices: a VM does them in a task. Containers have no such request.
    """
    params = {
        **edit.set,
        "delete": ",".join(edit.delete) or None,
        "revert": ",".join(edit.revert) or None,
        "digest": config.get("digest"),
        "force": 1 if edit.force else None,
    }
    method = "POST" if guest.is_vm and slow else "PUT"
    return guest_call(guest, method, "config", summary, settled=settled, **params)


def is_set(name: str, value: Any, config: Mapping[str, Any]) -> bool:
    """True if the configuration already has this value, in any notation."""
    if name not in config:
        return False
    if name == "description":  # commas in free text separate nothing
        return str(value) == str(config[name])
    if name == "tags":
        return sorted(split_tags(str(value))) == sorted(split_tags(str(config[name])))
    return values.same(value, config[name])


def split_tags(text: str) -> list[str]:
    return [tag for tag in re.split(r"[,;\s]+", text) if tag]


def check_tags(tags: list[str] | None) -> list[str]:
    """Check tags by PVE's rules; one with a blank in it would silently become two."""
    for tag in tags or ():
        if not _TAG.fullmatch(tag):
            parts = [part for part in split_tags(tag) if _TAG.fullmatch(part)]
            raise BadArgument(
                f"{tag!r} cannot be a tag",
                why="A tag is made of letters, digits and _ - + . and begins with a letter, a digit or _",
                next_step=f"Give several tags one by one: {json.dumps(parts)}" if len(parts) > 1 else None,
            )
    return list(tags or ())


async def report_changes(guest: Guest, changed: list[str]) -> Mapping[str, Any]:
    """For Plan.after: the changed options that are live, and those that wait for a restart.

    Nothing is live in a guest that is stopped: it starts with what is set.
    """
    if (status := await guest.status()) != "running":
        return {"changed": changed, "status": status}
    waiting = values.pending_changes(await guest.get("pending"))
    late = {name: waiting[name] for name in changed if name in waiting}
    facts: dict[str, Any] = {"live": [name for name in changed if name not in waiting]}
    if late:
        facts["waits_for_restart"] = late
        restart = tools.guest_power(guest=guest.vmid, action="reboot")
        facts["next"] = Advice("To apply it, restart the guest; a reboot from inside is not enough", restart)
    return facts


def refuse_protected(guest: Guest, config: Config, what: str) -> None:
    if values.is_on(config.get("protection", 0)):
        raise Conflict(
            f"{guest} is protected, so {what} cannot be removed",
            next_step=Advice(
                "Its owner can switch protection off", tools.guest_configure(guest=guest.vmid, protection=False)
            ),
        )


def number_of(device: int | str, bus: str) -> int:
    """The number of a device: 1 for "net1" or "1"."""
    text = str(device).strip().removeprefix(bus)
    if not (text.isascii() and text.isdigit()):
        raise BadArgument(f"{device!r} is not a {bus} device", next_step=f"Write {bus}0, {bus}1 …")
    return int(text)


def first_free(config: Mapping[str, Any], bus: str, slots: int) -> str | None:
    return next((f"{bus}{number}" for number in range(slots) if f"{bus}{number}" not in config), None)


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
    toolset="guests",
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
    target = await pve.guest(guest)
    named = {"sockets": sockets, "cpu": cpu, "balloon": balloon, "agent": agent, "boot": boot, "cdrom": cdrom}
    _refuse_for_containers(target, {key: value for key, value in named.items() if value is not None})
    config = await read_config(target, digest)
    requested: dict[str, Any] = {
        "cores": cores,
        "sockets": sockets,
        "memory": None if memory is None else _mebibytes(memory),
        "balloon": None if balloon is None else _mebibytes(balloon),
        "cpu": None if cpu is None else _cpu(config, cpu),
        "name" if target.is_vm else "hostname": name,
        "description": description,
        "tags": _tags(config, tags, add_tags, remove_tags),
        "onboot": onboot,
        "startup": startup,
        "protection": protection,
        "agent": None if agent is None else _agent(config, agent),
        "boot": None if boot is None else _boot(target, config, boot),
        **({} if cdrom is None else _cdrom(target, config, cdrom)),
    }
    requested = {key: value for key, value in requested.items() if value is not None}
    table = (await pve.facts()).endpoint("PUT", f"/nodes/{{node}}/{target.row.type}/{{vmid}}/config").parameters
    requested = _with_options(target, requested, _with_variables(config, options or {}), table)
    gone = [_removable(target, key, requested, table) for key in unset or ()]
    removed = {key: config[key] for key in gone if key in config}
    changed = {key: value for key, value in requested.items() if not is_set(key, value, config)}
    by_hand = f"{'qm' if target.is_vm else 'pct'} set {target.vmid} --{{option}} …"
    way_out = f"Leave it out; to set it, run `{by_hand}` on {target.row.node}"
    refuse_root_only(pve, {**changed, **removed}, is_vm=target.is_vm, way_out=way_out, before=config)
    return await _plan(pve, target, config, requested, gone, revert or [])


async def _plan(
    pve: Cluster, guest: Guest, config: Config, requested: dict[str, Any], unset: list[str], revert: list[str]
) -> Plan:
    emptied = [key for key in ("tags", "description") if requested.get(key) == ""]
    settings = {key: value for key, value in requested.items() if key not in emptied}
    changed = {key: value for key, value in settings.items() if not is_set(key, value, config)}
    removals = list(dict.fromkeys([*unset, *emptied]))
    removed = [key for key in removals if key in config]
    if revert:
        await _require_pending(guest, revert)
    shown = {**config, "env": "set like that"}  # its values may be secrets that nobody gave here
    unchanged = [f"{key} is already {shown[key]}" for key in settings if key not in changed]
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
        after=partial(report_changes, guest, touched),
    )


def _is_cd(key: str) -> bool:
    return values.bus_of(key) in values.BOOTABLE


def _refuse_for_containers(guest: Guest, options: Mapping[str, Any]) -> None:
    for key in options:
        if key in _VM_ONLY and not guest.is_vm:
            raise BadArgument(f"{guest} is a container, which has no {key}", next_step="Leave it out")


def _mebibytes(amount: int | str) -> int:
    return parse_size(amount, unit="M") // MIB


def _cpu(config: Config, cpu: str) -> str:
    """The CPU setting; a bare type replaces only the type and keeps flags."""
    if "," in cpu or "=" in cpu:
        return cpu
    return values.merge(str(config.get("cpu", "")), {"cputype": cpu}, "cputype")


def _agent(config: Config, agent: bool | str) -> str:
    """The agent setting; switching it on or off keeps its other parts."""
    if isinstance(agent, str) and agent.lower() not in ("0", "1", "true", "false", "on", "off", "yes", "no"):
        return agent
    enabled = values.is_on(int(agent) if isinstance(agent, bool) else agent)
    return values.merge(str(config.get("agent", "")), {"enabled": enabled}, "enabled")


def _tags(config: Config, replacement: list[str] | None, add: list[str] | None, remove: list[str] | None) -> str | None:
    if replacement is None and add is None and remove is None:
        return None
    if replacement is not None and (add is not None or remove is not None):
        raise BadArgument(
            Sentence("{tags} replaces all tags", tags=NAMED),
            next_step=either(
                "Use it alone", Advice("{add_tags} and {remove_tags} without it", add_tags=NAMED, remove_tags=NAMED)
            ),
        )
    tags = check_tags(replacement) if replacement is not None else split_tags(str(config.get("tags", "")))
    removed = {tag.lower() for tag in check_tags(remove)}
    tags = [tag for tag in [*tags, *check_tags(add)] if tag.lower() not in removed]
    return ";".join(dict.fromkeys(tags))


def _boot(guest: Guest, config: Config, boot: list[str]) -> str:
    devices = [device for device in re.split(r"[,;\s]+", ";".join(boot).removeprefix("order=")) if device]
    bootable = [key for key in config if values.bus_of(key) in (*values.BOOTABLE, "net") or key.startswith("hostpci")]
    for device in devices:
        if device not in bootable:
            raise NotFound(
                f"{guest} has no device {device!r} to boot from", next_step=f"It has {', '.join(sorted(bootable))}"
            )
    return "order=" + ";".join(devices)


def _cdrom(guest: Guest, config: Config, volume: str) -> dict[str, str]:
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
            next_step=Advice("Free one", tools.disk_change(guest=guest.vmid, action="detach")),
        )
    if volume != "none" and ":" not in volume:
        raise BadArgument(
            f"{volume!r} is not a volume", next_step="Write it as storage:iso/file.iso, or none to eject the disc"
        )
    if values.volume_of(str(config.get(slot, ""))) == volume:
        return {slot: str(config[slot])}
    return {slot: f"{volume},media=cdrom"}


def _with_options(
    guest: Guest, requested: dict[str, Any], options: Mapping[str, Any], table: Mapping[str, Any]
) -> dict[str, Any]:
    merged = dict(requested)
    for key, value in options.items():
        _refuse_foreign(key)
        schema = _schema_of(guest, key, table)
        if key in requested:
            raise BadArgument(f"{key} is specified twice", next_step=Advice("Leave it out of {options}", options=NAMED))
        if guest.is_vm and (key in _CLOUDINIT or values.bus_of(key) == "ipconfig"):
            raise BadArgument(
                f"{key} belongs to cloud-init", next_step=Advice("Use the tool for cloud-init", tools.cloudinit_set)
            )
        if isinstance(value, (dict, list)) or value is None:
            raise BadArgument(f"{key} takes a string, a number or a boolean", next_step="unset removes an option")
        merged[key] = _convert_value(value, schema)
    return merged


def _with_variables(config: Config, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Variables that are an object are changed one by one; as a text, they replace all, as PVE does it."""
    variables = options.get("env")
    if not isinstance(variables, Mapping):
        return options
    return {**options, "env": merge_environment(str(config.get("env", "")), variables)}


def _convert_value(value: Any, schema: Mapping[str, Any]) -> Any:
    """The value as PVE takes it: booleans as 1 and 0, also if they are in words."""
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if schema.get("type") == "boolean" and isinstance(value, str):
        return words.get(value.lower(), value)
    return int(value) if isinstance(value, bool) and schema.get("type") != "boolean" else value


def _removable(guest: Guest, key: str, requested: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    _refuse_foreign(key)
    _schema_of(guest, key, table)
    if key in requested:
        raise BadArgument(f"{key} cannot be both set and unset")
    return key


def _refuse_foreign(key: str) -> None:
    """Refuse keys that are not plain options; devices have their own tools."""
    bus = values.bus_of(key)
    if bus == "net":
        raise BadArgument(
            f"{key} is a network card",
            next_step=Advice("Use the tools for network cards", tools.nic_set, tools.nic_remove),
        )
    if bus == "unused":
        raise BadArgument(
            f"{key} is a detached disk",
            next_step=Advice("Use the tools for disks", tools.disk_change(action="attach"), tools.disk_destroy),
        )
    if bus in values.DISKS:
        raise BadArgument(
            f"{key} is a disk",
            next_step=Advice("Use the tools for disks", tools.disk_add, tools.disk_change, tools.disk_destroy),
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
            see("See the options that are set", tools.guest_get(guest=guest.vmid, detail=True)),
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
