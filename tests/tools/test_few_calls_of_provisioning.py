"""Guests and templates as an agent provisions them: the right guest, and a bound of calls.

Where nothing else is said, only the default tools are on. Nothing about a guest is read afterwards: what the agent has
to report, such as the address, is in the answer of the call that made it.
"""

import hashlib
from urllib.parse import unquote

import pytest

from pve_simulator.guests.guest import GIB
from pve_simulator.routes.storage.download_url import CATALOGUE
from pve_simulator.storage.storages import Volume
from quorate.config.images import CloudImage
from tests.tools.test_few_calls import Agent

pytestmark = pytest.mark.anyio

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHyG3n8sBvSm2pAcyRw7Yb0o2k4v1Pb0mP9Jq6c1xXyZ ada@laptop"
DEBIAN = "https://cloud.debian.org/images/cloud/trixie/latest/debian-13-genericcloud-amd64.qcow2"
UBUNTU = "https://cloud-images.ubuntu.com/noble/current/noble-server-cloudimg-amd64.img"
APPLIANCE = next(url for url in CATALOGUE if url.endswith(".ova"))
CATALOG = {
    "image_catalog": {
        "debian-13": CloudImage(url=DEBIAN, checksum=hashlib.sha256(DEBIAN.encode()).hexdigest(), user="debian")
    }
}

default_tools = pytest.mark.quorate(toolsets=None)
with_images = pytest.mark.quorate(toolsets=("default", "images"), more=CATALOG)


@pytest.fixture
def agent(quorate):
    return Agent(quorate)


def guest(quorate, facts):
    return quorate.sim.world.guests[facts["vmid"]]


def addresses(made):
    return [address.ip for address in made.addresses]


@default_tools
async def test_give_me_a_debian_13_vm_with_my_key_2_cores_and_4_gigabytes(quorate, agent):
    """Find the template and clone it; the answer has the address. 2 calls."""
    templates = await agent.rows("guest_list", template=True, name="debian-13", type="vm")
    facts = await agent.facts(
        "guest_clone", guest=templates[0]["vmid"], name="web01", cores=2, memory="4G", cloud_init={"ssh_keys": [KEY]},
        wait_for="agent",
    )  # fmt: skip
    vm = guest(quorate, facts)
    assert (vm.running, int(vm.config["cores"]), int(vm.config["memory"])) == (True, 2, 4096)
    assert unquote(vm.config["sshkeys"]).strip() == KEY
    assert facts["ready"] is True
    assert facts["addresses"] == addresses(vm)
    assert agent.calls == 2


@with_images
async def test_the_same_where_no_template_exists(quorate, agent):
    """Make the template from the catalog's image, then clone it: one answer names the guest for the next. 2 calls."""
    del quorate.sim.world.guests[9000]
    made = await agent.facts("image_to_template", image="debian-13")
    facts = await agent.facts(
        "guest_clone", guest=made["vmid"], name="web01", cores=2, memory="4G", disk="20G",
        cloud_init={"ssh_keys": [KEY]}, wait_for="agent",
    )  # fmt: skip
    vm = guest(quorate, facts)
    assert "size=20G" in vm.config["scsi0"]
    assert vm.config["ciuser"] == "debian"
    assert facts["addresses"] == addresses(vm)
    assert agent.calls == 2


@with_images
async def test_a_template_is_asked_for_twice_and_made_once(quorate, agent):
    """2 calls; the second says which template it is and how to continue."""
    first = await agent.facts("image_to_template", image="debian-13")
    again = await agent.facts("image_to_template", image="debian-13")
    assert again["vmid"] == first["vmid"]
    assert again["result"] == "nothing to do"
    assert f"guest_clone guest={first['vmid']}" in again["next"]
    assert sum(made.template and made.name == "debian-13" for made in quorate.sim.world.guests.values()) == 1
    assert agent.calls == 2


@default_tools
async def test_two_web_servers_with_fixed_addresses_on_another_network(quorate, agent):
    """Each clone is one call, and its address is known without asking. 2 calls."""
    for number in (1, 2):
        facts = await agent.facts(
            "guest_clone", guest=9000, name=f"web{number}", bridge="vmbr1", vlan=20, start=True,
            cloud_init={"ssh_keys": [KEY], "ip": f"10.0.20.1{number}/24", "gateway": "10.0.20.1"},
        )  # fmt: skip
        vm = guest(quorate, facts)
        assert vm.running
        assert addresses(vm) == [f"10.0.20.1{number}"]
        assert "tag=20" in facts["networks"]["net0"]
    assert agent.calls == 2


@pytest.mark.quorate(toolsets=("default", "images"))
async def test_a_vm_from_a_cloud_image_without_a_template_and_with_a_data_disk(quorate, agent):
    """Download the image as a disk to import, then create: image, data disk, login and network in one. 2 calls."""
    image = await agent.facts("image_download", url=UBUNTU, content="import", filename="noble.qcow2", storage="local")
    facts = await agent.facts(
        "vm_create", name="db01", cores=4, memory="8G", cloud_init={"ssh_keys": [KEY]}, wait_for="agent",
        disks=[{"import_from": image["volume"], "size": "20G"}, {"size": "100G", "storage": "tank"}],
        networks=["vmbr0,tag=20"],
    )  # fmt: skip
    vm = guest(quorate, facts)
    assert "size=20G" in vm.config["scsi0"]
    assert vm.config["scsi1"].startswith("tank:")
    assert "tag=20" in vm.config["net0"]
    assert facts["boots_from"].startswith("scsi0")
    assert facts["addresses"] == addresses(vm)
    assert agent.calls == 2


