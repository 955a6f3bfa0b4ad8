"""Changing the configuration of guests."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.sim import drives, guest_options
from quorate.sim.create_vm import with_cdrom_alias
from quorate.sim.guest_options import split_list
from quorate.sim.guest_volumes import UNUSED, Log, silent
from quorate.sim.guests import Guest, Kind, Value
from quorate.sim.option_privileges import GuestRights, check_drive_parameters, check_storage_access
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.replication import Replication
from quorate.sim.routing import Call, route
from quorate.sim.tasks import TaskContext
from quorate.sim.update_guest import Change, check_digest, check_protection, config_file_lock

_SECONDS = 0.3
_POLL_SECONDS = 0.25
_REQUIRED = ("hostname", "memory", "rootfs")
_READ_ONLY = ("unprivileged", "arch")
_LIVE_STATE = ("runningmachine", "runningcpu")


@dataclass(slots=True)
class Request:
    """What a call wants to change."""

    settings: dict[str, Value]
    delete: list[str]
    revert: list[str]
    force: bool
    digest: str | None
    skiplock: bool
    log_line: str

    def check(self, guest: Guest) -> None:
        """The state of the guest must allow it."""
        check_digest(guest, self.digest)
        waking = "vmstate" in self.delete and guest.lock == "suspended"
        if not self.skiplock and not waking:
            guest.check_lock()
        self._check_balloon(guest)

    def _check_balloon(self, guest: Guest) -> None:
        if guest.kind == "lxc" or not {"memory", "balloon"} & self.settings.keys():
            return
        wanted = {**guest.effective_config(), **self.settings}
        memory = int(str(wanted.get("memory", 512)).split(",")[0].removeprefix("current="))
        if int(wanted.get("balloon", 0)) > memory:
            raise failure("balloon value too large (must be smaller than assigned memory)")


@route("PUT /nodes/{node}/qemu/{vmid}/config")
async def update_vm(call: Call) -> None:
    await apply_to_vm(call, vm_request(call))


@route("PUT /nodes/{node}/qemu/{vmid}/unlink")
async def unlink(call: Call) -> None:
    """Another way to delete drives."""
    call.params["delete"] = call.params.pop("idlist")
    await apply_to_vm(call, vm_request(call))


async def apply_to_vm(call: Call, request: Request) -> None:
    guest = call.guest("qemu")
    request.check(guest)
    async with config_file_lock(call.world, guest):
        request.check(call.guest("qemu"))  # once more, it may have changed or gone meanwhile
        _change_vm(call, guest, request, silent)


@route("POST /nodes/{node}/qemu/{vmid}/config")
async def update_vm_in_task(call: Call) -> str | None:
    request = vm_request(call)
    guest = call.guest("qemu")
    request.check(guest)

    async def work(context: TaskContext) -> None:
        async with context.config_lock(guest):
            request.check(call.guest("qemu"))
            context.log(request.log_line)
            await context.sleep(_SECONDS)
            _change_vm(call, guest, request, context.log)

    upid = call.start_task("qmconfig", str(guest.vmid), work)
    delay = call.params.get("background_delay")
    return upid if delay is None else await _wait(call, upid, delay)


async def _wait(call: Call, upid: str, seconds: int) -> str | None:
    """Nothing if the task ends well in time, its error if it fails, else its UPID."""
    task = call.world.tasks.find(upid)
    assert task is not None
    until = call.world.clock.now() + seconds
    while task.running and call.world.clock.now() < until:
        await call.world.clock.sleep(_POLL_SECONDS)
    if task.running:
        return upid
    if task.failed and not str(task.exitstatus).startswith("WARNINGS"):
        raise failure(f"failed to update VM {call.vmid}: {task.exitstatus}")
    return None


def vm_request(call: Call) -> Request:
    """The change a call asks for, after all checks that need no look at the VM."""
    world, vmid, params = call.world, call.vmid, call.params
    if params.get("skiplock"):
        call.root_only("skiplock")
    guest_options.check_encoded_ssh_keys(params.get("sshkeys"))
    given = guest_options.settings_of(params)
    if not given and not params.get("delete") and not params.get("revert"):
        raise failure("no options specified")
    log_line = _log_line(call, given)
    settings = with_cdrom_alias(given)
    revert = _checked_revert(call, "qemu", settings)
    delete = _checked_delete(call, "qemu", settings, revert)
    check_drive_parameters(call, settings)
    _check_replication(call, "qemu", settings)
    for key in settings:
        settings[key] = guest_options.complete(world, "qemu", vmid, key, settings[key])
    rights = GuestRights(call, vmid)
    rights.check_vm_options(delete)
    rights.check_vm_options(settings)
    check_storage_access(call, vmid, settings)
    rights.check_bridges("qemu", settings)
    return Request(
        settings,
        delete,
        revert,
        bool(params.get("force")),
        params.get("digest"),
        bool(params.get("skiplock")),
        log_line,
    )


def _log_line(call: Call, given: dict[str, Value]) -> str:
    shown: dict[str, object] = {**given}
    shown |= {key: call.params[key] for key in ("delete", "revert") if key in call.params}
    if "cipassword" in shown:
        shown["cipassword"] = "<hidden>"
    return f"update VM {call.vmid}: " + " ".join(f"-{key} {shown[key]}" for key in sorted(shown))


def _checked_revert(call: Call, kind: Kind, settings: dict[str, Value]) -> list[str]:
    revert = split_list(call.params.get("revert"))
    for key in revert:
        if not guest_options.option_exists(call.world, kind, key):
            raise bad_parameters({"revert": f"unknown option '{key}'"})
        if key in settings and kind == "qemu":
            raise bad_parameters({"delete": f"you can't use '-{key}' and -revert {key}' at the same time"})
        if key in settings:
            raise bad_parameters({"revert": f"you can't use '-{key}' and '-revert {key}' at the same time"})
    return revert


def _checked_delete(call: Call, kind: Kind, settings: dict[str, Value], revert: list[str]) -> list[str]:
    delete = ["ide2" if key == "cdrom" and kind == "qemu" else key for key in split_list(call.params.get("delete"))]
    for key in delete:
        known = guest_options.option_exists(call.world, kind, key)
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
    """A replicated guest takes only disks that can be replicated as well, or need not be."""
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
    rights = GuestRights(call, guest.vmid)
    change = Change(call.world, guest, log)
    delete = list(request.delete)
    if "vmstate" in delete:  # the saved state goes, and with it what belongs to it
        delete += [key for key in ("lock", *_LIVE_STATE) if key in guest.config]
    for key in request.revert:
        change.revert(key)
    for key in delete:
        _check_vm_delete(guest, rights, key)
        change.delete(key, force=request.force)
    for key, value in sorted(request.settings.items(), key=lambda item: item[0] == "boot"):
        _check_vm_set(guest, rights, key, value)
        change.set(key, value)
    change.settle()


def _check_vm_delete(guest: Guest, rights: GuestRights, key: str) -> None:
    value = guest.config.get(key, guest.pending.get(key))
    if value is None:
        return
    if UNUSED.fullmatch(key):
        check_protection(guest.config, f"can't remove unused disk '{value}'")
        rights.require("VM.Config.Disk")
    elif key == "vmstate":
        check_protection(guest.config, f"can't remove vmstate '{value}'")
    elif drives.is_drive("qemu", key):
        check_protection(guest.config, f"can't remove drive '{key}'")
        rights.check_drive(key, str(value))
    elif key == "tags":
        rights.check_tags(value, "")
    else:
        rights.check_vm_devices({key: value})
        rights.check_bridges("qemu", {key: value})


def _check_vm_set(guest: Guest, rights: GuestRights, key: str, value: Value) -> None:
    before = guest.config.get(key)
    if key == "tags":
        rights.check_tags(before, value)
        return
    for text in (before, value):
        if text is not None and drives.is_drive("qemu", key):
            rights.check_drive(key, str(text))
        elif text is not None:
            rights.check_vm_devices({key: text})
    if before is not None:
        rights.check_bridges("qemu", {key: before})
    if key == "tpmstate0" and before is not None:
        _keep_tpm_version(rights.call, str(before), str(value))


def _keep_tpm_version(call: Call, before: str, after: str) -> None:
    old, new = (drives.parse(call.world, "qemu", "tpmstate0", text) for text in (before, after))
    if old["file"] == new["file"] and old.get("version", "v1.2") != new.get("version", "v1.2"):
        raise failure("cannot change TPM state version after creation")


@route("PUT /nodes/{node}/lxc/{vmid}/config")
async def update_container(call: Call) -> None:
    request = _container_request(call)
    guest = call.guest("lxc")
    async with config_file_lock(call.world, guest):
        call.guest("lxc").check_lock()
        check_digest(guest, request.digest)
        _change_container(call, guest, request)


def _container_request(call: Call) -> Request:
    world, vmid, params = call.world, call.vmid, call.params
    settings = guest_options.settings_of(params)
    if not settings and "delete" not in params and "revert" not in params:
        raise failure("no options specified")
    guest = call.find_guest("lxc")
    config: dict[str, Value] = {} if guest is None else guest.config
    rights = GuestRights(call, vmid)
    gone = [*split_list(params.get("delete")), *split_list(params.get("revert"))]
    unprivileged, features = bool(config.get("unprivileged")), str(config.get("features", ""))
    rights.check_container_options({}, gone, unprivileged=unprivileged)
    revert = _checked_revert(call, "lxc", settings)
    delete = _checked_delete(call, "lxc", settings, revert)
    rights.check_container_options(settings, unprivileged=unprivileged, features=features)
    rights.check_bridges("lxc", settings)
    _check_replication(call, "lxc", settings)
    for key in settings:
        settings[key] = guest_options.complete(world, "lxc", vmid, key, settings[key])
    return Request(settings, delete, revert, False, params.get("digest"), False, "")


def _change_container(call: Call, guest: Guest, request: Request) -> None:
    change = Change(call.world, guest)
    for key in request.revert:
        change.revert(key)
    for key in request.delete:
        if key in _REQUIRED:
            raise failure(f"unable to delete required option '{key}'")
        if UNUSED.fullmatch(key) or drives.is_drive("lxc", key):
            check_protection(guest.config, f"can't remove CT {guest.vmid} drive '{key}'")
        change.delete(key, force=False)
    for key, value in request.settings.items():
        if key in _READ_ONLY:
            raise failure(f"unable to modify read-only option: '{key}'")
        if key == "tags":
            GuestRights(call, guest.vmid).check_tags(guest.config.get(key), value)
        change.set(key, value)
    change.settle()
