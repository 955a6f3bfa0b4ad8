"""The configuration of guests: reading and changing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pve_simulator.guests import cloudinit, drives, options
from pve_simulator.guests.create_vm import check_display, check_machine, is_windows, pinned_machine, with_cdrom_alias
from pve_simulator.guests.drives import is_unused_key
from pve_simulator.guests.guest import Guest, Kind, Snapshot, Value
from pve_simulator.guests.guest_volumes import Log, silent
from pve_simulator.guests.option_privileges import GuestPrivileges, check_drive_parameters, check_storage_access
from pve_simulator.guests.start_requirements import write_cloudinit
from pve_simulator.guests.status import SAVED_STATE
from pve_simulator.guests.update import Change, check_digest, check_protection
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.http.routing import GUEST, LXC, QEMU, Call, route
from pve_simulator.nodes.tasks import TaskContext, config_lock
from pve_simulator.routes.nodes.settings import Settings
from pve_simulator.routes.replication import Replication

_MASKED = "**********"


@route(f"GET {GUEST}/config")
def config(call: Call) -> dict[str, Any]:
    guest = call.guest()
    snapname = call.params.get("snapshot")
    if snapname is not None:
        if call.params.get("current"):
            both = "cannot use 'snapshot' parameter with 'current'"
            raise bad_parameters({"snapshot": both, "current": both})
        return shown_snapshot(existing_snapshot(guest, snapname)) | {"digest": guest.digest()}
    shown = guest.config if call.params.get("current") else guest.effective_config()
    return {**_mask_password(shown), "digest": guest.digest()}


def _mask_password(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "cipassword": _MASKED} if "cipassword" in config else dict(config)


@route(f"GET {GUEST}/pending")
def pending_changes(call: Call) -> list[dict[str, Any]]:
    guest = call.guest()
    now, next_ = _mask_password(guest.config), _mask_password(guest.pending)
    rows: list[dict[str, Any]] = []
    for key in (*now, *(key for key in next_ if key not in now)):
        row: dict[str, Any] = {"key": key}
        if key in now:
            row["value"] = now[key]
        if key in next_:
            row["pending"] = next_[key]
        if key in guest.pending_delete:
            row["delete"] = guest.pending_delete[key]
        rows.append(row)
    return [*rows, {"key": "digest", "value": guest.digest()}]


def shown_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    shown = {**_mask_password(snapshot.config), "snaptime": snapshot.snaptime}
    shown |= {"description": snapshot.description} if snapshot.description else {}
    return shown | ({"parent": snapshot.parent} if snapshot.parent else {})


def existing_snapshot(guest: Guest, name: str) -> Snapshot:
    return existing(guest.snapshots.get(name), f"snapshot '{name}' does not exist")


_PATH = f"{QEMU}/cloudinit"


@route(f"GET {_PATH}")
def pending(call: Call) -> list[dict[str, Any]]:
    return cloudinit.rows(call.guest())


@route(f"PUT {_PATH}")
async def regenerate(call: Call) -> None:
    """Rewrite the drive with the current settings."""
    guest = call.guest()
    async with config_lock(call.world.clock, guest):
        call.guest().check_lock()
        write_cloudinit(call.world, guest, silent)
        guest.cloudinit = cloudinit.settings(guest.effective_config())


@route(f"GET {_PATH}/dump")
def dump(call: Call) -> str:
    dns = call.world.part(Settings).of(call.node).dns
    return cloudinit.dump(call.world, call.guest(), call.params["type"], dns)


_SECONDS = 0.3
_REQUIRED = frozenset({"memory", "rootfs", "ostype"})


@dataclass(slots=True)
class Request:
    """The requested changes."""

    settings: dict[str, Value]
    delete: list[str]
    revert: list[str]
    force: bool
    digest: str | None
    skiplock: bool
    log_line: str

    def check(self, guest: Guest) -> None:
        """Refuse changes that the guest's state does not allow."""
        check_digest(guest, self.digest)
        waking = "vmstate" in self.delete and guest.lock == "suspended"
        if not self.skiplock and not waking:
            guest.check_lock()
        self._check_balloon(guest)

    def _check_balloon(self, guest: Guest) -> None:
        if guest.kind == "lxc" or not {"memory", "balloon"} & self.settings.keys():
            return
        config = {**guest.effective_config(), **self.settings}
        memory = int(str(config.get("memory", 512)).split(",")[0].removeprefix("current="))
        if int(config.get("balloon", 0)) > memory:
            raise failure("balloon value too large (must be smaller than assigned memory)")


