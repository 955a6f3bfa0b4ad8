"""Privileges to set the options of a guest: the checks inside PVE's methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pve_simulator.cluster.datacenter import Datacenter, shown_option
from pve_simulator.guests import drives
from pve_simulator.guests.guest import Kind, Value
from pve_simulator.guests.options import is_cloudinit_option
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, existing, failure, forbidden
from pve_simulator.http.routing import Call
from pve_simulator.nodes.tasks import TaskError
from pve_simulator.storage import volumes
from pve_simulator.storage.storages import FILE_BASED

# Options of a VM that need a single privilege.
_PRIVILEGES = {
    privilege: frozenset(split_list(names))
    for privilege, names in {
        "VM.Config.CPU": "cores cpu runningcpu cpulimit cpuunits numa smp sockets vcpus",
        "VM.Config.Memory": "memory balloon shares allow-ksm",
        "VM.Config.HWType": ("acpi hotplug kvm machine runningmachine scsihw smbios1 tablet vga watchdog audio0 rng0"),
        "VM.Config.Options": (
            "agent autostart bios description keyboard localtime migrate_downtime migrate_speed name onboot ostype"
            " protection reboot startdate startup tdf template"
        ),
        "VM.Config.Disk": "boot bootdisk vmstatestorage",
        "VM.PowerMgmt": "freeze",
    }.items()
}
_VALUE_DECIDES = ("unused", "serial", "usb", "hostpci", "virtiofs")
_CONTAINER_NETWORK = frozenset(["nameserver", "searchdomain", "hostname"])
_NO_PATHS = "Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 651."


class GuestPrivileges:
    """The privileges of one caller on one guest, which may be about to be created in a pool."""

    def __init__(self, call: Call, vmid: int, pool: str | None = None) -> None:
        self.call = call
        self.vmid = vmid
        self._pool = pool

    def require(self, *privileges: str, any_of: bool = False) -> None:
        """Refuse unless the caller has the privileges on the pool or on the guest."""
        if self._pool is not None:
            held = [self.call.allowed(f"/pool/{self._pool}", privilege) for privilege in privileges]
            if any(held) if any_of else all(held):
                return
        self.call.require(f"/vms/{self.vmid}", *privileges, any_of=any_of)

    # -- virtual machines

    def check_vm_options(self, keys: Iterable[str]) -> None:
        """Check the options by name; drives and devices are checked with their values."""
        if self.call.is_root:
            return
        for key in sorted(keys):
            if not (drives.is_drive("qemu", key) or key == "tags" or _numbered(key, *_VALUE_DECIDES)):
                self._check_vm_option(key)

    def _check_vm_option(self, key: str) -> None:
        named = next((privilege for privilege, keys in _PRIVILEGES.items() if key in keys), None)
        if named is not None:
            self.require(named)
            if key == "startup":  # it changes how the host starts
                self.call.require("/", "Sys.Modify")
        elif _numbered(key, "numa"):
            self.require("VM.Config.CPU")
        elif drives.is_net(key):
            self.require("VM.Config.Network")
        elif is_cloudinit_option(key):
            self.require("VM.Config.Cloudinit", "VM.Config.Network", any_of=True)
        elif key == "vmstate":
            self.require("VM.Config.Disk", "VM.PowerMgmt")
        else:
            raise failure(f"only root can set '{key}' config")

    def check_vm_devices(self, settings: Mapping[str, Value]) -> None:
        """Check serial ports, USB and PCI devices: only root may use the host's."""
        if self.call.is_root:
            return
        for key, value in settings.items():
            if _numbered(key, "serial") and value != "socket":
                raise failure(f"only root can set '{key}' config for real devices")
            if _numbered(key, "serial"):
                self.require("VM.Config.HWType")
            elif _numbered(key, "usb", "hostpci"):
                self._check_host_device(key, str(value))
            elif _numbered(key, "virtiofs"):
                self.require("VM.Config.Disk")

    def _check_host_device(self, key: str, value: str) -> None:
        usb = key.startswith("usb")
        device = drives.parse(self.call.world, "qemu", key, value)
        host = device.get("host", "").lower()
        if host and not (usb and host == "spice"):
            of_what = "real" if usb else "non-mapped"
            raise failure(f"only root can set '{key}' config for {of_what} devices")
        if not host and "mapping" not in device:
            raise failure("either 'host' or 'mapping' must be set.")
        if not host:
            self.call.require(f"/mapping/{'usb' if usb else 'pci'}/{device['mapping']}", "Mapping.Use")
        self.require("VM.Config.HWType")

    def check_drive(self, key: str, value: str) -> None:
        """Check the privilege to change one drive of a VM."""
        drive = drives.parse(self.call.world, "qemu", key, value)
        if drives.is_cloudinit(drive):
            self.require("VM.Config.Cloudinit", "VM.Config.CDROM")
        elif drives.is_cdrom(drive):
            self.require("VM.Config.CDROM")
        else:
            self.require("VM.Config.Disk")

    # -- containers

    def check_container_options(
        self, settings: Mapping[str, Value], deleted: Iterable[str] = (), *, unprivileged: bool, features: str = ""
    ) -> None:
        if self.call.is_root:
            return
        for key in deleted:
            self._check_container_option(key)
        for key, value in settings.items():
            self._check_container_option(key)
            if drives.is_drive("lxc", key):
                self._check_mount_point(key, str(value))
            elif key == "features":
                self._check_features(str(value), features, unprivileged=unprivileged)

    def _check_container_option(self, key: str) -> None:
        if key in ("cores", "cpulimit", "cpuunits"):
            self.require("VM.Config.CPU")
        elif drives.is_drive("lxc", key) or _numbered(key, "unused"):
            self.require("VM.Config.Disk")
        elif key in ("memory", "swap"):
            self.require("VM.Config.Memory")
        elif key in _CONTAINER_NETWORK or drives.is_net(key):
            self.require("VM.Config.Network")
        elif _numbered(key, "dev"):
            raise forbidden("configuring device passthrough is only allowed for root@pam")
        elif key == "hookscript":
            raise forbidden("changing the hookscript is only allowed for root@pam")
        elif key not in ("features", "tags"):
            self.require("VM.Config.Options")
            if key == "startup":
                self.call.require("/", "Sys.Modify")

    def _check_mount_point(self, key: str, value: str) -> None:
        volume = drives.parse(self.call.world, "lxc", key, value)["volume"]
        if volume.startswith("/"):
            where = "bind" if not volume.startswith("/dev/") else "device"
            raise forbidden(f"mount point type {where} is only allowed for root@pam")
        new_disk = drives.new_disk(volume)
        if new_disk is not None and new_disk[0] is not None:
            self.call.require(f"/storage/{new_disk[0]}", "Datastore.AllocateSpace")
        else:  # only root may pass a bare size
            check_volume_access(self.call, self.vmid, volume)

    def _check_features(self, value: str, before: str, *, unprivileged: bool) -> None:
        if not unprivileged:
            raise forbidden("changing feature flags for privileged container is only allowed for root@pam")
        if _without_nesting(self.call, value) != _without_nesting(self.call, before):
            raise forbidden("changing feature flags (except nesting) is only allowed for root@pam")
        self.require("VM.Allocate")

    # -- both

    def check_bridges(self, kind: Kind, settings: Mapping[str, Value]) -> None:
        """Require SDN.Use on every bridge and its VLANs; plain bridges are in the zone `localnetwork`."""
        for key, value in settings.items():
            if drives.is_net(key) and not self.call.is_root:
                net = drives.parse(self.call.world, kind, key, str(value))
                if "bridge" in net:
                    self._check_bridge(net)

    def _check_bridge(self, net: Mapping[str, str]) -> None:
        path = f"/sdn/zones/localnetwork/{net['bridge']}"
        vlans = [tag for tag in (net.get("tag"), *net.get("trunks", "").split(";")) if tag]
        for tag in vlans:
            self.call.require(f"{path}/{tag}", "SDN.Use")
        if not vlans:
            self.call.require(path, "SDN.Use")

    def check_tags(self, before: Value | None, after: Value) -> None:
        """Check added and removed tags; registered ones need privileges on the datacenter."""
        old, new = set(split_list(str(before or ""))), set(split_list(str(after)))
        changed = old ^ new
        if not (old | new) or self.call.is_root or self.call.allowed("/", "Sys.Modify"):
            return
        self.require("VM.Config.Options")
        for tag in sorted(changed):
            if not self._may_use_tag(tag):
                raise forbidden(f"/, Sys.Modify for modifying tag '{tag}'")

    def _may_use_tag(self, tag: str) -> bool:
        options = self.call.world.part(Datacenter).options
        if tag in split_list(str(options.get("registered-tags", ""))):
            return False
        access = shown_option("user-tag-access", options["user-tag-access"]) if "user-tag-access" in options else {}
        policy = access.get("user-allow", "free")
        listed = split_list(str(access.get("user-allow-list", "")))
        if policy == "existing":
            of_guests = (str(guest.config.get("tags", "")) for guest in self.call.world.guests.values())
            listed += split_list(",".join(of_guests))
        return policy == "free" or (policy != "none" and tag in listed)


