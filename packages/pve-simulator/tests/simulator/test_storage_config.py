"""Storage configuration: adding, changing and removing storages."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import Api


async def test_a_new_directory_can_be_used_at_once(api: Api) -> None:
    created = await api.post("/storage", storage="extra", type="dir", path="/mnt/extra", content="images,iso")
    assert created.data == {"storage": "extra", "type": "dir"}
    shown = (await api.get("/storage/extra")).data
    assert shown["path"] == "/mnt/extra"
    assert sorted(shown["content"].split(",")) == ["images", "iso"]
    status = (await api.get("/nodes/pve1/storage/extra/status")).data
    assert status["active"] == 1
    assert status["total"] > status["used"] > 0


_DIR = {"storage": "new", "type": "dir", "path": "/x"}
_FAILED = "create storage failed: "


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({**_DIR, "vgname": "pve"}, "unexpected property 'vgname'"),
        ({"storage": "new", "type": "lvmthin", "vgname": "pve"}, "missing value for required option 'thinpool'"),
        (
            {"storage": "new", "type": "zfspool", "pool": "nope"},
            f"{_FAILED}could not activate storage 'new', zfs error: cannot import 'nope': no such pool available",
        ),
        ({**_DIR, "content": "none,iso"}, "unable to combine 'none' with other content types"),
        (
            {"storage": "new", "type": "iscsi", "portal": "10.0.0.1", "target": "iqn.x"},
            f"{_FAILED}storage 'new' is not online",
        ),
        (
            {"storage": "new", "type": "nfs", "server": "10.9.9.9", "export": "/x"},
            f"{_FAILED}storage 'new' is not online",
        ),
        (
            {"storage": "new", "type": "btrfs", "path": "/srv/pool"},
            f"{_FAILED}'/srv/pool' is not a btrfs file system",
        ),
    ],
)
async def test_what_pve_refuses_to_create_is_refused_in_its_words(api: Api, params: dict[str, str], text: str) -> None:
    reply = await api.post("/storage", **params)
    assert (reply.status, reply.reason) == (500, text)
    assert "new" not in api.cluster.world.storages


@pytest.mark.parametrize(
    "params",
    [
        {"type": "lvm", "vgname": "pve"},
        {"type": "cifs", "server": "192.168.10.5", "share": "media", "username": "u", "password": "secret-word"},
        {"type": "nfs", "server": "192.168.10.5", "export": "/x"},
        {"type": "pbs", "server": "192.168.10.6", "datastore": "d", "username": "u@pbs", "password": "secret-word"},
        {"type": "zfspool", "pool": "tank/other", "sparse": "1"},
        {"type": "lvmthin", "vgname": "pve", "thinpool": "data"},
        {"type": "btrfs", "path": "/mnt/pool", "is_mountpoint": "1"},
    ],
)
async def test_every_type_can_be_created_and_never_shows_its_password(api: Api, params: dict[str, str]) -> None:
    assert (await api.post("/storage", storage="new", **params)).status == 200
    shown = await api.get("/storage/new")
    assert shown.data["type"] == params["type"]
    assert "secret-word" not in shown.text
    assert shown.data.get("shared", 0) == int(params["type"] in ("cifs", "nfs", "pbs"))
    assert (await api.get("/nodes/pve1/storage/new/status")).data["enabled"] == 1


@pytest.mark.parametrize("params", [{"type": "lvm", "vgname": "nope"}, {"type": "rbd", "pool": "nope"}])
async def test_a_missing_backend_leaves_the_storage_inactive(api: Api, params: dict[str, str]) -> None:
    assert (await api.post("/storage", storage="ghost", **params)).status == 200
    status = (await api.get("/nodes/pve1/storage/ghost/status")).data
    assert (status["enabled"], status["active"], status["total"]) == (1, 0, 0)


async def test_changes_need_the_right_digest_and_known_options(api: Api) -> None:
    digest = (await api.get("/storage/nas")).data["digest"]
    assert (await api.get("/storage/local")).data["digest"] == digest
    changed = await api.put("/storage/nas", nodes="pve1,pve2", digest=digest)
    assert changed.data == {"storage": "nas", "type": "nfs"}
    assert (await api.get("/storage/nas")).data["nodes"] == "pve1,pve2"
    late = await api.put("/storage/nas", disable=1, digest=digest)
    assert late.reason == (
        "update storage failed: detected modified configuration - file changed by other user? Try again."
    )
    assert (await api.put("/storage/nas", delete="nodes")).status == 200
    assert "nodes" not in (await api.get("/storage/nas")).data
    required = await api.put("/storage/nas", delete="server")
    assert required.reason == "update storage failed: unable to delete required option 'server'"
    foreign = await api.put("/storage/nas", sparse=1)
    assert foreign.reason == "update storage failed: unexpected property 'sparse'"
    unknown = await api.put("/storage/nope", disable=1)
    assert unknown.reason == "update storage failed: storage 'nope' does not exist"
    fixed = await api.put("/storage/local", path="/elsewhere")
    assert fixed.status == 400
    assert list(fixed.errors) == ["path"]


async def test_a_disabled_storage_can_no_longer_be_used(api: Api) -> None:
    await api.put("/storage/nas", disable=1)
    refused = await api.post("/nodes/pve1/storage/nas/content", vmid=100, filename="vm-100-disk-7.raw", size="1G")
    assert refused.reason == "storage 'nas' is disabled"


async def test_sharing_a_directory_loses_no_volume(api: Api) -> None:
    before = len((await api.get("/nodes/pve1/storage/local/content")).data)
    await api.put("/storage/local", shared=1)
    assert len((await api.get("/nodes/pve3/storage/local/content")).data) == before
    await api.put("/storage/local", delete="shared")
    assert len((await api.get("/nodes/pve1/storage/local/content")).data) == before
    assert (await api.get("/nodes/pve3/storage/local/content")).data == []


async def test_removing_a_storage_removes_the_roles_on_it(api: Api) -> None:
    assert (await api.delete("/storage/local-lvm")).data is None
    assert (await api.get("/storage/local-lvm")).reason == "storage 'local-lvm' does not exist"
    access = api.cluster.world.access
    assert not [entry for entry in access.acl() if entry.path == "/storage/local-lvm"]
    assert "local-lvm" not in access.pools["lab"].storages
    again = await api.delete("/storage/local-lvm")
    assert again.reason == "delete storage failed: storage 'local-lvm' does not exist"


async def test_only_those_who_may_allocate_storages_may_change_them(api: Api) -> None:
    alice = api.as_token("alice@pve!cli")
    refused = await alice.post("/storage", storage="new", type="dir", path="/x")
    assert refused.reason == "Permission check failed (/storage, Datastore.Allocate)"