@route(f"PUT {QEMU}/config")
async def update_vm(call: Call) -> None:
    await apply_to_vm(call, vm_request(call))


@route(f"PUT {QEMU}/unlink")
async def unlink(call: Call) -> None:
    """Delete drives, by another endpoint."""
    call.params["delete"] = call.params.pop("idlist")
    await apply_to_vm(call, vm_request(call))


async def apply_to_vm(call: Call, request: Request) -> None:
    guest = call.guest()
    request.check(guest)
    async with config_lock(call.world.clock, guest):
        request.check(call.guest())  # again: it may have changed or disappeared
        _change_vm(call, guest, request, silent)


@route(f"POST {QEMU}/config")
async def update_vm_in_task(call: Call) -> str | None:
    request = vm_request(call)
    guest = call.guest()
    request.check(guest)

    async def work(context: TaskContext) -> None:
        async with context.config_lock(guest):
            request.check(call.guest())
            context.log(request.log_line)
            await context.sleep(_SECONDS)
            _change_vm(call, guest, request, context.log)

    upid = call.start_guest_task("config", work)
    delay = call.params.get("background_delay")
    return upid if delay is None else await call.wait_for(upid, delay, f"failed to update VM {call.vmid}: ")


def vm_request(call: Call) -> Request:
    """The requested change, after all checks that do not depend on the VM."""
    world, vmid, params = call.world, call.vmid, call.params
    if params.get("skiplock"):
        call.root_only("skiplock")
    options.check_cpu_model(world, params.get("cpu"))
    options.check_encoded_ssh_keys(params.get("sshkeys"))
    for name in call.undefined:
        if name != "description" and options.option_exists(world, "qemu", name):  # notes are written apart
            raise failure(f"unable to parse value of '{name}' - got undefined value")
    requested = options.settings_of(params)
    if not requested and not params.get("delete") and not params.get("revert"):
        raise failure("no options specified")
    log_line = _log_line(call, requested)
    settings = with_cdrom_alias(requested)
    revert = _checked_revert(call, "qemu", settings)
    delete = _checked_delete(call, "qemu", settings, revert)
    check_drive_parameters(call, settings)
    _check_replication(call, "qemu", settings)
    for key in settings:
        settings[key] = options.complete(world, "qemu", vmid, key, settings[key])
    privileges = GuestPrivileges(call, vmid)
    privileges.check_vm_options(delete)
    privileges.check_vm_options(settings)
    check_storage_access(call, vmid, settings)
    privileges.check_bridges("qemu", settings)
    force, skiplock = bool(params.get("force")), bool(params.get("skiplock"))
    return Request(settings, delete, revert, force, params.get("digest"), skiplock, log_line)


def _log_line(call: Call, requested: dict[str, Value]) -> str:
    shown: dict[str, object] = {**requested}
    shown |= {key: call.params[key] for key in ("delete", "revert") if key in call.params}
    if "cipassword" in shown:
        shown["cipassword"] = "<hidden>"
    return f"update VM {call.vmid}: " + " ".join(f"-{key} {shown[key]}" for key in sorted(shown))


