"""Privileges that PVE checks in its code, by what a call sets, where its API declares none or too many.

Only what follows from the call alone is here: `complete` is false where PVE also looks at something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pve_schema.formats import split_list
from quorate.pve import values
from quorate.pve.privileges import Need
from quorate.pve.targets import owner

_ALLOCATE_SPACE: Final = "Datastore.AllocateSpace"

_VM_OPTIONS: Final[Mapping[str, str]] = {
    option: privilege
    for privilege, options in {
        "VM.Config.CPU": "cores cpu cpulimit cpuunits numa smp sockets vcpus",
        "VM.Config.Memory": "memory balloon shares allow-ksm",
        "VM.Config.HWType": "acpi hotplug kvm machine scsihw smbios1 tablet vga watchdog audio0 rng0",
        "VM.Config.Options": "agent autostart bios description keyboard localtime migrate_downtime migrate_speed name"
        " onboot ostype protection reboot startdate startup tdf template",
        "VM.Config.Disk": "boot bootdisk vmstatestorage",
        "VM.PowerMgmt": "freeze",
    }.items()
    for option in options.split()
}
_CLOUD_INIT: Final = frozenset(
    ["cicustom", "cipassword", "citype", "ciupgrade", "ciuser", "nameserver", "searchdomain", "sshkeys"]
)
_CONTAINER_OPTIONS: Final[Mapping[str, str]] = {
    "cores": "VM.Config.CPU", "cpulimit": "VM.Config.CPU", "cpuunits": "VM.Config.CPU",
    "memory": "VM.Config.Memory", "swap": "VM.Config.Memory",
    "nameserver": "VM.Config.Network", "searchdomain": "VM.Config.Network", "hostname": "VM.Config.Network",
}  # fmt: skip
_NO_OPTIONS: Final = frozenset(
    [
        *("node", "vmid", "storage", "pool", "force", "unique", "start", "bwlimit", "ha-managed", "digest"),
        *("delete", "revert", "archive", "live-restore", "import-working-storage", "background_delay", "skiplock"),
        *("ostemplate", "password", "ssh-public-keys", "restore", "ignore-unpack-errors", "unprivileged"),
    ]
)
_NEW_DISK: Final = re.compile(r"(?:(?P<storage>[^/:\s]+):)?\d+(?:\.\d+)?")
_PLAIN_BRIDGE: Final = re.compile(r"vmbr\d+")
"""Other names may be virtual networks, whose zone the call does not show."""
_READABLE_BY_ANY: Final = re.compile(r"(?P<storage>[^:/]+):(?:iso|vztmpl|import)/")
_BACKUP: Final = re.compile(r"(?:^|/)vzdump-(?:qemu|lxc|openvz)-\d+-|^backup/(?:vm|ct)/\d+/")


@dataclass(slots=True)
class CodeNeeds:
    """What PVE's code requires of one call: of each row of alternatives, one."""

    vmid: str
    pool: str | None = None
    rows: list[tuple[Need, ...]] = field(default_factory=list)
    complete: bool = True

    def require(self, path: str, *privileges: str, any_of: bool = False) -> None:
        self.rows.append((Need(path, privileges, any_of),))

    def require_on_guest(self, *privileges: str, any_of: bool = False) -> None:
        """On the guest, or on the pool that it is created in."""
        paths = ([f"/pool/{self.pool}"] if self.pool else []) + [f"/vms/{self.vmid}"]
        self.rows.append(tuple(Need(path, privileges, any_of) for path in paths))


def needs_in_code(method: str, template: str, params: Mapping[str, Any]) -> CodeNeeds | None:
    """None for calls whose declared privileges are all there is, or about which nothing is known."""
    check = _CHECKS.get(f"{method} {template.replace('/qemu', '/{kind}').replace('/lxc', '/{kind}')}")
    if check is None:
        return None
    text = {name: _text(value) for name, value in params.items() if value is not None}
    required = CodeNeeds(text.get("vmid", "-"), text.get("pool"))
    check(required, text, "/qemu" in template)
    return required


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _check_create(required: CodeNeeds, params: Mapping[str, str], is_vm: bool) -> None:
    storage = params.get("storage")
    if storage and is_vm:
        required.require(f"/storage/{storage}", _ALLOCATE_SPACE)
    if params.get("archive") or values.is_on(params.get("restore")):
        required.complete = False  # the configuration comes from the backup
        if not values.is_on(params.get("force")):
            required.require_on_guest("VM.Allocate")
        return
    required.require_on_guest("VM.Allocate")
    if values.is_on(params.get("start")):
        required.require_on_guest("VM.PowerMgmt")
    if values.is_on(params.get("ha-managed")):
        required.require("/", "Sys.Console")
    if is_vm:
        _check_vm(required, params, storage, created=True)
    else:
        _require_volume(required, params.get("ostemplate", ""))
        _check_container(required, params, storage or "local")
        required.complete = required.complete and values.is_on(params.get("unprivileged", "1"))


