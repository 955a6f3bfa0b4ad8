"""Appliances: what PVE reads from an OVA or OVF, and VMs made from the disks in it."""

from __future__ import annotations

from pve_simulator.api_client import Api
from pve_simulator.guests.guest import GIB
from pve_simulator.routes.storage.download_url import CATALOGUE
from pve_simulator.storage.appliances import Appliance, ApplianceDisk
from pve_simulator.storage.storages import Volume

_METADATA = "/nodes/pve1/storage/local/import-metadata"
_SHOP = Appliance(
    "shop",
    (ApplianceDisk("scsi0", "shop-disk1.vmdk", 8 * GIB), ApplianceDisk("scsi1", "shop-disk2.vmdk", 20 * GIB)),
    cores=4, memory=8192, networks=("VmxNet3".lower(), "pcnet32"),
)  # fmt: skip


def _store(api: Api, name: str, fmt: str, appliance: Appliance | None = None, size: int = GIB) -> None:
    volume = Volume(f"local:import/{name}", "import", fmt, size, size, 0, appliance=appliance)
    api.cluster.world.storages["local"].add("pve1", volume)


async def test_an_archive_describes_a_vm_with_its_disks_and_networks(api: Api) -> None:
    _store(api, "shop.ova", "ova", _SHOP)
    found = (await api.get(_METADATA, volume="import/shop.ova")).data
    assert found["source"] == "import/shop.ova"
    assert found["create-args"] == {
        "name": "shop", "cores": "4", "memory": "8192", "ostype": "l26", "boot": "order=scsi0;scsi1",
    }  # fmt: skip
    assert found["disks"]["scsi1"] == {"volid": "local:import/shop.ova/shop-disk2.vmdk", "size": 20 * GIB}
    assert found["net"] == {"net0": {"model": "vmxnet3"}, "net1": {"model": "e1000"}}
    assert found["warnings"] == [{"type": "ova-needs-extracting"}]


async def test_firmware_is_kept_without_its_state(api: Api) -> None:
    url = next(url for url in CATALOGUE if url.endswith(".ova"))
    path = "/nodes/pve1/storage/local/download-url"
    await api.finish_task(await api.post(path, url=url, content="import", filename="haos.ova"))
    found = (await api.get(_METADATA, volume="import/haos.ova")).data
    assert (found["create-args"]["bios"], found["disks"]["efidisk0"]) == ("ovmf", 1)
    assert {"type": "efi-state-lost", "key": "bios", "value": "ovmf"} in found["warnings"]


async def test_a_description_next_to_its_disks_needs_all_of_them(api: Api) -> None:
    _store(api, "shop.ovf", "ovf", _SHOP)
    _store(api, "shop-disk1.vmdk", "vmdk", size=3 * GIB)
    missing = await api.get(_METADATA, volume="import/shop.ovf")
    path = "/var/lib/vz/import/shop-disk2.vmdk"
    assert missing.reason == f"error parsing shop-disk2.vmdk, file seems not to exist at {path}"
    _store(api, "shop-disk2.vmdk", "vmdk", size=5 * GIB)
    found = (await api.get(_METADATA, volume="import/shop.ovf")).data
    assert found["disks"]["scsi1"] == {"volid": "local:import/shop-disk2.vmdk", "size": 5 * GIB}
    assert found["warnings"] == []


async def test_other_volumes_are_no_appliances(api: Api) -> None:
    _store(api, "plain.qcow2", "qcow2")
    assert (await api.get(_METADATA, volume="import/plain.qcow2")).reason == "invalid format"
    iso = await api.get(_METADATA, volume="iso/debian-13.1.0-amd64-netinst.iso")
    assert iso.reason == "invalid content type 'iso'"
    url = next(url for url in CATALOGUE if url.endswith(".ova"))
    download = await api.post("/nodes/pve1/storage/local/download-url", url=url, content="import", filename="shop.ovf")
    assert download.errors == {"filename": "invalid filename or wrong extension"}


async def test_each_disk_of_an_archive_is_imported_with_its_own_size(api: Api) -> None:
    _store(api, "shop.ova", "ova", _SHOP)
    drives = {
        f"scsi{number}": f"local-lvm:0,import-from=local:import/shop.ova/shop-disk{number + 1}.vmdk"
        for number in (0, 1)
    }
    reply = await api.post("/nodes/pve1/qemu", vmid=800, **drives, **{"import-working-storage": "nas"})
    assert await api.finish_task(reply) == "OK"
    config = api.cluster.world.guests[800].config
    assert [str(config[key]).rpartition("size=")[2] for key in ("scsi0", "scsi1")] == ["8G", "20G"]
    other = "local:import/shop.ova/other.vmdk"
    lost = await api.post(
        "/nodes/pve1/qemu", vmid=801, scsi0=f"local-lvm:0,import-from={other}", **{"import-working-storage": "nas"}
    )
    assert f"cannot import from '{other}'" in await api.finish_task(lost)
