"""A storage of type pbs on a simulated backup server: both see the same backups, and PVE's words are as recorded."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from pve_simulator.api_client import Api
from pve_simulator.http.certificates import shared_identity
from pve_simulator.pbs.archives import Tree
from pve_simulator.pbs.datastores import Datastore, container_snapshot, host_snapshot, vm_snapshot, with_key
from pve_simulator.pbs.server import BackupServer
from pve_simulator.storage.backup_server import connect

CONTENT = "/nodes/pve2/storage/pbs/content"
KEY = ":".join(["36"] * 32)
TIME = 1_768_352_405


@asynccontextmanager
async def connected(api: Api) -> AsyncIterator[Datastore]:
    async with running(api) as server:
        yield server.datastores["homelab"]


@asynccontextmanager
async def running(api: Api) -> AsyncIterator[BackupServer]:
    async with BackupServer(clock=api.cluster.clock, identity=shared_identity, auth_delay=False) as server:
        (storage,) = connect(api.cluster.world, server)
        assert storage.id == "pbs"
        yield server


def options_for(server: BackupServer) -> dict[str, Any]:
    """How a storage reaches the server."""
    host, port = server.url.removeprefix("https://").split(":")
    login = {"username": server.token_id, "password": server.token_secret, "fingerprint": server.fingerprint}
    return {"server": host, "port": int(port), "datastore": "homelab", **login}


def path_of(volid: str) -> str:
    return f"{CONTENT}/{quote(volid, safe='')}"


async def test_the_backups_of_a_storage_move_to_the_server(api: Api):
    before = (await api.get(CONTENT)).data
    async with connected(api) as datastore:
        after = (await api.get(CONTENT)).data
        assert [row["volid"] for row in after] == [row["volid"] for row in before]
        assert all(row["verification"]["state"] == "ok" and row["notes"] for row in after)
        assert {group.name for _, group in datastore.everything()} == {"vm/102", "ct/202", "ct/203"}


async def test_a_backup_is_on_the_server_with_its_configuration_and_files(api: Api):
    async with connected(api) as datastore:
        reply = await api.post("/nodes/pve2/vzdump", vmid=203, storage="pbs", protected=1, **{"notes-template": "mine"})
        assert await api.finish_task(reply) == "OK"
        snapshot = datastore.group("", "ct", "203").newest()
        assert snapshot is not None
        assert (snapshot.notes, snapshot.protected) == ("mine", True)
        assert b"hostname: postgres" in (snapshot.find("pct.conf.blob").content or b"")  # type: ignore[union-attr]
        entry = snapshot.trees["root.pxar.didx"].find("etc/hostname")
        assert entry is not None
        assert entry.content == b"postgres\n"
        row = next(row for row in (await api.get(CONTENT, vmid=203)).data if row["ctime"] == snapshot.time)
        assert (row["size"], row["protected"], row["format"]) == (snapshot.size, 1, "pbs-ct")
        restored = await api.post("/nodes/pve2/lxc", vmid=800, ostemplate=row["volid"], restore=1, storage="local-lvm")
        assert await api.finish_task(restored) == "OK"
        assert api.cluster.world.guests[800].config["hostname"] == "postgres"


async def test_what_others_store_and_change_at_the_server_shows(api: Api):
    async with connected(api) as datastore:
        files = Tree.of({"etc/hosts": "127.0.0.1 localhost\n"})
        foreign = datastore.add(container_snapshot("901", TIME, "hostname: web\n", files), owner="other@pbs")
        datastore.add(host_snapshot("laptop", TIME, {"etc": files}), owner="other@pbs")
        datastore.add(vm_snapshot("902", TIME, "name: away\n", {}), owner="other@pbs", namespace="prod")
        secret = datastore.add(with_key(vm_snapshot("903", TIME, "name: secret\n", {}), KEY), owner="other@pbs")
        foreign.notes, foreign.verification = "first\nsecond", {"state": "failed", "upid": "UPID"}
        rows = {row["vmid"]: row for row in (await api.get(CONTENT)).data}
        assert {901, 903} <= rows.keys()
        assert 902 not in rows
        assert (rows[901]["notes"], rows[901]["verification"]["state"]) == ("first", "failed")
        assert rows[903]["encrypted"] == KEY
        shown = await api.get("/nodes/pve2/vzdump/extractconfig", volume=rows[901]["volid"])
        assert shown.data == "hostname: web\n"
        hosts = base64.b64encode(b"root.pxar.didx/etc/hosts").decode()
        query = {"volume": rows[901]["volid"], "filepath": hosts}
        assert (await api.get("/nodes/pve2/storage/pbs/file-restore/download", **query)).text == "127.0.0.1 localhost\n"
        refused = await api.get("/nodes/pve2/storage/pbs/file-restore/list", volume=rows[903]["volid"], filepath="/")
        assert refused.reason == f"missing key - manifest was created with key {KEY}"
        datastore.remove("", datastore.group("", "vm", "903"), secret, api.cluster.clock.now())
        assert 903 not in {row["vmid"] for row in (await api.get(CONTENT)).data}


async def test_what_pve_changes_and_removes_changes_at_the_server(api: Api):
    async with connected(api) as datastore:
        group = datastore.group("", "ct", "203")
        oldest, newest = group.in_order()[0], group.in_order()[-1]
        volid = f"pbs:backup/{newest.name}"
        assert (await api.put(path_of(volid), notes="kept\nfor long", protected=1)).status == 200
        assert (newest.notes, newest.protected) == ("kept\nfor long", True)
        refused = await api.finish_task(await api.delete(path_of(volid)))
        why = 'failed to delete snapshot - "cannot remove protected snapshot"'
        assert refused == f"proxmox-backup-client failed: Error: {why}"
        assert await api.finish_task(await api.delete(path_of(f"pbs:backup/{oldest.name}"))) == "OK"
        assert oldest.time not in group.snapshots
        newest.protected = False
        assert await api.finish_task(await api.delete(path_of(volid))) == "OK"
        assert newest.time not in group.snapshots


async def test_the_server_has_the_disk_that_the_storage_had(api: Api):
    status = "/nodes/pve2/storage/pbs/status"
    before = (await api.get(status)).data
    async with connected(api):
        after = (await api.get(status)).data
    assert after["total"] == before["total"]
    assert abs(after["used"] - before["used"]) < before["total"] // 100
    assert after["avail"] == after["total"] - after["used"]


async def test_a_storage_added_later_is_on_the_server_that_it_names(api: Api):
    async with running(api) as server:
        options, datastore = options_for(server), server.datastores["homelab"]
        assert (await api.post("/storage", storage="vault", type="pbs", **options)).data["storage"] == "vault"
        rows = (await api.get("/nodes/pve1/storage/vault/content")).data
        assert {row["volid"].partition(":")[0] for row in rows} == {"vault"}
        assert len(rows) == sum(len(group.snapshots) for _, group in datastore.everything())
        assert await api.finish_task(await api.post("/nodes/pve2/vzdump", vmid=203, storage="vault")) == "OK"
        assert len((await api.get(CONTENT)).data) == len(rows) + 1
        shown = (await api.get("/storage/vault")).data
        assert "password" not in shown
        assert shown["fingerprint"] == options["fingerprint"]


async def test_a_storage_that_cannot_log_in_is_refused_in_pves_words(api: Api):
    """As recorded."""
    async with running(api) as server:
        options = options_for(server)
        not_verified = (
            f"error fetching datastores - fingerprint '{options['fingerprint'].upper()}' not verified, abort!"
        )
        refused = {
            "error fetching datastores - 401 Unauthorized": {**options, "password": "wrongwrong"},
            not_verified: {**options, "fingerprint": ":".join(["00"] * 32)},
            "Cannot find datastore 'ghost', check permissions and existence!": {**options, "datastore": "ghost"},
            "error fetching datastores - 500 Can't connect to 127.0.0.1:9 (Connection refused)": {**options, "port": 9},
        }
        for words, changed in refused.items():
            reply = await api.post("/storage", storage="vault", type="pbs", **changed)
            assert (reply.status, reply.reason) == (500, f"create storage failed: vault: {words}")
        assert (await api.get("/storage/vault")).status == 500


async def test_a_scan_shows_the_datastores_that_a_login_may_see(api: Api):
    """As recorded."""
    async with running(api) as server:
        options = options_for(server)
        query = {name: value for name, value in options.items() if name != "datastore"}
        stores = await api.get("/nodes/pve1/scan/pbs", **query)
        assert [(row["store"], row["mount-status"]) for row in stores.data] == [("homelab", "nonremovable")]
        wrong = await api.get("/nodes/pve1/scan/pbs", **{**query, "password": "wrongwrong"})
        assert (wrong.status, wrong.reason) == (500, "error fetching datastores - 401 Unauthorized")
        del query["fingerprint"]
        unknown = await api.get("/nodes/pve1/scan/pbs", **query)
        assert (
            unknown.reason
            == f"error fetching datastores - fingerprint '{options['fingerprint'].upper()}' not verified, abort!"
        )