def _check_config(required: CodeNeeds, params: Mapping[str, str], is_vm: bool) -> None:
    if is_vm:
        _check_vm(required, params, None, created=False)
    else:
        _check_container(required, params, None)


def _options(params: Mapping[str, str]) -> dict[str, str]:
    """Option -> its new value, empty for those that are removed or reverted."""
    removed = dict.fromkeys(split_list(params.get("delete", "")) + split_list(params.get("revert", "")), "")
    return {**removed, **{name: value for name, value in params.items() if name not in _NO_OPTIONS}}


def _check_vm(required: CodeNeeds, params: Mapping[str, str], default: str | None, *, created: bool) -> None:
    for option, value in _options(params).items():
        bus = values.bus_of(option)
        if option == "cdrom" or bus in values.DISKS:
            _check_drive(required, option, value, default, created=created)
        elif option in _VM_OPTIONS:
            required.require_on_guest(_VM_OPTIONS[option])
            if option == "startup":  # it changes how the node starts
                required.require("/", "Sys.Modify")
        elif bus == "net":
            required.require_on_guest("VM.Config.Network")
            _check_bridge(required, value)
        elif option in _CLOUD_INIT or bus == "ipconfig":
            required.require_on_guest("VM.Config.Cloudinit", "VM.Config.Network", any_of=True)
        elif re.fullmatch(r"numa\d+", option):
            required.require_on_guest("VM.Config.CPU")
        elif re.fullmatch(r"serial\d+", option) and value == "socket":
            required.require_on_guest("VM.Config.HWType")
        else:
            required.complete = False  # tags, devices of the node, and what only root may set
    if "vmstatestorage" in params:
        required.require(f"/storage/{params['vmstatestorage']}", _ALLOCATE_SPACE)


def _check_drive(required: CodeNeeds, option: str, value: str, default: str | None, *, created: bool) -> None:
    """A new VM needs only the storages of its drives; a changed drive also a privilege on the VM."""
    parts = values.parse(value, "file")
    volume = values.volume_of(value)
    is_cdrom = option == "cdrom" or parts.get("media") == "cdrom"
    if not created and value:
        by_medium = ("VM.Config.CDROM",) if is_cdrom else ("VM.Config.Disk",)
        required.require_on_guest(
            *(("VM.Config.Cloudinit", "VM.Config.CDROM") if volume.endswith(":cloudinit") else by_medium)
        )
    required.complete = required.complete and created  # PVE also looks at the drive that was there
    new_disk = None if is_cdrom else _NEW_DISK.fullmatch(volume)
    if new_disk is not None and (new_disk["storage"] or default):
        required.require(f"/storage/{new_disk['storage'] or default}", _ALLOCATE_SPACE)
    elif volume == "cdrom":
        required.require("/", "Sys.Console")
    elif volume not in ("", "none") and not volume.endswith(":cloudinit"):
        _require_volume(required, volume)
    if source := parts.get("import-from"):
        _require_volume(required, source)


def _require_volume(required: CodeNeeds, volume: str) -> None:
    match = _READABLE_BY_ANY.match(volume)
    if match is not None:
        required.require(
            f"/storage/{match['storage']}", "Datastore.Audit", _ALLOCATE_SPACE, "Datastore.Allocate", any_of=True
        )
    elif str(owner(volume)) != required.vmid:
        required.complete = False


def _check_bridge(required: CodeNeeds, card: str) -> None:
    parts = values.parse(card)
    bridge = parts.get("bridge")
    if bridge is None:
        required.complete = required.complete and bool(card)  # PVE also looks at the card that is removed
        return
    if not _PLAIN_BRIDGE.fullmatch(bridge):
        required.complete = False
        return
    tags = [tag for tag in (parts.get("tag"), *parts.get("trunks", "").split(";")) if tag]
    for path in [f"{bridge}/{tag}" for tag in tags] or [bridge]:
        required.require(f"/sdn/zones/localnetwork/{path}", "SDN.Use")


