"""Storage configuration: adding, changing and removing storages."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import run, simulated_api


def test_a_new_directory_can_be_used_at_once() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            made = await api.post("/storage", storage="extra", type="dir", path="/mnt/extra", content="images,iso")
            assert made.data == {"storage": "extra", "type": "dir"}
            shown = (await api.get("/storage/extra")).data
            assert shown["path"] == "/mnt/extra"
            assert shown["content"] == "images,iso"
            status = (await api.get("/nodes/pve1/storage/extra/status")).data
            assert status["active"] == 1
            assert status["total"] > status["used"] > 0

    run(scenario())


_DIR = {"storage": "new", "type": "dir", "path": "/x"}
_FAILED = "create storage failed: "


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({**_DIR, "storage": "nas"}, f"{_FAILED}storage ID 'nas' already defined"),
        ({"storage": "new", "type": "dir"}, "missing value for required option 'path'"),
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
def test_what_pve_refuses_to_create_is_refused_in_its_words(params: dict[str, str], text: str) -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            reply = await api.post("/storage", **params)
            assert (reply.status, reply.reason) == (500, text)
            assert "new" not in api.cluster.world.storages

    run(scenario())


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
def test_every_type_is_taken_and_never_shows_its_password(params: dict[str, str]) -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            assert (await api.post("/storage", storage="new", **params)).status == 200
            shown = await api.get("/storage/new")
            assert shown.data["type"] == params["type"]
            assert "secret-word" not in shown.text
            assert shown.data.get("shared", 0) == int(params["type"] in ("cifs", "nfs", "pbs"))
            assert (await api.get("/nodes/pve1/storage/new/status")).data["enabled"] == 1

    run(scenario())


@pytest.mark.parametrize("params", [{"type": "lvm", "vgname": "nope"}, {"type": "rbd", "pool": "nope"}])
def test_a_missing_backend_leaves_the_storage_inactive(params: dict[str, str]) -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            assert (await api.post("/storage", storage="ghost", **params)).status == 200
            status = (await api.get("/nodes/pve1/storage/ghost/status")).data
            assert (status["enabled"], status["active"], status["total"]) == (1, 0, 0)

    run(scenario())


def test_changes_need_the_right_digest_and_known_options() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
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

    run(scenario())


def test_a_disabled_storage_can_no_longer_be_used() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            await api.put("/storage/nas", disable=1)
            refused = await api.post(
                "/nodes/pve1/storage/nas/content", vmid=100, filename="vm-100-disk-7.raw", size="1G"
            )
            assert refused.reason == "storage 'nas' is disabled"

    run(scenario())


def test_sharing_a_directory_loses_no_volume() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            before = len((await api.get("/nodes/pve1/storage/local/content")).data)
            await api.put("/storage/local", shared=1)
            assert len((await api.get("/nodes/pve3/storage/local/content")).data) == before
            await api.put("/storage/local", delete="shared")
            assert len((await api.get("/nodes/pve1/storage/local/content")).data) == before
            assert (await api.get("/nodes/pve3/storage/local/content")).data == []

    run(scenario())


def test_a_removed_storage_takes_its_rights_along() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            assert (await api.delete("/storage/local-lvm")).data is None
            assert (await api.get("/storage/local-lvm")).reason == "storage 'local-lvm' does not exist"
            access = api.cluster.world.access
            assert not [entry for entry in access.acl() if entry.path == "/storage/local-lvm"]
            assert "local-lvm" not in access.pools["lab"].storages
            again = await api.delete("/storage/local-lvm")
            assert again.reason == "delete storage failed: storage 'local-lvm' does not exist"

    run(scenario())


def test_only_those_who_may_allocate_storages_may_change_them() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            alice = api.as_token("alice@pve!cli")
            refused = await alice.post("/storage", storage="new", type="dir", path="/x")
            assert refused.reason == "Permission check failed (/storage, Datastore.Allocate)"

    run(scenario())
