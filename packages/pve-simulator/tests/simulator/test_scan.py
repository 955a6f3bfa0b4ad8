"""Scans of a node, and the contents of backups and images."""

from __future__ import annotations

import base64

from pve_simulator.api_client import Api


async def test_a_node_finds_what_its_storages_stand_on(api: Api) -> None:
    scan = "/nodes/pve1/scan"
    assert {"method": "nfs"} in (await api.get(scan)).data
    assert (await api.get(f"{scan}/lvm")).data == [{"vg": "pve"}]
    assert (await api.get(f"{scan}/lvmthin", vg="pve")).data == [{"lv": "data"}]
    assert (await api.get(f"{scan}/zfs")).data == [{"pool": "tank"}, {"pool": "tank/vm"}]
    assert (await api.get("/nodes/pve3/scan/zfs")).data == []
    exports = (await api.get(f"{scan}/nfs", server="192.168.10.5")).data
    assert [row["path"] for row in exports] == ["/volume1/proxmox"]
    stores = await api.get(f"{scan}/pbs", server="192.168.10.6", username="u@pbs", password="p")
    assert stores.data == [{"store": "homelab"}]


async def test_servers_that_are_not_there_do_not_answer(api: Api) -> None:
    scan = "/nodes/pve1/scan"
    nfs = await api.get(f"{scan}/nfs", server="10.1.1.1")
    assert nfs.reason == "command '/sbin/showmount --no-headers --exports 10.1.1.1' failed: exit code 1"
    assert (await api.get(f"{scan}/cifs", server="10.1.1.1")).status == 500
    assert (await api.get(f"{scan}/pbs", server="10.1.1.1", username="u@pbs", password="p")).status == 500
    assert (await api.get(f"{scan}/iscsi", portal="10.1.1.1")).data == []
    assert (await api.as_token("alice@pve!cli").get(f"{scan}/lvm")).status == 403


async def test_files_in_a_backup_can_be_listed(api: Api) -> None:
    path = "/nodes/pve1/storage/pbs/file-restore/list"
    volume = "pbs:backup/vm/102/2026-01-14T01:00:05Z"
    top = (await api.get(path, volume=volume, filepath="/")).data
    assert [row["text"] for row in top] == ["drive-scsi0.img.fidx"]
    below = (await api.get(path, volume=volume, filepath=top[0]["filepath"])).data
    assert {"etc", "home"} <= {row["text"] for row in below}
    etc = next(row for row in below if row["text"] == "etc")
    assert base64.b64decode(etc["filepath"]) == b"/drive-scsi0.img.fidx/etc"
    assert (await api.get(path, volume=volume, filepath="not base64!")).status == 500
    other = await api.get(
        "/nodes/pve1/storage/nas/file-restore/list",
        volume="nas:backup/vzdump-qemu-109-2025_12_31-02_00_01.vma.zst",
        filepath="/",
    )
    assert other.errors == {"storage": "Only PBS storages supported for file-restore."}
