"""Whole VMs from OVA archives and OVF files: hardware as described, disks, networks, warnings, choices, refusals."""

import pytest

from pve_simulator.guests.guest import GIB
from pve_simulator.routes.storage.download_url import CATALOGUE
from pve_simulator.storage.appliances import Appliance, ApplianceDisk
from pve_simulator.storage.storages import Volume
from quorate.config import Access
from quorate.config.clusters import GuestDefaults
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

OVA = "local:import/shop.ova"
SHOP = Appliance(
    "shop",
    (ApplianceDisk("scsi0", "shop-disk1.vmdk", 8 * GIB), ApplianceDisk("scsi1", "shop-disk2.vmdk", 20 * GIB)),
    cores=4,
    memory=8192,
    networks=("vmxnet3", "e1000"),
)
HOME_ASSISTANT = next(url for url in CATALOGUE if url.endswith(".ova"))


def store(quorate, name="shop.ova", fmt="ova", appliance=SHOP, node="pve1", size=GIB):
    volume = Volume(f"local:import/{name}", "import", fmt, size, size, 0, appliance=appliance)
    quorate.sim.world.storages["local"].add(node, volume)


def guest(quorate, facts):
    return quorate.sim.world.guests[facts["vmid"]]


async def test_a_vm_comes_as_the_appliance_describes_it_and_every_choice_is_shown(quorate):
    store(quorate)
    facts = await quorate.facts("vm_import", source="shop.ova", storage="local-lvm")
    vm = guest(quorate, facts)
    config = vm.config
    assert (vm.node, vm.name, vm.running) == ("pve1", "shop", False)
    assert (int(config["cores"]), int(config["memory"]), config["ostype"]) == (4, 8192, "l26")
    assert [config[slot].rpartition("size=")[2] for slot in ("scsi0", "scsi1")] == ["8G", "20G"]
    assert config["scsi0"].startswith("local-lvm:")
    assert "iothread" not in config["scsi0"]  # the controller is PVE's default, which has no threads per disk
    assert config["net0"].startswith("vmxnet3=")
    assert config["net1"].startswith("e1000=")
    assert config["boot"] == "order=scsi0;scsi1"
    assert facts["appliance"]["disks"] == {"scsi0": "shop-disk1.vmdk (8G)", "scsi1": "shop-disk2.vmdk (20G)"}
    assert facts["chosen"] == {"cpu": "x86-64-v2-AES", "bridge": "vmbr0", "extracted_on": "nas"}
    assert facts["warnings"] == ["While it is imported, the disks also need space where they are extracted"]


async def test_a_downloaded_uefi_appliance_gets_its_firmware_and_starts(quorate):
    await quorate.facts("image_download", url=HOME_ASSISTANT, storage="local", node="pve2")
    facts = await quorate.facts("vm_import", source="haos_ova", name="ha", memory="6G", start=True)
    vm = guest(quorate, facts)
    assert (vm.node, vm.name, vm.running) == ("pve2", "ha", True)
    assert int(vm.config["memory"]) == 6144
    assert vm.config["bios"] == "ovmf"
    assert "pre-enrolled-keys=0" in vm.config["efidisk0"]
    assert vm.config["boot"] == "order=sata0"
    assert any("UEFI settings are not imported" in warning for warning in facts["warnings"])


async def test_uefi_with_scsi_disks_gets_a_controller_that_it_can_boot_from(quorate):
    store(quorate, appliance=Appliance("win", SHOP.disks, efi=True, ostype="win11"))
    facts = await quorate.facts("vm_import", source=OVA)
    assert guest(quorate, facts).config["scsihw"] == facts["chosen"]["scsihw"] == "pvscsi"


async def test_another_bus_keeps_the_boot_order(quorate):
    store(quorate)
    facts = await quorate.facts("vm_import", source=OVA, bus="sata", bridge="vmbr1", options={"tablet": 0})
    config = guest(quorate, facts).config
    assert {"sata0", "sata1"} <= config.keys()
    assert not {"scsi0", "scsi1"} & config.keys()
    assert config["boot"] == "order=sata0;sata1"
    assert "bridge=vmbr1" in config["net0"]
    assert config["tablet"] == 0


@pytest.mark.quorate(more={"guest_defaults": GuestDefaults(storage="tank", tags=("imported",))})
async def test_the_operators_defaults_apply(quorate):
    store(quorate)
    facts = await quorate.facts("vm_import", source=OVA)
    config = guest(quorate, facts).config
    assert config["scsi0"].startswith("tank:")
    assert config["tags"] == "imported"
    assert (facts["chosen"]["storage"], facts["chosen"]["tags"]) == ("tank", ["imported"])


async def test_a_description_next_to_its_disks_is_imported_without_extraction(quorate):
    store(quorate, "shop.ovf", "ovf")
    assert "file seems not to exist at" in await quorate.refusal("vm_import", source="shop.ovf")
    for number in (1, 2):
        store(quorate, f"shop-disk{number}.vmdk", "vmdk", None, size=number * GIB)
    facts = await quorate.facts("vm_import", source="shop.ovf")
    config = guest(quorate, facts).config
    assert [config[slot].rpartition("size=")[2] for slot in ("scsi0", "scsi1")] == ["1G", "2G"]
    assert "warnings" not in facts
    assert "extracted_on" not in facts["chosen"]


async def test_a_dry_run_shows_one_plan_and_changes_nothing(quorate):
    store(quorate)
    facts = await quorate.facts("vm_import", source=OVA, start=True, dry_run=True)
    assert [step["step"].partition(" vm")[0] for step in facts["steps"]] == ["Create", "Start"]
    assert "import-from=local:import/shop.ova/shop-disk2.vmdk" in facts["steps"][0]["call"]
    assert facts["warnings"]
    assert quorate.writes == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nothing.ova", ("no appliance 'nothing.ova'", "shop.ova")),
        ("plain.qcow2", ("is a disk, not a whole VM", "vm_create", "local:import/plain.qcow2")),
        ("s", ("Several appliances match", "shop.ova", "store.ova")),
        ("empty.ova", ("has no disk that PVE can import",)),
    ],
)
async def test_what_is_no_appliance_is_refused_with_what_to_do(quorate, source, words):
    store(quorate)
    store(quorate, "store.ova")
    store(quorate, "plain.qcow2", "qcow2", None)
    store(quorate, "empty.ova", appliance=Appliance("empty", ()))
    text = await quorate.refusal("vm_import", source=source, node="pve1")
    assert all(word in text for word in words), text


async def test_a_disk_of_an_archive_leads_to_the_import_of_the_whole_vm(quorate):
    store(quorate)
    text = await quorate.refusal("vm_create", node="pve1", disks=[{"import_from": OVA}])
    assert f"vm_import source={OVA}" in text


async def test_a_name_that_is_in_use_is_reported_and_a_pool_needs_more_access(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        store(quorate, appliance=Appliance("docker01", SHOP.disks))
        facts = await quorate.facts("vm_import", source=OVA, dry_run=True)
        assert any("same name" in warning for warning in facts["warnings"])
        assert "needs admin" in await quorate.refusal("vm_import", source=OVA, pool="lab")
