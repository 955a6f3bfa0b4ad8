"""Creating a container from a template: checks at once, disks and files in the task."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pve_simulator.guests import drives, options
from pve_simulator.guests.guest import Guest, Value, volume_of_drive
from pve_simulator.guests.guest_volumes import DiskMaker
from pve_simulator.guests.new_guests import (
    addresses_of,
    create_in_task,
    enter_pool,
    os_type_of_template,
    refuse_taken,
    require_new_guest,
    reserve,
    system_of_container,
)
from pve_simulator.guests.option_privileges import GuestPrivileges, check_volume_access
from pve_simulator.guests.start_requirements import warn_about_nesting
from pve_simulator.guests.tool_output import tar_total
from pve_simulator.http.refusals import bad_parameters, failure
from pve_simulator.http.routing import Call
from pve_simulator.nodes.tasks import TaskContext, TaskError
from pve_simulator.storage import volumes
from pve_simulator.storage.oci_images import OciImage
from pve_simulator.storage.storages import FILE_BASED, Volume
from pve_simulator.world import World

_DEFAULT_ROOT_GIB = 4
_SECONDS = 0.6
_SECONDS_TO_UNPACK = 2.0
# Size of an unpacked template relative to its archive.
_UNPACKED = 3


def create_container(call: Call) -> str:
    """Run the synchronous checks, then start the task that creates the container."""
    vmid: int = call.params["vmid"]
    refuse_taken(call.world, vmid)
    settings = _checked_settings(call, vmid)
    guest = reserve(call.world, call.node, "lxc", vmid)
    return create_in_task(call, "vzcreate", guest, lambda context: _make(call, context, guest, settings))


def _checked_settings(call: Call, vmid: int) -> dict[str, Value]:
    params = call.params
    if "ssh-public-keys" in params:
        options.check_ssh_keys(str(params["ssh-public-keys"]))
    pool = params.get("pool")
    privileges = GuestPrivileges(call, vmid, pool)
    unprivileged = bool(params.get("unprivileged", call.world.version_at_least(9, 0)))
    require_new_guest(call, vmid, pool)
    if params.get("start"):
        privileges.require("VM.PowerMgmt")
    if params.get("ha-managed"):
        call.require("/", "Sys.Console")
    if not unprivileged and call.world.version_at_least(9, 0):
        call.require("/", "Sys.Modify")
    settings = options.settings_of(params)
    settings.pop("unprivileged", None)
    for key in [key for key in settings if key.startswith("unused")]:
        del settings[key]  # a new container has no unused volumes
    privileges.check_container_options(settings, unprivileged=unprivileged)
    privileges.check_bridges("lxc", settings)
    _complete_root(call, settings)
    _check_storages(call, settings)
    check_volume_access(call, vmid, params["ostemplate"], content="vztmpl")
    return {**settings, **({"unprivileged": 1} if unprivileged else {})}


def _complete_root(call: Call, settings: dict[str, Value]) -> None:
    """Add a root file system of default size on the given storage (`local` by default)."""
    mounts = [key for key in settings if drives.is_drive("lxc", key)]
    for key in mounts:
        if re.fullmatch(r"\d+(\.\d+)?", str(settings[key])):
            settings[key] = f"{call.params.get('storage', 'local')}:{settings[key]}"
    if "rootfs" not in settings:
        if mounts:
            raise failure("mount points configured, but 'rootfs' not set - aborting")
        settings["rootfs"] = f"{call.params.get('storage', 'local')}:{_DEFAULT_ROOT_GIB}"


def _check_storages(call: Call, settings: Mapping[str, Value]) -> None:
    for key in sorted(settings):
        if drives.is_drive("lxc", key):
            new_disk = drives.new_disk(volume_of_drive(str(settings[key])))
            if new_disk is not None and new_disk[0] is not None:
                storage = volumes.usable_storage(call.world, call.node, new_disk[0])
                if "rootdir" not in storage.content:
                    text = f"storage '{storage.id}' does not support container directories"
                    raise bad_parameters({"storage": text})
                call.require(f"/storage/{storage.id}", "Datastore.AllocateSpace")


async def _make(call: Call, context: TaskContext, guest: Guest, settings: Mapping[str, Value]) -> None:
    world = call.world
    maker = DiskMaker(world, guest.node, guest.vmid, "lxc", context.log)
    await context.sleep(_SECONDS)
    with maker.undo_on_failure(f"unable to create CT {guest.vmid} - "):
        config = {
            key: options.complete(world, "lxc", guest.vmid, key, value)
            for key, value in settings.items()
            if not drives.is_drive("lxc", key)
        }
        mounts = sorted((key for key in settings if drives.is_drive("lxc", key)), key=drives.mount_order)
        for key in mounts:
            config[key] = maker.mount_point(key, str(settings[key]))
        template = await _unpack(call, context, maker.created)
        GuestPrivileges(call, guest.vmid, call.params.get("pool")).check_tags(None, config.get("tags", ""))
    ostype = _os_type(template)
    if template.image is not None:
        config |= _settings_of_image(world, template.image, config)
    guest.config = _add_defaults(guest.vmid, config, ostype)
    guest.system = system_of_container(template.name, str(guest.config["ostype"]))
    if template.image is not None or not template.has_systemd:
        guest.system.systemd = 0
    guest.addresses = addresses_of(world, guest)
    warn_about_nesting(context, guest)
    guest.touch()
    enter_pool(world.access, guest.vmid, call.params.get("pool"))


_UNPACKING = {"gz": "-z ", "bz2": "-j ", "xz": "-J ", "zst": "--zstd "}
_TAR = (
    "tar xpf - {}--totals --one-file-system -p --sparse --numeric-owner --acls --xattrs '--xattrs-include=user.*'"
    " '--xattrs-include=security.capability' '--warning=no-file-ignored' '--warning=no-xattr-write'"
    " -C /var/lib/lxc/{}/rootfs --skip-old-files --anchored --exclude './dev/*'"
)


async def _unpack(call: Call, context: TaskContext, disks: list[Volume]) -> Volume:
    """Unpack the template onto the root file system, and return it."""
    volid = call.params["ostemplate"]
    template = volumes.find(call.world, call.node, volid)
    if template is None:
        context.log(f"volume '{volid}' does not exist")
        raise TaskError(f"volume '{volid}' does not exist")
    storage = call.world.storages[volumes.split_volid(volid)[0]]
    path = volumes.path_of(storage, template.name) if storage.type in FILE_BASED else volid
    context.log("Detected OCI archive" if template.image else f"extracting archive '{path}'")
    await context.sleep(_SECONDS_TO_UNPACK)
    unpacked = template.size * _UNPACKED
    if disks and disks[0].size and unpacked > disks[0].size:
        context.log("tar: write error: No space left on device")
        mapping = (
            "lxc-usernsexec -m u:0:100000:65536 -m g:0:100000:65536 -- " if call.params.get("unprivileged", 1) else ""
        )
        packed = _UNPACKING.get(template.name.rpartition(".")[2], "")
        raise TaskError(f"command '{mapping}{_TAR.format(packed, call.params['vmid'])}' failed: exit code 2")
    if disks:
        volumes.fill(call.world, call.node, disks[0], unpacked)
    if template.image is None:
        context.log(tar_total("read", unpacked, _SECONDS_TO_UNPACK))
    for directory in template.image.volumes if template.image else ():
        context.log(f"creating base directory for volume at {directory}")
    context.log("Detected container architecture: amd64")
    detected, configured = _os_type(template), call.params.get("ostype", "unmanaged")
    if configured not in ("unmanaged", detected):
        context.log(f"got unexpected ostype ({detected} != {configured})")
    zone = call.params.get("timezone", "host")
    if zone != "host" and detected == "alpine":  # comes without time zone data
        context.log(f"container does not have /usr/share/zoneinfo/{zone}, timezone can not be modified")
    return template


def _os_type(template: Volume) -> str:
    """The operating system in a template; that of an image is known, that of an archive is in its name."""
    return os_type_of_template(template.name) if template.image is None else template.image.os or "unmanaged"


def _settings_of_image(world: World, image: OciImage, config: Mapping[str, Value]) -> dict[str, Value]:
    """What PVE takes from an image instead of from the call: its entry point and variables.

    A container without an init system cannot set up its network and terminals, so the host does.
    """
    settings: dict[str, Value] = {"env": image.environment}
    if not image.init:
        return settings
    for key, value in config.items():
        if drives.is_net(key):
            card = {**drives.parse(world, "lxc", key, str(value)), "host-managed": "1"}
            settings[key] = drives.render(world, "lxc", key, card)
    return {**settings, "entrypoint": image.init, "cmode": "console"}


def _add_defaults(vmid: int, config: dict[str, Value], ostype: str) -> dict[str, Value]:
    config = {key: value for key, value in config.items() if value != "" or key not in ("tags", "description")}
    config.setdefault("hostname", f"CT{vmid}")
    config.setdefault("memory", 512)
    config.setdefault("swap", 512)
    config.setdefault("arch", "amd64")
    config.setdefault("ostype", ostype)
    return config
