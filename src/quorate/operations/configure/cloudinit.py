"""Cloud-init of VMs: user, password, keys, addresses, and whether the guest has them yet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.command_secrets import HIDDEN
from quorate.hints import (
    CLOUDINIT_SET,
    DISK_CHANGE,
    GUEST_CONFIGURE,
    GUEST_POWER,
    NAMED,
    NIC_SET,
    Advice,
    Sentence,
    either,
)
from quorate.operations.config_change import (
    Config,
    ConfigEdit,
    first_free,
    is_set,
    number_of,
    read_config,
    write_config,
)
from quorate.operations.configure.nics import address_changes
from quorate.operations.exemptions import CLOUDINIT_DRIVE
from quorate.operations.placement import pick_storage
from quorate.operations.plan import Call, Plan, guest_call
from quorate.operations.preconditions import storages_on
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.problems import BadArgument, Conflict, NotFound
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest

REGENERATE = "VM.Config.Cloudinit"
SETTINGS = ("ciuser", "cipassword", "ciupgrade", "cicustom", "citype", "nameserver", "searchdomain")
_SECRET_LINE = re.compile(r"^(\s*(?:- )?[\w-]*(?:passw|secret|token|private)[\w-]*\s*:\s*)\S.*$", re.I | re.M)
_HASH = re.compile(r"\$(?:\d|2[aby]|y|gy|7)\$[^\s'\"]+")


@operation(
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
    found = await _vm(pve, guest)
    config: Config = await found.get("config")
    drive = _drive(config)
    rows = await found.get("cloudinit") if drive else []
    answer: dict[str, Any] = {
        "vmid": found.vmid,
        "name": found.row.name,
        "drive": f"{drive}: {config[drive]}" if drive else "none",
        "settings": _settings(config),
        "ssh_keys": values.decode_keys(str(config.get("sshkeys", ""))),
        "not_on_drive_yet": _pending_on_drive(rows),
    }
    if dump is not None:
        answer[dump] = without_secrets(str(await found.get("cloudinit/dump", type=dump)))
    if answer["not_on_drive_yet"]:
        answer["next"] = Advice(
            "Write the drive again, then reboot the guest", CLOUDINIT_SET(guest=found.vmid, regenerate=True)
        )
    elif not drive:
        answer["next"] = Advice("The first setting creates the drive", CLOUDINIT_SET(guest=found.vmid))
    return answer


@operation(
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
    found = await _vm(pve, guest)
    config = await read_config(found)
    wanted: dict[str, Any] = {
        "ciuser": user,
        "cipassword": password,
        "nameserver": nameserver,
        "searchdomain": searchdomain,
        "ciupgrade": None if upgrade is None else int(upgrade),
        "cicustom": custom,
        **_keys(config, ssh_keys, replace=replace_keys),
        **_addresses(found, config, nic, ip=ip, gateway=gateway, ip6=ip6, gateway6=gateway6),
    }
    wanted = {key: value for key, value in wanted.items() if value is not None}
    removed = [key for key, value in wanted.items() if value == "" and key in config]
    changed = {key: value for key, value in wanted.items() if value != "" and not is_set(key, value, config)}
    drive = _drive(config)
    if not wanted and regenerate is None and drive:
        raise BadArgument(
            "No setting was specified",
            next_step=either(
                Advice("Give one, such as {user} or {ssh_keys}", user=NAMED, ssh_keys=NAMED),
                Advice("{regenerate}", regenerate=True),
            ),
        )
    made = {} if drive else await _new_drive(pve, found, config, storage)
    return await _plan(pve, found, config, {**changed, **made}, removed, made, regenerate)


async def _plan(
    pve: Cluster,
    guest: Guest,
    config: Config,
    changed: dict[str, Any],
    removed: list[str],
    made: dict[str, str],
    regenerate: bool | None,
) -> Plan:
    calls: list[Call] = []
    touched = [*changed, *removed]
    running = await guest.status() == "running"
    if touched:
        summary = f"Set {', '.join(touched)} of {guest}"
        calls.append(write_config(guest, config, summary, ConfigEdit(changed, removed), slow=bool(made)))
    warnings: list[str] = []
    if regenerate or (regenerate is None and running and touched and not made):
        if await pve.may(f"/vms/{guest.vmid}", REGENERATE):
            summary = f"Write the cloud-init drive of {guest} again"
            waiting = touched or values.pending_changes(await guest.get("cloudinit") or [])
            settled = _drive_check(guest) if waiting else None  # a drive without pending values looks as before
            calls.append(guest_call(guest, "PUT", "cloudinit", summary, settled=settled))
        else:
            warnings.append(
                f"The drive is not written again, which needs {REGENERATE} on /vms/{guest.vmid}; "
                "the guest gets the settings at its next start from PVE"
            )
    unchanged = () if touched else (f"{guest} already has these settings",)
    facts = {"drive": f"{next(iter(made))} on {next(iter(made.values())).partition(':')[0]}"} if made else {}
    return Plan(
        f"Set cloud-init of {guest}",
        tuple(calls),
        unchanged,
        facts=facts,
        warnings=tuple(warnings),
        after=_restart_report(guest, running=running),
    )


async def _vm(pve: Cluster, ref: int | str) -> Guest:
    found = await pve.guest(ref)
    if not found.is_vm:
        raise BadArgument(
            f"{found} is a container, which has no cloud-init",
            next_step=Advice(
                "Set its addresses on the network card, its name and DNS as options", NIC_SET, GUEST_CONFIGURE
            ),
        )
    return found


def _drive(config: Mapping[str, Any]) -> str | None:
    drives = [key for key in sorted(config) if values.bus_of(key) in values.BOOTABLE]
    return next((key for key in drives if values.is_cloudinit(str(config[key]))), None)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    shown = {key: config[key] for key in SETTINGS if key in config}
    return shown | {key: config[key] for key in sorted(config) if values.bus_of(key) == "ipconfig"}


def _pending_on_drive(rows: list[dict[str, Any]]) -> dict[str, str]:
    waiting = values.pending_changes(rows)
    if "sshkeys" in waiting:
        waiting["sshkeys"] = ", ".join(values.decode_keys(waiting["sshkeys"]))
    return {key: HIDDEN if key == "cipassword" else value for key, value in waiting.items()}


def without_secrets(text: str) -> str:
    """A file of the drive without passwords, their hashes and tokens; the pipeline hides private keys everywhere."""
    return _HASH.sub(HIDDEN, _SECRET_LINE.sub(rf"\1{HIDDEN}", text))


# -- settings ----------------------------------------------------------------------------------------------------------


def _keys(config: Config, given: list[str] | str | None, *, replace: bool) -> dict[str, str]:
    """Keys as lines of text or as a list, one or several, even if already encoded; each is kept once."""
    if given is None:
        if replace:
            raise BadArgument(
                Sentence("{replace_keys} needs {ssh_keys}", replace_keys=NAMED, ssh_keys=NAMED),
                next_step=Advice("With {ssh_keys} it removes all keys", ssh_keys=[]),
            )
        return {}
    text = given if isinstance(given, str) else "\n".join(given)
    if "PRIVATE KEY" in text:
        raise BadArgument(
            "That is a private key, which belongs to its owner alone",
            next_step="Give the public one, from the .pub file",
        )
    if re.match(r"^\S*%20\S*$", text.strip()):
        text = "\n".join(values.decode_keys(text.strip()))
    fresh = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    for line in fresh:
        if not values.is_ssh_key(line):
            raise BadArgument(
                f"{line[:30]!r} … is not an SSH public key", next_step="A key looks like ssh-ed25519 AAAA… comment"
            )
    if not fresh:
        return {"sshkeys": ""} if replace or given == "" else {}
    old = [] if replace else values.decode_keys(str(config.get("sshkeys", "")))
    keys = list({_blob(line): line for line in [*old, *fresh]}.values())
    if keys == values.decode_keys(str(config.get("sshkeys", ""))):
        return {"sshkeys": str(config["sshkeys"])}
    return {"sshkeys": values.encode_keys(keys)}


def _blob(line: str) -> str:
    """The key without its comment, by which keys are compared."""
    return next((word for word in line.split() if word.startswith("AAAA")), line)


def _addresses(guest: Guest, config: Config, nic: int | str, **given: str | None) -> dict[str, str]:
    if all(value is None for value in given.values()):
        return {}
    number = number_of(nic, "net")
    if f"net{number}" not in config:
        raise NotFound(f"{guest} has no net{number}", next_step=Advice("Add it first", NIC_SET(guest=guest.vmid)))
    key = f"ipconfig{number}"
    text = str(config.get(key, ""))
    changes = address_changes(values.parse(text), **given)
    return {key: values.merge(text, {name: value or None for name, value in changes.items()})}


async def _new_drive(pve: Cluster, guest: Guest, config: Config, storage: str | None) -> dict[str, str]:
    """The drive on the storage of the boot disk, on a bus that the guest can read."""
    slot = _free_place(config)
    if slot is None:
        raise Conflict(
            f"{guest} has no free slot for the cloud-init drive",
            next_step=Advice("Free one", DISK_CHANGE(guest=guest.vmid, action="detach")),
        )
    boots = values.boot_disk(config, is_vm=True)
    boot_storage = values.volume_of(str(config.get(boots or "", ""))).partition(":")[0]
    here = await storages_on(pve, guest.row.node, [boot_storage] if boot_storage else ())
    fits = boot_storage in here and here[boot_storage].holds("images")
    row = await pick_storage(pve, guest.row.node, "images", wanted=storage or (boot_storage if fits else None))
    return {slot: f"{row.storage}:cloudinit"}


def _free_place(config: Config) -> str | None:
    """ide2 by custom; on q35 a SCSI slot if the disks are there: small cloud kernels have no driver for its IDE."""
    scsi = first_free(config, "scsi", 31)
    if "q35" in str(config.get("machine", "")) and any(values.bus_of(key) == "scsi" for key in config):
        return scsi
    return next((slot for slot in ("ide2", "ide0", "ide1", "ide3") if slot not in config), scsi)


# -- the result -------------------------------------------------------------------------------------------------


def _drive_check(guest: Guest) -> Any:
    """The configuration does not show what is written to the drive: PVE lists only what is not on it yet."""

    async def look() -> bool:
        return not values.pending_changes(await guest.get("cloudinit") or [])

    return look


def _restart_report(guest: Guest, *, running: bool) -> Any:
    async def look() -> Mapping[str, Any]:
        waiting = values.pending_changes(await guest.get("pending"))
        late = {key: value for key, value in waiting.items() if values.bus_of(key) in values.BOOTABLE}
        if not running:
            return {"next": Advice("The guest reads it when it starts", GUEST_POWER(guest=guest.vmid, action="start"))}
        facts: dict[str, Any] = {"reboot_needed": True}
        if late:
            facts["waits_for_restart"] = late
        left = _pending_on_drive(await guest.get("cloudinit") or [])
        if left:
            facts["not_on_drive_yet"] = sorted(left)
        return {**facts, "next": Advice("cloud-init reads it at boot", GUEST_POWER(guest=guest.vmid, action="reboot"))}

    return look