def check_drive_parameters(call: Call, settings: Mapping[str, Value]) -> None:
    """Refuse drives with invalid parameters."""
    for key in sorted(settings):
        if not drives.is_drive("qemu", key):
            continue
        drive = drives.parse(call.world, "qemu", key, str(settings[key]))
        if _is_contradictory(key, drive):
            raise bad_parameters({key: "unable to parse drive options"})
        new_disk = drives.new_disk(drive["file"])
        if "import-from" in drive and (new_disk is None or new_disk[1] != 0):
            raise bad_parameters(
                {key: "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>"}
            )
        _check_import_of_special_disk(key, drive)
        if new_disk is None and ":" in drive["file"] and not drives.is_cloudinit(drive):
            content, _ = volumes.content_of(call.world, drive["file"])
            if content == "iso" and drive.get("media") != "cdrom":
                raise bad_parameters({key: "explicit 'media=cdrom' is required for iso images"})


def _is_contradictory(key: str, drive: Mapping[str, str]) -> bool:
    """Whether limits conflict, a burst lacks its limit, or a CD-ROM has options of a disk."""
    if any(kind in drive and f"{kind}_{direction}" in drive for kind in ("mbps", "iops") for direction in ("rd", "wr")):
        return True
    if any(f"mbps{direction}_max" in drive and f"mbps{direction}" not in drive for direction in ("", "_rd", "_wr")):
        return True
    of_disk = key.startswith("virtio") or not {"snapshot", "trans", "format"}.isdisjoint(drive)
    return drive.get("media") == "cdrom" and of_disk


