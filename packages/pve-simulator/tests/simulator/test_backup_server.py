"""A simulated Proxmox Backup Server: its answers compared with those of a real 4.1.1, and what those rest on."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from pve_simulator.clock import ManualClock
from pve_simulator.http.certificates import shared_identity
from pve_simulator.pbs.access import Credential
from pve_simulator.pbs.datastores import vm_snapshot
from pve_simulator.pbs.server import BackupServer
from simulator.pbs_replay import OTHER_SECTIONS, Outcome, recordings, replay
from simulator.pbs_world import OWNER, STARTED_AT, back_up, recorded_server

WANTED = 0.97
NOT_RECORDED = "tasks of the section `busy`, which is not in the recordings"
KNOWN = {
    260: "the recording was cut to one of its rows",
    429: NOT_RECORDED,
    430: NOT_RECORDED,
    431: NOT_RECORDED,
    432: NOT_RECORDED,
    434: "a push starts a backup task at the other server; here the other server is not asked",
    436: NOT_RECORDED,
    437: NOT_RECORDED,
    439: NOT_RECORDED,
    441: NOT_RECORDED,
}
MATRIX = [row for row in recordings() if row["section"] == "role-matrix"]
SNAPSHOT = {"backup-type": "ct", "backup-id": "101", "backup-time": 1739145600}
STORE = "/admin/datastore/store1"
MATRIX_CALLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "status": ("GET", f"{STORE}/status", {}),
    "groups": ("GET", f"{STORE}/groups", {}),
    "snapshots": ("GET", f"{STORE}/snapshots", {"backup-type": "ct", "backup-id": "101"}),
    "files": ("GET", f"{STORE}/files", SNAPSHOT),
    "notes read": ("GET", f"{STORE}/notes", SNAPSHOT),
    "notes write": ("PUT", f"{STORE}/notes", {**SNAPSHOT, "notes": "x"}),
    "protect": ("PUT", f"{STORE}/protected", {**SNAPSHOT, "protected": 0}),
    "catalog": ("GET", f"{STORE}/catalog", {**SNAPSHOT, "filepath": "/"}),
    "download": (
        "GET",
        f"{STORE}/pxar-file-download",
        {**SNAPSHOT, "filepath": "L3Jvb3QucHhhci5kaWR4L2V0Yy9ob3N0cw=="},
    ),
    "verify": ("POST", f"{STORE}/verify", SNAPSHOT),
    "prune dry-run": (
        "POST",
        f"{STORE}/prune",
        {"backup-type": "ct", "backup-id": "101", "dry-run": 1, "keep-last": 1},
    ),
    "prune-datastore dry-run": ("POST", f"{STORE}/prune-datastore", {"dry-run": 1, "keep-last": 1}),
    "delete missing snapshot": ("DELETE", f"{STORE}/snapshots", {**SNAPSHOT, "backup-time": 1735711200}),
    "gc status": ("GET", f"{STORE}/gc", {}),
    "gc start": ("POST", f"{STORE}/gc", {}),
    "config read": ("GET", "/config/datastore/store1", {}),
    "config write": ("PUT", "/config/datastore/store1", {"comment": "x"}),
    "rrd": ("GET", f"{STORE}/rrd", {"timeframe": "hour", "cf": "MAX"}),
    "namespace create": ("POST", f"{STORE}/namespace", {"name": "made"}),
}


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return asyncio.run(replay())


def test_nearly_all_answers_are_those_of_the_real_server(outcomes: list[Outcome]):
    replayed = [row for row in recordings() if row["section"] not in OTHER_SECTIONS and "status" in row]
    assert len(outcomes) == len(replayed) == 479
    assert sum(not outcome.differences for outcome in outcomes) / len(outcomes) >= WANTED


def test_what_differs_is_known_and_has_a_reason(outcomes: list[Outcome]):
    differing = {outcome.number: outcome.differences for outcome in outcomes if outcome.differences}
    assert differing.keys() == KNOWN.keys(), {key: differing[key] for key in differing if key not in KNOWN}


class Client:
    """Sends requests as one token."""

    def __init__(self, server: BackupServer, session: aiohttp.ClientSession, authorization: str) -> None:
        self._server = server
        self._session = session
        self._headers = {"Authorization": authorization}

    async def send(self, method: str, path: str, params: dict[str, Any] | None = None) -> tuple[int, Any]:
        url = f"{self._server.url}/api2/json{path}"
        query, form = (params, None) if method in ("GET", "DELETE") else (None, params)
        async with self._session.request(method, url, headers=self._headers, params=query, data=form) as response:
            is_json = response.status == 200 and response.content_type == "application/json"
            return response.status, (await response.json())["data"] if is_json else await response.text()


@asynccontextmanager
async def running(server: BackupServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with server:
        context = ssl.create_default_context(cafile=server.ca_file)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
            yield session


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: row["label"].split()[3])
async def test_a_role_allows_what_it_allows_on_the_real_server(row: dict[str, Any]):
    role = row["label"].split()[3]
    server = recorded_server(clock=ManualClock(STARTED_AT), identity=shared_identity, auth_delay=False)
    server.add_datastore("store1")
    server.access.users["admin@pbs"] = Credential("x")
    server.access.tokens[OWNER] = Credential("x")
    back_up(server)
    user = f"m{role.lower()}@pbs"
    server.access.users[user] = Credential("x")
    server.access.tokens[f"{user}!t"] = Credential("secret")
    for who in (user, f"{user}!t"):
        server.access.acl["/datastore/store1", who, role] = True
    async with running(server) as session:
        client = Client(server, session, f"PBSAPIToken={user}!t:secret")
        for name, (method, path, params) in MATRIX_CALLS.items():
            status, text = row["results"][name]
            answer = await client.send(method, path, params)
            assert answer[0] == status, (name, answer)
            if status >= 400:
                assert answer[1] == text, name


async def test_a_connection_stays_open_after_a_refusal():
    server = BackupServer(clock=ManualClock(STARTED_AT), identity=shared_identity, auth_delay=False)
    async with running(server) as session:
        authorization = f"PBSAPIToken={server.token_id}:{server.token_secret}"
        for path, status in (("/ping", 200), ("/nothing", 404), ("/version", 200)):
            url = f"{server.url}/api2/json{path}"
            async with session.get(url, headers={"Authorization": authorization}) as response:
                assert response.status == status
                assert response.headers.get("Connection") != "close"


async def test_a_verification_finds_damage_that_nobody_knew_about():
    clock = ManualClock(STARTED_AT)

    def build(server: BackupServer) -> None:
        snapshot = vm_snapshot("100", 1735689600, "name: web\n", {"drive-scsi0": 64 << 20})
        snapshot.damaged = frozenset({"drive-scsi0.img.fidx"})
        server.add_datastore("main").add(snapshot, owner="root@pam")

    server = BackupServer(clock=clock, identity=shared_identity, auth_delay=False, build=build)
    async with running(server) as session:
        client = Client(server, session, f"PBSAPIToken={server.token_id}:{server.token_secret}")
        _, upid = await client.send("POST", "/admin/datastore/main/verify", {})
        await clock.advance(1.0)
        _, status = await client.send("GET", f"/nodes/localhost/tasks/{upid}/status")
        _, snapshots = await client.send("GET", "/admin/datastore/main/snapshots")
    assert status["exitstatus"] == "verification failed - please check the log for details"
    assert snapshots[0]["verification"] == {"upid": upid, "state": "failed"}


async def test_jobs_run_when_they_are_due_and_remember_how_it_ended():
    clock = ManualClock(STARTED_AT)

    def build(server: BackupServer) -> None:
        store = server.add_datastore("main")
        for time in (1735689600, 1735776000):
            store.add(vm_snapshot("100", time, "name: web\n", {"drive-scsi0": 1 << 20}), owner="root@pam")
        server.sections["prune"]["p"] = {"id": "p", "store": "main", "schedule": "hourly", "keep-last": 1}

    server = BackupServer(clock=clock, identity=shared_identity, auth_delay=False, build=build)
    async with running(server) as session:
        client = Client(server, session, f"PBSAPIToken={server.token_id}:{server.token_secret}")
        await clock.advance(3700.0)
        _, (job,) = await client.send("GET", "/admin/prune")
        _, snapshots = await client.send("GET", "/admin/datastore/main/snapshots")
    assert job["last-run-state"] == "OK"
    assert [snapshot["backup-time"] for snapshot in snapshots] == [1735776000]