@default_tools
async def test_windows_11_from_its_iso_with_what_it_insists_on(quorate, agent):
    """UEFI, TPM and the CD with drivers, from the names of the two ISO images. 1 call."""
    for name in ("Win11_25H2.iso", "virtio-win.iso"):
        volume = Volume(f"local:iso/{name}", "iso", "iso", 5 * GIB, 5 * GIB, 0)
        quorate.sim.world.storages["local"].add("pve1", volume)
    facts = await agent.facts(
        "vm_create", name="win", cores=4, memory="8G", disks=["64G"], iso=["Win11_25H2.iso", "virtio-win.iso"],
        start=True,
    )  # fmt: skip
    vm = guest(quorate, facts)
    assert (vm.running, vm.config["ostype"], vm.config["bios"]) == (True, "win11", "ovmf")
    assert {"efidisk0", "tpmstate0", "ide2", "ide3"} <= vm.config.keys()
    assert facts["boots_from"].startswith("ide2")
    assert agent.calls == 1


@default_tools
async def test_a_container_whose_template_is_not_there_yet(quorate, agent):
    """The template is downloaded in the same plan; fixed address, key, its data on a disk of its own. 1 call."""
    facts = await agent.facts(
        "container_create", template="alpine", name="dns", memory="256M", ssh_keys=[KEY], start=True,
        networks=["vmbr0,ip=192.168.10.9/24,gw=192.168.10.1"], mounts=["tank:2G,mp=/srv"],
    )  # fmt: skip
    ct = guest(quorate, facts)
    assert (ct.running, addresses(ct)) == (True, ["192.168.10.9"])
    assert "mp=/srv" in ct.config["mp0"]
    assert facts["chosen"]["template"].startswith("alpine-3.22")
    assert agent.calls == 1


@default_tools
async def test_a_container_from_an_application_image_of_which_no_tag_is_known(quorate, agent):
    """The first answer names the tags, the second call pulls, creates, sets variables and starts. 2 calls."""
    image = "docker.io/binwiederhier/ntfy"
    advice = await agent.refusal("container_create", template=image)
    assert f"{image}:v2.15.0" in advice
    facts = await agent.facts(
        "container_create", template=f"{image}:v2.15.0", name="ntfy", memory="256M", start=True,
        options={"entrypoint": "ntfy serve", "env": {"NTFY_BEHIND_PROXY": "true"}}, mounts=["1G,mp=/var/lib/ntfy"],
    )  # fmt: skip
    ct = guest(quorate, facts)
    assert (ct.running, ct.config["entrypoint"]) == (True, "ntfy serve")
    assert "NTFY_BEHIND_PROXY=true" in ct.config["env"].split("\0")
    assert agent.calls == 2


@pytest.mark.quorate(toolsets=("default", "images", "provision"))
async def test_an_appliance_from_the_internet_becomes_a_running_vm(quorate, agent):
    """Download, import: firmware, disk and network as it describes them. 2 calls."""
    await agent.facts("image_download", url=APPLIANCE, storage="local")
    facts = await agent.facts("vm_import", source=APPLIANCE.rpartition("/")[2], name="homeassistant", start=True)
    vm = guest(quorate, facts)
    assert (vm.running, vm.config["bios"], facts["status"]) == (True, "ovmf", "running")
    assert "size=32G" in vm.config["sata0"]
    assert agent.calls == 2


@default_tools
async def test_a_number_that_is_taken_leads_to_a_free_one(quorate, agent):
    """The refusal says who has it and which is free. 2 calls."""
    arguments = {"template": "debian-13-standard", "name": "wiki", "ssh_keys": [KEY]}
    advice = await agent.refusal("container_create", vmid=105, **arguments)
    assert "k3s-agent (vm 105 on pve3)" in advice
    free = int(advice.partition("such as ")[2].split(",")[0])
    facts = await agent.facts("container_create", vmid=free, **arguments)
    assert facts["vmid"] == free
    assert agent.calls == 2


@default_tools
async def test_a_plan_is_shown_first_and_then_carried_out_as_shown(quorate, agent):
    """A dry run with every choice, then the same call. 2 calls, and the first changes nothing."""
    arguments = {"name": "build01", "cores": 2, "memory": "4G", "disks": ["40G"], "tags": ["ci"]}
    shown = await agent.facts("vm_create", **arguments, dry_run=True)
    assert quorate.writes == []
    made = await agent.facts("vm_create", **arguments)
    assert shown["chosen"] == made["chosen"]
    assert shown["node"] == guest(quorate, made).node
    assert agent.calls == 2


@default_tools
async def test_a_guest_for_an_hour_is_made_used_and_removed(quorate, agent):
    """Make it, run a command in it, delete it while it runs. 3 calls."""
    facts = await agent.facts(
        "guest_clone", guest=9000, name="scratch", cloud_init={"ssh_keys": [KEY]}, wait_for="agent"
    )
    output = await agent.facts("guest_exec", guest=facts["vmid"], command="cat /etc/os-release")
    assert "trixie" in output["stdout"]
    await agent.facts("guest_delete", guest=facts["vmid"], stop=True)
    assert facts["vmid"] not in quorate.sim.world.guests
    assert agent.calls == 3