def _check_import_of_special_disk(key: str, drive: Mapping[str, str]) -> None:
    needed = {"efidisk0": ("efitype", "pre-enrolled-keys"), "tpmstate0": ("version",)}.get(key, ())
    for name in needed:
        if "import-from" in drive and name not in drive:
            raise bad_parameters({key: f"need to specify '{name}' when using 'import-from'"})


def check_storage_access(
    call: Call, vmid: int, settings: Mapping[str, Value], default_storage: str | None = None
) -> None:
    """Check the privileges on the storages of a VM's drives, and that these can hold images."""
    for key in sorted(settings):
        if drives.is_drive("qemu", key):
            drive = drives.parse(call.world, "qemu", key, str(settings[key]))
            _check_drive_storage(call, vmid, key, drive, default_storage)
            if "import-from" in drive:
                _check_import_source(call, vmid, key, drive["import-from"])
        elif _numbered(key, "unused"):
            check_volume_access(call, vmid, str(settings[key]).removeprefix("file="))
    if "vmstatestorage" in settings:
        call.require(f"/storage/{settings['vmstatestorage']}", "Datastore.AllocateSpace")


def _check_drive_storage(
    call: Call, vmid: int, key: str, drive: Mapping[str, str], default_storage: str | None
) -> None:
    volume = drive["file"]
    if volume == "none" or volume.endswith(":cloudinit"):
        return
    if volume == "cdrom":
        call.require("/", "Sys.Console")
        return
    new_disk = None if drives.is_cdrom(drive) else drives.new_disk(volume, default_storage)
    if new_disk is None:
        check_volume_access(call, vmid, volume)
        if ":" in volume and volumes.content_of(call.world, volume)[0] not in ("images", "iso"):
            raise bad_parameters({key: "content type needs to be 'images' or 'iso'"})
        return
    storage_id = existing(new_disk[0], "no storage ID specified (and no default storage)")
    call.require(f"/storage/{storage_id}", "Datastore.AllocateSpace")
    storage = call.world.storage(storage_id)
    if "images" not in storage.content:
        raise bad_parameters({"storage": f"storage '{storage_id}' does not support vm images"})