def _check_container(required: CodeNeeds, params: Mapping[str, str], default: str | None) -> None:
    for option, value in _options(params).items():
        bus = values.bus_of(option)
        if bus in values.DISKS or bus == "unused":
            required.require_on_guest("VM.Config.Disk")
            volume = values.volume_of(value)
            new_disk = _NEW_DISK.fullmatch(volume)
            if new_disk is not None and (new_disk["storage"] or default):
                required.require(f"/storage/{new_disk['storage'] or default}", _ALLOCATE_SPACE)
            elif volume:
                _require_volume(required, volume)
        elif option in _CONTAINER_OPTIONS:
            required.require_on_guest(_CONTAINER_OPTIONS[option])
        elif bus == "net":
            required.require_on_guest("VM.Config.Network")
            _check_bridge(required, value)
        elif option in ("features", "tags", "hookscript") or re.fullmatch(r"dev\d+", option):
            required.complete = False
        else:
            required.require_on_guest("VM.Config.Options")
            if option == "startup":
                required.require("/", "Sys.Modify")


def _check_target_storage(required: CodeNeeds, params: Mapping[str, str], _is_vm: bool) -> None:
    """A copy on the same storage as the original needs the same there, which the call alone does not show."""
    if storage := params.get("storage"):
        required.require(f"/storage/{storage}", _ALLOCATE_SPACE)
    required.complete = False


def _check_clone(required: CodeNeeds, params: Mapping[str, str], _is_vm: bool) -> None:
    """`params` may include the cards and disks of the original."""
    _check_target_storage(required, params, _is_vm)
    for option, value in params.items():
        if values.bus_of(option) == "net":
            _check_bridge(required, value)
        elif "storage" not in params and values.is_disk(option, value):
            required.require(f"/storage/{values.volume_of(value).partition(':')[0]}", _ALLOCATE_SPACE)


def _check_deleted_volume(required: CodeNeeds, params: Mapping[str, str], _is_vm: bool) -> None:
    storage, volume = params.get("storage", "-"), params.get("volume", "")
    name = volume.rpartition(":")[2] if volume.startswith(f"{storage}:") else volume
    guest = owner(f"{storage}:{name}")
    if _BACKUP.search(name) and guest is not None:
        required.require(f"/storage/{storage}", _ALLOCATE_SPACE)
        required.require(f"/vms/{guest}", "VM.Backup")
    else:
        required.require(f"/storage/{storage}", "Datastore.Allocate")


def _check_backup(required: CodeNeeds, params: Mapping[str, str], _is_vm: bool) -> None:
    required.require(f"/storage/{params.get('storage', 'local')}", _ALLOCATE_SPACE)
    for vmid in split_list(params.get("vmid", "")):
        required.require(f"/vms/{vmid}", "VM.Backup")
    required.complete = False


def _check_shown_pool(required: CodeNeeds, params: Mapping[str, str], _is_vm: bool) -> None:
    """The list leaves out what may not be seen."""
    if pool := params.get("poolid"):
        required.require(f"/pool/{pool}", "Pool.Audit")


def _check_pool(required: CodeNeeds, params: Mapping[str, str], _is_vm: bool) -> None:
    """What joins or leaves a pool changes who has privileges on it."""
    for vmid in split_list(params.get("vms", "")):
        required.require(f"/vms/{vmid}", "Permissions.Modify", "VM.Allocate", any_of=True)
    for storage in split_list(params.get("storage", "")):
        required.require(f"/storage/{storage}", "Permissions.Modify", "Datastore.Allocate", any_of=True)


_Check = Callable[[CodeNeeds, Mapping[str, str], bool], None]
_GUEST: Final = "/nodes/{node}/{kind}"
_CHECKS: Final[Mapping[str, _Check]] = {
    f"POST {_GUEST}": _check_create,
    f"PUT {_GUEST}/{{vmid}}/config": _check_config,
    f"POST {_GUEST}/{{vmid}}/config": _check_config,
    f"POST {_GUEST}/{{vmid}}/clone": _check_clone,
    f"POST {_GUEST}/{{vmid}}/move_disk": _check_target_storage,
    f"POST {_GUEST}/{{vmid}}/move_volume": _check_target_storage,
    "DELETE /nodes/{node}/storage/{storage}/content/{volume}": _check_deleted_volume,
    "POST /nodes/{node}/vzdump": _check_backup,
    "GET /pools": _check_shown_pool,
    "PUT /pools": _check_pool,
    "PUT /pools/{poolid}": _check_pool,
}


def joined_pool(params: Mapping[str, Any]) -> dict[str, str]:
    """The guest that a call creates in a pool, and that pool: from then on it has the pool's privileges."""
    new, pool = params.get("newid") or params.get("vmid"), params.get("pool")
    return {f"/vms/{new}": f"/pool/{pool}"} if new and pool else {}
