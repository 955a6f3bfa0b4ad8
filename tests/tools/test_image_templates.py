"""From a cloud image to a template, in one plan; the same image is not imported twice."""

import hashlib
import json
from contextlib import asynccontextmanager
from importlib.resources import files

import pytest
from aiohttp import web

from quorate.config import Access, Approval
from quorate.config.images import CloudImage
from quorate.operations.registry import operations

pytestmark = pytest.mark.anyio

DEBIAN = "https://cloud.debian.org/images/cloud/trixie/latest/debian-13-genericcloud-amd64.qcow2"
UBUNTU = "https://cloud-images.ubuntu.com/noble/current/noble-server-cloudimg-amd64.img"
SUM = hashlib.sha512(DEBIAN.encode()).hexdigest()
OTHER = hashlib.sha512(b"another").hexdigest()
FILE = DEBIAN.rpartition("/")[2]


def guest(quorate, vmid):
    return quorate.sim.world.guests[vmid]


def catalog(**entries):
    return {"image_catalog": {name.replace("_", "-"): CloudImage(**entry) for name, entry in entries.items()}}


KNOWN = catalog(debian_13={"url": DEBIAN, "checksum": SUM, "user": "debian"})


@asynccontextmanager
async def published(text):
    """A publisher's file of checksums, on this machine."""

    async def answer(_):
        return web.Response(text=text)

    application = web.Application()
    application.router.add_get("/SUMS", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/SUMS"
    finally:
        await runner.cleanup()


@pytest.mark.quorate(more=KNOWN)
async def test_an_image_of_the_catalog_becomes_a_template_that_can_be_cloned(quorate):
    facts = await quorate.facts("image_to_template", image="debian-13")
    assert facts["result"] == "done"
    made = guest(quorate, facts["vmid"])
    assert (made.template, made.name, made.running) == (True, "debian-13", False)
    config = made.config
    assert (config["agent"], config["serial0"], config["vga"], config["ciuser"]) == ("1", "socket", "serial0", "debian")
    assert "cloudinit" in config["ide2"]
    assert config["boot"] == "order=scsi0"
    assert facts["checksum"] == f"sha512:{SUM}"
    clone = await quorate.facts(
        "guest_clone", guest="debian-13", name="web01", cloud_init={"password": "a-long-secret"}
    )
    assert clone["mode"] == "linked"


@pytest.mark.quorate(more=KNOWN)
async def test_the_same_image_is_reused_and_a_newer_one_is_not(quorate):
    first = await quorate.facts("image_to_template", image="debian-13")
    before = set(quorate.sim.world.guests)
    again = await quorate.facts("image_to_template", image="debian-13", name="other")
    assert again["vmid"] == first["vmid"]
    assert "the same checksum" in str(again)
    assert set(quorate.sim.world.guests) == before
    assert "checksum mismatch" in await quorate.refusal("image_to_template", image="debian-13", checksum=OTHER)


@pytest.mark.quorate(more=KNOWN)
async def test_a_plan_that_was_cut_off_after_the_download_continues_without_a_second_one(quorate):
    handed_back = await quorate.facts("image_to_template", image="debian-13", node="pve1", wait=0)
    (task,) = [step["task"] for step in handed_back["steps"] if "task" in step]
    await quorate.facts("task_wait", task=task)
    facts = await quorate.facts("image_to_template", image="debian-13", node="pve1")
    assert guest(quorate, facts["vmid"]).template
    downloads = [path for method, path in quorate.sim.requests if method == "POST" and path.endswith("download-url")]
    assert len(downloads) == 1


@pytest.mark.parametrize(
    "text",
    [f"{OTHER}  other.qcow2\n{SUM}  {FILE}\n", f"{SUM} *{FILE}\n", f"# note\nSHA512 ({FILE}) = {SUM}\n", f"{SUM}\n"],
)
async def test_checksums_are_read_from_what_publishers_write(start_quorate, text):
    async with published(text) as url:
        quorate = await start_quorate(more=catalog(debian_13={"url": DEBIAN, "checksum_url": url}))
        facts = await quorate.facts("image_to_template", image="debian-13", dry_run=True)
        assert facts["checksum"] == f"sha512:{SUM}"


async def test_without_the_publishers_checksum_nothing_is_downloaded(start_quorate):
    async with published(f"{OTHER}  other.qcow2\n") as url:
        quorate = await start_quorate(more=catalog(debian_13={"url": DEBIAN, "checksum_url": url}))
        assert "has no checksum of" in await quorate.refusal("image_to_template", image="debian-13")
    refused = await quorate.refusal("image_to_template", image="debian-13")
    assert "cannot be read" in refused
    assert "checksum" in refused


async def test_a_url_works_with_a_checksum_and_warns_without(quorate):
    good = hashlib.sha256(UBUNTU.encode()).hexdigest()
    facts = await quorate.facts("image_to_template", image=UBUNTU, checksum=good, name="noble", bridge="vmbr1")
    assert not facts.get("warnings")
    assert "bridge=vmbr1" in guest(quorate, facts["vmid"]).config["net0"]
    facts = await quorate.facts("image_to_template", image=DEBIAN, dry_run=True)
    assert "Without a checksum" in facts["warnings"][0]


async def test_a_file_of_a_storage_is_imported_without_a_download(quorate):
    stored = await quorate.facts("image_download", url=DEBIAN, node="pve1")
    facts = await quorate.facts("image_to_template", image=stored["volume"], node="pve1", name="from-file")
    assert guest(quorate, facts["vmid"]).template
    assert not any("Download" in str(step) for step in facts["steps"])


async def test_an_unknown_image_is_refused_with_those_that_exist(quorate):
    refused = await quorate.refusal("image_to_template", image="debian-31")
    assert "Did you mean" in refused
    assert "fedora-43" in await quorate.refusal("image_to_template", image="plan9")


@pytest.mark.quorate(more=KNOWN, access=Access.OPERATE, approval=Approval.ASK)
async def test_making_a_new_template_needs_no_person_but_converting_a_guest_does(quorate):
    facts = await quorate.facts("image_to_template", image="debian-13")
    assert guest(quorate, facts["vmid"]).template
    await quorate.refusal("guest_template", guest=108)
    assert not guest(quorate, 108).template


def test_the_built_in_catalog_has_checksums_over_https():
    entries = json.loads(files("quorate.tools").joinpath("cloud_images.json").read_text())
    assert {name.partition("-")[0] for name in entries} >= {"debian", "ubuntu", "fedora", "rocky", "alma", "alpine"}
    for name, entry in entries.items():
        assert entry["url"].startswith("https://"), name
        assert entry["checksum_url"].startswith("https://"), name
        assert entry["user"], name
    assert operations()["image_to_template"].toolset == "images"