def _check_import_source(call: Call, vmid: int, key: str, source: str) -> None:
    if ":" not in source:
        check_volume_access(call, vmid, source)
        return
    content, owner = volumes.content_of(call.world, source)
    if content not in ("images", "import"):
        wrong = f"{source} has wrong type '{content}' - needs to be 'images' or 'import'"
        raise bad_parameters({key: wrong})
    if ".ova/" in source:
        _check_extraction(call, key, source)
    if owner is not None:
        call.require(f"/vms/{owner}", "VM.Clone")
    else:
        check_volume_access(call, vmid, source)


def _check_extraction(call: Call, key: str, source: str) -> None:
    """A disk in an archive is first extracted to a file-based storage."""
    requested = call.params.get("import-working-storage")
    storage_id = requested or volumes.split_volid(source)[0]
    storage = call.world.storage(storage_id)
    if storage.type not in FILE_BASED or "images" not in storage.content:
        wrong = f"storage '{storage_id}' does not support 'images' content type or is not file based."
        raise bad_parameters({"import-working-storage" if requested else key: wrong})
    call.require(f"/storage/{storage_id}", "Datastore.AllocateSpace")


def check_volume_access(call: Call, vmid: int | None, volid: str, *, content: str | None = None) -> None:
    """Whether the caller may use a volume that already exists."""
    try:
        storage_id, _ = volumes.split_volid(volid)
    except TaskError:
        if call.is_root:
            return
        raise failure(_NO_PATHS) from None
    kind, owner = volumes.content_of(call.world, volid)
    if content is not None and kind != content:
        raise failure(f"unable to use volume {volid} - content type needs to be '{content}'")
    path = f"/storage/{storage_id}"
    if call.is_root or call.allowed(path, "Datastore.Allocate"):
        return
    if kind in ("iso", "vztmpl", "import"):
        call.require(path, "Datastore.AllocateSpace", "Datastore.Audit", any_of=True)
    elif owner is not None and owner == vmid:
        return
    elif kind == "backup" and owner is not None:
        call.require(path, "Datastore.AllocateSpace")
        call.require(f"/vms/{owner}", "VM.Backup")
    elif kind == "images" and owner is not None:
        call.require(path, "Datastore.Audit")
        call.require(f"/vms/{owner}", "VM.Config.Disk")
    else:
        raise failure(f"missing privileges to access {volid}")


def _numbered(key: str, *stems: str) -> bool:
    return any(key.startswith(stem) and key[len(stem) :].isdecimal() for stem in stems)


def _without_nesting(call: Call, features: str) -> dict[str, str]:
    parsed = drives.parse(call.world, "lxc", "features", features) if features else {}
    return {name: value for name, value in parsed.items() if name != "nesting" and value != "0"}
