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


def encoded(path: str) -> str:
    return base64.b64encode(path.encode()).decode()


async def test_files_in_a_backup_can_be_listed(api: Api) -> None:
    path = "/nodes/pve1/storage/pbs/file-restore/list"
    volume = "pbs:backup/vm/102/2026-01-14T01:00:05Z"
    top = (await api.get(path, volume=volume, filepath="/")).data
    assert [(row["text"], row["type"], row["leaf"]) for row in top] == [("drive-scsi0.img.fidx", "v", 0)]
    (parts,) = (await api.get(path, volume=volume, filepath=top[0]["filepath"])).data
    assert (parts["text"], parts["type"]) == ("part", "v")
    below = (await api.get(path, volume=volume, filepath=encoded("/drive-scsi0.img.fidx/part/1"))).data
    assert {"etc", "home"} <= {row["text"] for row in below}
    etc = next(row for row in below if row["text"] == "etc")
    assert base64.b64decode(etc["filepath"]) == b"drive-scsi0.img.fidx/part/1/etc"
    node = api.cluster.world.nodes["pve1"]
    node.has_restore_image = False
    refused = await api.get(path, volume=volume, filepath=top[0]["filepath"])
    assert "package 'proxmox-backup-restore-image' is not (correctly) installed" in refused.reason


async def test_files_in_a_backup_are_found_and_refused_in_pves_words(api: Api) -> None:
    """As recorded with a backup of a container."""
    path = "/nodes/pve2/storage/pbs/file-restore"
    volume = "pbs:backup/ct/203/2026-01-14T01:00:05Z"
    (top,) = (await api.get(f"{path}/list", volume="ct/203/2026-01-14T01:00:05Z", filepath="/")).data
    assert (top["text"], top["type"], top["filepath"]) == ("root.pxar.didx", "d", encoded("/root.pxar.didx"))
    rows = (await api.get(f"{path}/list", volume=volume, filepath=encoded("/root.pxar.didx/etc"))).data
    hostname = next(row for row in rows if row["text"] == "hostname")
    assert (hostname["type"], hostname["leaf"], hostname["size"]) == ("f", 1, len("postgres\n"))
    downloaded = await api.get(f"{path}/download", volume=volume, filepath=hostname["filepath"])
    assert downloaded.text == "postgres\n"
    missing = {"volume": volume, "filepath": encoded("root.pxar.didx/nope")}
    lost = await api.get(f"{path}/download", **missing)
    assert (lost.status, lost.text) == (200, "")
    assert (await api.get(f"{path}/list", **missing)).reason == 'path "root.pxar.didx/nope" not found in catalog'
    plain = await api.get(f"{path}/list", volume=volume, filepath="/root.pxar.didx")
    complaint = "Failed base64-decoding path '/root.pxar.didx' - error decoding base64 data"
    assert (plain.status, plain.reason) == (500, f"proxmox-file-restore failed: Error: {complaint}")
    unknown = await api.get(f"{path}/list", volume="pbs:backup/ct/203/2020-01-01T00:00:00Z", filepath="/")
    assert (unknown.status, unknown.reason) == (400, "snapshot ct/203/2020-01-01T00:00:00Z does not exist.")


async def test_other_storages_do_not_show_files_in_backups(api: Api) -> None:
    other = await api.get(
        "/nodes/pve1/storage/nas/file-restore/list",
        volume="nas:backup/vzdump-qemu-109-2025_12_31-02_00_01.vma.zst",
        filepath="/",
    )
    assert other.errors == {"storage": "Only PBS storages supported for file-restore."}
