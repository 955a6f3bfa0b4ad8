"""Appliances: VMs of other hypervisors, described by OVF, in one archive (OVA) or next to their disks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pve_simulator.http.refusals import failure
from pve_simulator.storage import volumes
from pve_simulator.storage.storages import Storage, Volume
from pve_simulator.world import World

_NETWORK_MODELS = ("e1000", "e1000e", "vmxnet3")
"""Those that PVE keeps; others become the first."""


@dataclass(frozen=True, slots=True)
class ApplianceDisk:
    """A disk of an appliance: its slot by its controller, its file and the size of the disk in it."""

    slot: str
    file: str
    size: int


@dataclass(frozen=True, slots=True)
class Appliance:
    """What the OVF of an appliance describes."""

    name: str
    disks: tuple[ApplianceDisk, ...]
    cores: int = 1
    memory: int = 1024
    ostype: str = "l26"
    efi: bool = False
    networks: tuple[str, ...] = ()

    def disk(self, file: str) -> ApplianceDisk | None:
        return next((disk for disk in self.disks if disk.file == file), None)


def of_volume(volume: Volume) -> Appliance:
    """The appliance in a file; of a file without a description, one disk with the file's name."""
    if volume.appliance is not None:
        return volume.appliance
    stem = volume.name.rpartition("/")[2].rpartition(".")[0]
    return Appliance(stem, (ApplianceDisk("scsi0", f"{stem}-disk1.vmdk", volume.disk_size),))


def metadata(world: World, node: str, storage: Storage, volume: Volume) -> dict[str, Any]:
    """How PVE would create the VM, as its import dialog reads it."""
    appliance, packed = of_volume(volume), volume.format == "ova"
    settings: dict[str, str] = {
        "name": appliance.name,
        "cores": str(appliance.cores),
        "memory": str(appliance.memory),
        "ostype": appliance.ostype,
        **({"bios": "ovmf"} if appliance.efi else {}),
        "boot": f"order={';'.join(disk.slot for disk in appliance.disks)}",
    }
    disks: dict[str, Any] = dict(_disks(world, node, storage, volume, appliance))
    warnings: list[Mapping[str, str]] = [{"type": "ova-needs-extracting"}] if packed else []
    if appliance.efi:
        disks["efidisk0"] = 1
        warnings.append({"type": "efi-state-lost", "key": "bios", "value": "ovmf"})
    networks = (model if model in _NETWORK_MODELS else _NETWORK_MODELS[0] for model in appliance.networks)
    return {
        "type": "vm",
        "source": volume.name,
        "create-args": settings,
        "disks": disks,
        "net": {f"net{number}": {"model": model} for number, model in enumerate(networks)},
        "warnings": warnings,
    }


def _disks(
    world: World, node: str, storage: Storage, volume: Volume, appliance: Appliance
) -> Iterator[tuple[str, dict[str, Any]]]:
    for disk in appliance.disks:
        if volume.format == "ova":
            yield disk.slot, {"volid": f"{volume.volid}/{disk.file}", "size": disk.size}
            continue
        image = volumes.find(world, node, f"{storage.id}:import/{disk.file}")
        if image is None:
            path = volumes.path_of(storage, f"import/{disk.file}")
            raise failure(f"error parsing {disk.file}, file seems not to exist at {path}")
        yield disk.slot, {"volid": image.volid, "size": image.disk_size}