def _checked_revert(call: Call, kind: Kind, settings: dict[str, Value]) -> list[str]:
    revert = split_list(call.params.get("revert"))
    for key in revert:
        if not options.option_exists(call.world, kind, key):
            raise bad_parameters({"revert": f"unknown option '{key}'"})
        if key in settings and kind == "qemu":
            raise bad_parameters({"delete": f"you can't use '-{key}' and -revert {key}' at the same time"})
        if key in settings:
            raise bad_parameters({"revert": f"you can't use '-{key}' and '-revert {key}' at the same time"})
    return revert


def _checked_delete(call: Call, kind: Kind, settings: dict[str, Value], revert: list[str]) -> list[str]:
    delete = ["ide2" if key == "cdrom" and kind == "qemu" else key for key in split_list(call.params.get("delete"))]
    for key in delete:
        known = options.option_exists(call.world, kind, key)
        if not known and kind == "lxc":
            raise bad_parameters({"delete": f"unknown option '{key}'"})
        if key in settings:
            raise bad_parameters({"delete": f"you can't use '-{key}' and -delete {key}' at the same time"})
        if key in revert and kind == "qemu":
            raise bad_parameters({"revert": f"you can't use '-delete {key}' and -revert {key}' at the same time"})
        if key in revert:
            raise bad_parameters({"delete": f"you can't use '-delete {key}' and '-revert {key}' at the same time"})
        if not known:
            raise bad_parameters({"delete": f"unknown option '{key}'"})
    return delete


def _check_replication(call: Call, kind: Kind, settings: dict[str, Value]) -> None:
    """Refuse disks of a replicated guest that can be neither replicated nor skipped."""
    if not call.world.part(Replication).of_guest(call.vmid):
        return
    for key, value in settings.items():
        if not drives.is_drive(kind, key):
            continue
        drive = drives.parse(call.world, kind, key, str(value))
        volume = drive[drives.volume_key(kind)]
        if drive.get("replicate") == "0" or (kind == "qemu" and drives.is_cdrom(drive)):
            continue
        if ":" not in volume:
            raise failure("cannot add non-managed/pass-through volume to a replicated VM")
        storage = call.world.storages.get(volume.partition(":")[0])
        if storage is not None and not storage.shared and storage.type != "zfspool":
            raise failure("cannot add non-replicatable volume to a replicated VM")


def _change_vm(call: Call, guest: Guest, request: Request, log: Log) -> None:
    privileges = GuestPrivileges(call, guest.vmid)
    change = Change(call.world, guest, log)
    delete = list(request.delete)
    if "vmstate" in delete:  # the saved state goes, with everything that belongs to it
        delete += [key for key in ("lock", *SAVED_STATE[1:]) if key in guest.config]
    for key in request.revert:
        change.revert(key)
    for key in delete:
        _check_vm_delete(guest, privileges, key)
        change.delete(key, force=request.force)
    if is_windows(request.settings) and not is_windows(guest.config) and "machine" not in request.settings:
        request.settings |= pinned_machine(call.world, guest.config)
    for key, value in sorted(request.settings.items(), key=lambda item: item[0] == "boot"):
        _check_vm_set(guest, privileges, key, value)
        if key == "machine":
            check_machine(str(value))
        elif key == "vga":
            check_display(call.world, str(value))
        change.set(key, value)
    change.settle()


def _check_vm_delete(guest: Guest, privileges: GuestPrivileges, key: str) -> None:
    value = guest.config.get(key, guest.pending.get(key))
    if value is None:
        return
    if is_unused_key(key):
        check_protection(guest.config, f"can't remove unused disk '{value}'")
        privileges.require("VM.Config.Disk")
    elif key == "vmstate":
        check_protection(guest.config, f"can't remove vmstate '{value}'")
    elif drives.is_drive("qemu", key):
        check_protection(guest.config, f"can't remove drive '{key}'")
        privileges.check_drive(key, str(value))
    elif key == "tags":
        privileges.check_tags(value, "")
    else:
        privileges.check_vm_devices({key: value})
        privileges.check_bridges("qemu", {key: value})


