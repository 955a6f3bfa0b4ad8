"""The disks of a node: health, and storages on them."""

from __future__ import annotations

from typing import Any

import pytest

from pve_simulator.api_client import Api

DISKS = "/nodes/pve1/disks"


async def unused_disks(api: Api) -> list[str]:
    return [row["devpath"] for row in (await api.get(f"{DISKS}/list", type="unused")).data]


async def test_the_list_distinguishes_used_and_unused_disks(api: Api):
    rows = {row["devpath"]: row for row in (await api.get(f"{DISKS}/list")).data}
    assert rows["/dev/nvme0n1"]["used"] == "BIOS boot"
    assert rows["/dev/sda"]["used"] == "ZFS"
    assert await unused_disks(api) == ["/dev/sdc", "/dev/sdd"]
    parts = (await api.get(f"{DISKS}/list", **{"include-partitions": 1})).data
    assert {"/dev/nvme0n1p3", "/dev/sda1"} <= {row["devpath"] for row in parts}


async def test_health_is_a_table_or_a_text(api: Api):
    table = (await api.get(f"{DISKS}/smart", disk="/dev/sda")).data
    assert table["type"] == "ata"
    assert table["attributes"][0]["name"] == "Reallocated_Sector_Ct"
    text = (await api.get(f"{DISKS}/smart", disk="/dev/nvme0n1")).data
    assert text["type"] == "text"
    assert "Percentage Used" in text["text"]
    assert (await api.get(f"{DISKS}/smart", disk="/dev/sda", healthonly=1)).data == {"health": "PASSED"}
    assert (await api.get(f"{DISKS}/smart", disk="/dev/sdz")).reason == "not a valid block device"


async def test_the_pools_of_the_storages_are_there(api: Api):
    group = (await api.get(f"{DISKS}/lvm")).data["children"][0]
    assert (group["name"], group["leaf"]) == ("pve", 0)
    assert [row["lv"] for row in (await api.get(f"{DISKS}/lvmthin")).data] == ["data"]
    [pool] = (await api.get(f"{DISKS}/zfs")).data
    assert (pool["name"], pool["health"]) == ("tank", "ONLINE")
    detail = (await api.get(f"{DISKS}/zfs/tank")).data
    assert detail["children"][0]["children"][0]["name"] == "mirror-0"
    assert (await api.get(f"{DISKS}/zfs/nope")).status == 500


@pytest.mark.parametrize(
    ("kind", "params", "task", "storage"),
    [
        ("lvm", {"device": "/dev/sdc"}, "lvmcreate", "lvm"),
        ("lvmthin", {"device": "/dev/sdc"}, "lvmthincreate", "lvmthin"),
        ("directory", {"device": "/dev/sdc", "filesystem": "xfs"}, "dircreate", "dir"),
        ("zfs", {"devices": "/dev/sdc,/dev/sdd", "raidlevel": "mirror"}, "zfscreate", "zfspool"),
    ],
)
async def test_a_storage_is_created_on_an_empty_disk_and_removed_again(
    api: Api, kind: str, params: dict[str, Any], task: str, storage: str
):
    created = await api.post(f"{DISKS}/{kind}", name="fresh", add_storage=1, **params)
    assert f":{task}:fresh:" in created.data
    assert await api.finish_task(created) == "OK"
    assert "/dev/sdc" not in await unused_disks(api)
    row = (await api.get("/nodes/pve1/storage/fresh/status")).data
    assert row["type"] == storage
    assert row["total"] > 1_000_000_000_000
    again = await api.post(f"{DISKS}/{kind}", name="other", **params)
    assert again.reason == "device '/dev/sdc' is already in use"
    more = "&volume-group=fresh" if kind == "lvmthin" else ""
    gone = await api.delete(f"{DISKS}/{kind}/fresh?cleanup-config=1&cleanup-disks=1{more}")
    assert await api.finish_task(gone) == "OK"
    assert await unused_disks(api) == ["/dev/sdc", "/dev/sdd"]
    assert "fresh" not in api.cluster.world.storages


async def test_what_guests_stand_on_is_not_removed(api: Api):
    busy = "command 'zpool destroy tank' failed: exit code 1"
    assert await api.finish_task(await api.delete(f"{DISKS}/zfs/tank?cleanup-config=1")) == busy
    assert await api.finish_task(await api.delete(f"{DISKS}/lvm/nope")) == "no such volume group 'nope'"
    assert "tank" in api.cluster.world.storages


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"devices": "/dev/sdc", "raidlevel": "mirror"}, "mirror needs at least 2 disks"),
        ({"devices": "/dev/sdc,/dev/sdd", "raidlevel": "single"}, "please give only one disk for single disk mode"),
        ({"devices": "/dev/sda", "raidlevel": "single"}, "device '/dev/sda' is already in use"),
        ({"devices": "/dev/nope", "raidlevel": "single"}, "not a valid block device"),
    ],
)
async def test_a_pool_needs_the_right_disks(api: Api, params: dict[str, str], reason: str):
    assert (await api.post(f"{DISKS}/zfs", name="fresh", **params)).reason == reason


async def test_wiping_is_for_root_and_for_disks_that_nothing_holds(api: Api):
    denied = await api.put(f"{DISKS}/wipedisk", disk="/dev/sdc")
    assert denied.reason == "Permission check failed (user != root@pam)"
    root = await api.as_user("root@pam", "simulated-root")
    held = await root.put(f"{DISKS}/wipedisk", disk="/dev/sda")
    assert held.reason == "disk/partition '/dev/sda' has a holder"
    assert await api.finish_task(await root.post(f"{DISKS}/initgpt", disk="/dev/sdc")) == "OK"
    assert await api.finish_task(await root.put(f"{DISKS}/wipedisk", disk="/dev/sdc")) == "OK"
