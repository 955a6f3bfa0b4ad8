"""Cloud-init of VMs: user, password, keys, addresses, and whether the guest has them yet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence, either, tools
from quorate.operations.exemptions import CLOUDINIT_DRIVE
from quorate.operations.placement import pick_storage
from quorate.operations.plan import Call, Plan, guest_call
from quorate.operations.preconditions import storages_on
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.problems import BadArgument, Conflict, NotFound
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.secret import HIDDEN
from quorate.tools.guest_options import Config, ConfigEdit, first_free, is_set, number_of, read_config, write_config
from quorate.tools.nics import address_changes

REGENERATE = "VM.Config.Cloudinit"
SETTINGS = ("ciuser", "cipassword", "ciupgrade", "cicustom", "citype", "nameserver", "searchdomain")
_SECRET_LINE = re.compile(r"^(\s*(?:- )?[\w-]*(?:passw|secret|token|private)[\w-]*\s*:\s*)\S.*$", re.I | re.M)
_HASH = re.compile(r"\$(?:\d|2[aby]|y|gy|7)\$[^\s'\"]+")


@operation(
    toolset="configure",
    risk=Risk.READ,
    search_words="cloud-init settings user ssh key ip dns waiting show",
    example="guest=debian-13-cloud",
)
async def cloudinit_get(
    pve: Cluster,
    guest: GuestRef,
    dump: Annotated[Literal["user", "network", "meta"], Meta(description="Show this file of the drive")] | None = None,
) -> dict[str, Any]:
    """Cloud-init settings of a VM, and those that its drive does not have yet."""
    vm = await _vm(pve, guest)
    config: Config = await vm.get("config")
    drive = _drive(config)
    rows = await vm.get("cloudinit") if drive else []
    answer: dict[str, Any] = {
        "vmid": vm.vmid,
        "name": vm.row.name,
        "drive": f"{drive}: {config[drive]}" if drive else "none",
        "settings": {
            **{key: config[key] for key in SETTINGS if key in config},
            **{key: config[key] for key in sorted(config) if values.bus_of(key) == "ipconfig"},
        },
        "ssh_keys": values.decode_keys(str(config.get("sshkeys", ""))),
        "not_on_drive_yet": _pending_on_drive(rows),
    }
    if dump is not None:
        answer[dump] = without_secrets(str(await vm.get("cloudinit/dump", type=dump)))
    if answer["not_on_drive_yet"]:
        answer["next"] = Advice(
            "Write the drive again, then reboot the guest", tools.cloudinit_set(guest=vm.vmid, regenerate=True)
        )
    elif not drive:
        answer["next"] = Advice("The first setting creates the drive", tools.cloudinit_set(guest=vm.vmid))
    return answer


@operation(
    toolset="configure",
    risk=Risk.CHANGE,
    idempotent=True,
    exemptions=(CLOUDINIT_DRIVE,),
    search_words="cloud image ssh key user password static ip dns gateway first boot userdata",
    example="guest=debian-13-cloud user=admin",
)
async def cloudinit_set(
    pve: Cluster,
    guest: GuestRef,
    user: str | None = None,
    password: str | None = None,
    ssh_keys: Annotated[list[str] | str, Meta(description="Public keys to add")] | None = None,
    replace_keys: Annotated[bool, Meta(description="Drop the keys that are there")] = False,
    nic: Annotated[int | str, Meta(description="Card that the addresses are for")] = 0,
    ip: Annotated[str, Meta(description="10.0.0.5/24 or dhcp")] | None = None,
    gateway: str | None = None,
    ip6: Annotated[str, Meta(description="CIDR, auto or dhcp")] | None = None,
    gateway6: str | None = None,
    nameserver: str | None = None,
    searchdomain: str | None = None,
    upgrade: Annotated[bool, Meta(description="Upgrade packages at first boot")] | None = None,
    custom: Annotated[str, Meta(description="Snippets: user=local:snippets/u.yml,network=…")] | None = None,
    storage: Annotated[str, Meta(description="For the drive, if it has to be created")] | None = None,
    regenerate: Annotated[bool, Meta(description="Write the drive again; default: if the VM runs")] | None = None,
) -> Plan:
    """Set cloud-init of a VM; the drive is created if missing. An empty string removes a setting."""
    vm = await _vm(pve, guest)
    config = await read_config(vm)
    settings: dict[str, Any] = {
        "ciuser": user,
        "cipassword": password,
        "nameserver": nameserver,
        "searchdomain": searchdomain,
        "ciupgrade": None if upgrade is None else int(upgrade),
        "cicustom": custom,
        **_keys(config, ssh_keys, replace=replace_keys),
        **_addresses(vm, config, nic, ip=ip, gateway=gateway, ip6=ip6, gateway6=gateway6),
    }
    settings = {key: value for key, value in settings.items() if value is not None}
    removed = [key for key, value in settings.items() if value == "" and key in config]
    changed = {key: value for key, value in settings.items() if value != "" and not is_set(key, value, config)}
    drive = _drive(config)
    if not settings and regenerate is None and drive:
        raise BadArgument(
            "No setting was specified",
            next_step=either(
                Advice("Give one, such as {user} or {ssh_keys}", user=NAMED, ssh_keys=NAMED),
                Advice("{regenerate}", regenerate=True),
            ),
        )
    new_drive = {} if drive else await _new_drive(pve, vm, config, storage)
    return await _plan(pve, vm, config, {**changed, **new_drive}, removed, new_drive, regenerate)


async def _plan(
    pve: Cluster,
    guest: Guest,
    config: Config,
    changed: dict[str, Any],
    removed: list[str],
    new_drive: dict[str, str],
    regenerate: bool | None,
) -> Plan:
    calls: list[Call] = []
    touched = [*changed, *removed]
    running = await guest.status() == "running"
    if touched:
        summary = f"Set {', '.join(touched)} of {guest}"
        calls.append(write_config(guest, config, summary, ConfigEdit(changed, removed), slow=bool(new_drive)))
    warnings: list[str] = []
    if regenerate or (regenerate is None and running and touched and not new_drive):
        if await pve.may(f"/vms/{guest.vmid}", REGENERATE):
            summary = f"Write the cloud-init drive of {guest} again"
            waiting = touched or values.pending_changes(await guest.get("cloudinit") or [])
            # A drive without pending values looks as before.
            settled = partial(_is_drive_current, guest) if waiting else None
            calls.append(guest_call(guest, "PUT", "cloudinit", summary, settled=settled))
        else:
            warnings.append(
                f"The drive is not written again, which needs {REGENERATE} on /vms/{guest.vmid}; "
                "the guest gets the settings at its next start from PVE"
            )
    unchanged = () if touched else (f"{guest} already has these settings",)
    facts = (
        {"drive": f"{next(iter(new_drive))} on {next(iter(new_drive.values())).partition(':')[0]}"} if new_drive else {}
    )
    return Plan(
        f"Set cloud-init of {guest}",
        tuple(calls),
        unchanged,
        facts=facts,
        warnings=tuple(warnings),
        after=partial(_report_restart, guest, running=running),
    )


async def _vm(pve: Cluster, ref: int | str) -> Guest:
    target = await pve.guest(ref)
    if not target.is_vm:
        raise BadArgument(
            f"{target} is a container, which has no cloud-init",
            next_step=Advice(
                "Set its addresses on the network card, its name and DNS as options",
                tools.nic_set,
                tools.guest_configure,
            ),
        )
    return target


def _drive(config: Mapping[str, Any]) -> str | None:
    drives = [key for key in sorted(config) if values.bus_of(key) in values.BOOTABLE]
    return next((key for key in drives if values.is_cloudinit(str(config[key]))), None)


def _pending_on_drive(rows: list[dict[str, Any]]) -> dict[str, str]:
    waiting = values.pending_changes(rows)
    if "sshkeys" in waiting:
        waiting["sshkeys"] = ", ".join(values.decode_keys(waiting["sshkeys"]))
    return waiting


def without_secrets(text: str) -> str:
    """A file of the drive without passwords, their hashes and tokens; the pipeline hides private keys everywhere."""
    return _HASH.sub(HIDDEN, _SECRET_LINE.sub(rf"\1{HIDDEN}", text))


# -- settings ----------------------------------------------------------------------------------------------------------


def _keys(config: Config, ssh_keys: list[str] | str | None, *, replace: bool) -> dict[str, str]:
    """Keys as lines of text or as a list, one or several, even if already encoded; each is kept once."""
    if ssh_keys is None:
        if replace:
            raise BadArgument(
                Sentence("{replace_keys} needs {ssh_keys}", replace_keys=NAMED, ssh_keys=NAMED),
                next_step=Advice("With {ssh_keys} it removes all keys", ssh_keys=[]),
            )
        return {}
    text = ssh_keys if isinstance(ssh_keys, str) else "\n".join(ssh_keys)
    if "PRIVATE KEY" in text:
        raise BadArgument(
            "That is a private key, which belongs to its owner alone",
            next_step="Give the public one, from the .pub file",
        )
    if re.match(r"^\S*%20\S*$", text.strip()):
        text = "\n".join(values.decode_keys(text.strip()))
    added = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    for line in added:
        if not values.is_ssh_key(line):
            raise BadArgument(
                f"{line[:30]!r} … is not an SSH public key", next_step="A key looks like ssh-ed25519 AAAA… comment"
            )
    if not added:
        return {"sshkeys": ""} if replace or ssh_keys == "" else {}
    stored = [] if replace else values.decode_keys(str(config.get("sshkeys", "")))
    keys = list({_blob(line): line for line in [*stored, *added]}.values())
    if keys == values.decode_keys(str(config.get("sshkeys", ""))):
        return {"sshkeys": str(config["sshkeys"])}
    return {"sshkeys": values.encode_keys(keys)}


def _blob(line: str) -> str:
    """The key without its comment, by which keys are compared."""
    return next((word for word in line.split() if word.startswith("AAAA")), line)


def _addresses(guest: Guest, config: Config, nic: int | str, **addresses: str | None) -> dict[str, str]:
    if all(value is None for value in addresses.values()):
        return {}
    number = number_of(nic, "net")
    if f"net{number}" not in config:
        raise NotFound(f"{guest} has no net{number}", next_step=Advice("Add it first", tools.nic_set(guest=guest.vmid)))
    key = f"ipconfig{number}"
    text = str(config.get(key, ""))
    changes = address_changes(values.parse(text), **addresses)
    return {key: values.merge(text, {name: value or None for name, value in changes.items()})}


async def _new_drive(pve: Cluster, guest: Guest, config: Config, storage: str | None) -> dict[str, str]:
    """The drive on the storage of the boot disk, on a bus that the guest can read."""
    slot = _free_place(config)
    if slot is None:
        raise Conflict(
            f"{guest} has no free slot for the cloud-init drive",
            next_step=Advice("Free one", tools.disk_change(guest=guest.vmid, action="detach")),
        )
    boot_disk = values.boot_disk(config, is_vm=True)
    boot_storage = values.volume_of(str(config.get(boot_disk or "", ""))).partition(":")[0]
    here = await storages_on(pve, guest.row.node, [boot_storage] if boot_storage else ())
    fits = boot_storage in here and here[boot_storage].holds("images")
    row = await pick_storage(pve, guest.row.node, "images", requested=storage or (boot_storage if fits else None))
    return {slot: f"{row.storage}:cloudinit"}


def _free_place(config: Config) -> str | None:
    """ide2 by custom; on q35 a SCSI slot if the disks are there: small cloud kernels have no driver for its IDE."""
    scsi = first_free(config, "scsi", 31)
    if "q35" in str(config.get("machine", "")) and any(values.bus_of(key) == "scsi" for key in config):
        return scsi
    return next((slot for slot in ("ide2", "ide0", "ide1", "ide3") if slot not in config), scsi)


# -- the result -------------------------------------------------------------------------------------------------


async def _is_drive_current(guest: Guest) -> bool:
    """The configuration does not show what is written to the drive: PVE lists only what is not on it yet."""
    return not values.pending_changes(await guest.get("cloudinit") or [])


async def _report_restart(guest: Guest, *, running: bool) -> Mapping[str, Any]:
    waiting = values.pending_changes(await guest.get("pending"))
    late = {key: value for key, value in waiting.items() if values.bus_of(key) in values.BOOTABLE}
    if not running:
        start = tools.guest_power(guest=guest.vmid, action="start")
        return {"next": Advice("The guest reads it when it starts", start)}
    left = _pending_on_drive(await guest.get("cloudinit") or [])
    return {
        "reboot_needed": True,
        **({"waits_for_restart": late} if late else {}),
        **({"not_on_drive_yet": sorted(left)} if left else {}),
        "next": Advice("cloud-init reads it at boot", tools.guest_power(guest=guest.vmid, action="reboot")),
    }