def _check_vm_set(guest: Guest, privileges: GuestPrivileges, key: str, value: Value) -> None:
    before = guest.config.get(key)
    if key == "tags":
        privileges.check_tags(before, value)
        return
    for text in (before, value):
        if text is not None and drives.is_drive("qemu", key):
            privileges.check_drive(key, str(text))
        elif text is not None:
            privileges.check_vm_devices({key: text})
    if before is not None:
        privileges.check_bridges("qemu", {key: before})
    if key == "tpmstate0" and before is not None:
        _keep_tpm_version(privileges.call, str(before), str(value))


def _keep_tpm_version(call: Call, before: str, after: str) -> None:
    old, new = (drives.parse(call.world, "qemu", "tpmstate0", text) for text in (before, after))
    if old["file"] == new["file"] and old.get("version", "v1.2") != new.get("version", "v1.2"):
        raise failure("cannot change TPM state version after creation")


@route(f"PUT {LXC}/config")
async def update_container(call: Call) -> None:
    request = _container_request(call)
    guest = call.guest()
    async with config_lock(call.world.clock, guest):
        call.guest().check_lock()
        check_digest(guest, request.digest)
        _change_container(call, guest, request)


def _container_request(call: Call) -> Request:
    world, vmid, params = call.world, call.vmid, call.params
    settings = options.settings_of(params)
    if not settings and "delete" not in params and "revert" not in params:
        raise failure("no options specified")
    guest = call.find_guest()
    config: dict[str, Value] = {} if guest is None else guest.config
    privileges = GuestPrivileges(call, vmid)
    gone = [*split_list(params.get("delete")), *split_list(params.get("revert"))]
    unprivileged, features = bool(config.get("unprivileged")), str(config.get("features", ""))
    privileges.check_container_options({}, gone, unprivileged=unprivileged)
    revert = _checked_revert(call, "lxc", settings)
    delete = _checked_delete(call, "lxc", settings, revert)
    privileges.check_container_options(settings, unprivileged=unprivileged, features=features)
    privileges.check_bridges("lxc", settings)
    _check_replication(call, "lxc", settings)
    for key in settings:
        settings[key] = options.complete(world, "lxc", vmid, key, settings[key])
        if key in ("nameserver", "searchdomain"):
            settings[key] = " ".join(split_list(settings[key]))
    return Request(settings, delete, revert, False, params.get("digest"), False, "")


def _check_container_storage(call: Call, key: str, value: str) -> None:
    volume = drives.parse(call.world, "lxc", key, value)["volume"]
    storage = call.world.storages.get(volume.partition(":")[0])
    if ":" in volume and storage is not None and "rootdir" not in storage.content:
        raise failure(f"storage '{storage.id}' does not allow content type 'rootdir' (Container)")


def _change_container(call: Call, guest: Guest, request: Request) -> None:
    change = Change(call.world, guest)
    for key in request.revert:
        change.revert(key)
    for key in request.delete:
        if key not in guest.config and key not in guest.pending:
            continue
        if key in _REQUIRED:
            raise failure(f"unable to delete required option '{key}'")
        if key == "unprivileged":
            raise failure("unable to delete read-only option: 'unprivileged'")
        if is_unused_key(key) or drives.is_drive("lxc", key):
            check_protection(guest.config, f"can't remove CT {guest.vmid} drive '{key}'")
        change.delete(key, force=False)
    for key, value in sorted(request.settings.items()):
        if key == "unprivileged":
            raise failure("unable to modify read-only option: 'unprivileged'")
        if drives.is_drive("lxc", key):
            check_protection(guest.config, f"can't update CT {guest.vmid} drive '{key}'")
            _check_container_storage(call, key, str(value))
        if key == "tags":
            GuestPrivileges(call, guest.vmid).check_tags(guest.config.get(key), value)
        change.set(key, value)
    change.settle()
