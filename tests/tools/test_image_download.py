"""Images from the internet and container templates from the appliance list."""

import hashlib

import pytest

from pve_simulator.routes.storage.aplinfo import APPLIANCES
from pve_simulator.storage.storages import Volume
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

DEBIAN = "https://cloud.debian.org/images/cloud/trixie/latest/debian-13-genericcloud-amd64.qcow2"
ALPINE = "https://dl-cdn.alpinelinux.org/alpine/v3.22/releases/x86_64/alpine-virt-3.22.2-x86_64.iso"
UBUNTU = "https://cloud-images.ubuntu.com/noble/current/noble-server-cloudimg-amd64.img"
TEMPLATE = "debian-13-standard_13.1-2_amd64.tar.zst"


def volume(quorate, volid, node="pve1"):
    return quorate.sim.world.storages[volid.partition(":")[0]].volume(node, volid)


async def test_a_node_downloads_an_image_under_the_name_and_kind_it_detects(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("image_download", url=DEBIAN, node="pve2")
        assert facts["volume"] == "local:import/debian-13-genericcloud-amd64.qcow2"
        assert facts["result"] == "done"
        assert "checksum" in facts["warnings"][0]
        assert volume(quorate, facts["volume"], "pve2").size > 300 * 1024**2


async def test_the_checksum_is_verified_by_the_node(tmp_path):
    async with rig(tmp_path) as quorate:
        good = hashlib.sha256(ALPINE.encode()).hexdigest()
        facts = await quorate.facts("image_download", url=ALPINE, storage="nas", checksum=good)
        assert facts["result"] == "done"
        assert "warnings" not in facts
        again = await quorate.facts("image_download", url=ALPINE, storage="nas", checksum=f"sha256:{good}")
        assert "already exists" in again["warnings"][0]
        text = await quorate.refusal("image_download", url=DEBIAN, checksum="0" * 64)
        assert "checksum mismatch" in text
        assert volume(quorate, "local:import/debian-13-genericcloud-amd64.qcow2") is None


async def test_a_file_that_is_there_is_not_downloaded_again(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("image_download", url=ALPINE, storage="nas", filename="alpine.iso")
        assert volume(quorate, "nas:iso/alpine.iso") is not None
        text = await quorate.refusal("image_download", url=ALPINE, storage="nas", filename="alpine.iso")
        assert "already exists" in text
        assert "checksum=" in text


async def test_an_ending_that_does_not_fit_is_explained(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("image_download", url=UBUNTU, content="import", storage="local")
        assert "filename=" in text
        facts = await quorate.facts(
            "image_download", url=UBUNTU, content="import", filename="noble.qcow2", storage="local", node="pve1"
        )
        assert volume(quorate, facts["volume"]).content == "import"


async def test_an_address_that_cannot_be_fetched_is_refused_before_anything_changes(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("image_download", url="https://cdimage.debian.org/none.iso")
        assert "404" in text
        assert "image_upload" in text
        assert "https://" in await quorate.refusal("image_download", url="ftp://host/x.iso")
        assert all(method == "GET" for method, _ in quorate.sim.requests)


async def test_a_download_is_found_after_its_answer_is_lost(tmp_path):
    async with rig(tmp_path, faults=["drop:after:POST:/nodes/*/download-url"]) as quorate:
        facts = await quorate.facts("image_download", url=ALPINE, storage="nas")
        assert "answer was lost" in facts["note"]
        assert [method for method, _ in quorate.sim.requests].count("POST") == 1
        assert volume(quorate, facts["volume"]) is not None


async def test_a_long_download_is_handed_back(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("image_download", url=ALPINE, storage="nas", wait=0)
        assert "task_wait" in facts["next"]
        await quorate.facts("task_wait", task=facts["task"])
        assert volume(quorate, facts["volume"]) is not None


# -- templates ---------------------------------------------------------------------------------------------------------


async def test_templates_that_are_there_come_before_those_that_can_be_had(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = await quorate.rows("template_list")
        assert rows[0]["template"] == TEMPLATE
        assert rows[0]["present_on"] == "local on pve1, local on pve2, local on pve3"
        assert {row["template"] for row in rows} == set(APPLIANCES)
        assert len(await quorate.rows("template_list", show="present")) == 1
        assert [row["template"] for row in await quorate.rows("template_list", search="nextcloud")] == [
            "debian-12-turnkey-nextcloud_18.1-1_amd64.tar.gz"
        ]


async def test_a_template_is_downloaded_by_its_package_name(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("image_download", template="debian-12-standard", storage="nas")
        assert facts["volume"] == "nas:vztmpl/debian-12-standard_12.12-1_amd64.tar.zst"
        assert volume(quorate, facts["volume"]) is not None
        again = await quorate.facts("image_download", template="debian-12-standard", storage="nas")
        assert again["result"] == "nothing to do"


async def test_an_unclear_template_is_answered_with_a_choice(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("image_download", template="ubuntu")
        assert "ubuntu-24.04-standard_24.04-2_amd64.tar.zst" in text
        assert "template_list" in await quorate.refusal("image_download", template="zzzzzz")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "One of url and template is needed"),
        ({"url": ALPINE, "template": "alpine"}, "One of url and template is needed"),
        ({"template": "alpine", "filename": "x.tar.gz"}, "filename cannot be combined with template"),
        ({"template": "alpine", "checksum": "ab" * 32}, "checksum cannot be combined with template"),
        ({"template": "alpine", "verify_certificates": False}, "verify_certificates cannot be combined with template"),
    ],
)
async def test_a_download_is_of_a_url_or_of_a_template(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        assert words in await quorate.refusal("image_download", **arguments)


@pytest.mark.parametrize("name", ["debian-12", "nextcloud", "turnkey-nextcloud", "alpine", "ubuntu-24.04-standard"])
async def test_a_name_means_the_same_template_to_a_download_and_to_a_new_container(tmp_path, name):
    async with rig(tmp_path) as quorate:
        download = await quorate.facts("image_download", template=name, storage="nas", dry_run=True)
        creation = await quorate.facts("container_create", template=name, dry_run=True)
        assert download["volume"] == f"nas:vztmpl/{creation['chosen']['template']}"


async def test_a_template_of_ones_own_is_listed_as_well(tmp_path):
    async with rig(tmp_path) as quorate:
        own = Volume("nas:vztmpl/own.tar.gz", "vztmpl", "tgz", 1 << 20, 1 << 20, 1768000000)
        quorate.sim.world.storages["nas"].add("pve1", own)
        rows = await quorate.rows("template_list", show="present", storage="nas")
        assert [(row["template"], row["present_on"]) for row in rows] == [("own.tar.gz", "nas")]


@pytest.mark.parametrize("version", ["8.4.1", "9.2.3"])
async def test_images_come_by_every_way_on_both_major_versions(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        download = await quorate.facts("image_download", url=ALPINE, storage="nas", verify_certificates=False)
        assert volume(quorate, download["volume"]) is not None
        sent = await quorate.facts("image_upload", data="aGVsbG8=", filename="hello.iso", storage="nas")
        assert volume(quorate, sent["volume"]).size == 5
        download = await quorate.facts("image_download", template="alpine-3.22-default", storage="nas")
        assert volume(quorate, download["volume"]) is not None
