"""The whole API of a backup server: reads as they are, writes judged, and what is never called."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pve_schema.pbs import VERSIONS, pbs_facts
from quorate.config import Access
from quorate.config.policy import Policy, Rule
from quorate.operations.registry import Risk
from quorate.operations.risk import Reason
from quorate.tools.pbs_api import reason_of
from tests.rigs.backup_server import BackupRig, backup_rig

pytestmark = pytest.mark.anyio


@pytest.fixture
async def quorate(tmp_path: Path) -> AsyncIterator[BackupRig]:
    async with backup_rig(tmp_path) as started:
        yield started


def protecting(**rule: Any) -> dict[str, Any]:
    return {"more": {"policy": Policy((Rule("keep", allows=False, **rule),))}}


async def test_lists_are_tables(quorate: BackupRig) -> None:
    rows = await quorate.rows("pbs_api", method="GET", path="/admin/datastore")
    assert {row["store"] for row in rows} == {"store1", "archive"}


async def test_parameters_of_a_read_are_sent(quorate: BackupRig) -> None:
    params = {"ns": "prod"}
    rows = await quorate.rows("pbs_api", method="GET", path="/admin/datastore/store1/groups", params=params)
    assert [row["backup-id"] for row in rows] == ["102"]


async def test_an_object_is_shown_whole(quorate: BackupRig) -> None:
    facts = await quorate.facts("pbs_api", method="GET", path="/version")
    assert facts["data"]["version"] == "4.1"


async def test_a_user_is_created_and_recorded(quorate: BackupRig) -> None:
    params = {"userid": "eve@pbs", "comment": "for the new cluster"}
    facts = await quorate.facts("pbs_api", method="POST", path="/access/users", params=params)
    assert facts["result"] == "done"
    assert "eve@pbs" in {row["userid"] for row in await quorate.rows("pbs_api", method="GET", path="/access/users")}
    (entry,) = quorate.audit()
    assert entry["calls"] == ["vault: POST /access/users userid=eve@pbs comment='for the new cluster'"]


async def test_the_password_of_a_new_user_is_not_recorded(quorate: BackupRig) -> None:
    params = {"userid": "eve@pbs", "password": "correct horse battery"}
    await quorate.facts("pbs_api", method="POST", path="/access/users", params=params)
    assert "correct horse" not in quorate.audit_file.read_text()


async def test_a_task_of_a_write_is_followed(quorate: BackupRig) -> None:
    facts = await quorate.facts("pbs_api", method="POST", path="/admin/datastore/store1/gc")
    assert facts["result"] == "done"
    assert "garbage_collection" in facts["task"]


async def test_an_unclassified_write_needs_access_admin(tmp_path: Path) -> None:
    async with backup_rig(tmp_path, access=Access.OPERATE) as quorate:
        text = await quorate.refusal("pbs_api", method="PUT", path="/nodes/localhost/time", params={"timezone": "UTC"})
        await quorate.facts("pbs_api", method="POST", path="/admin/datastore/store1/gc")
    assert "admin" in text


async def test_reading_needs_no_more_than_access_read(tmp_path: Path) -> None:
    async with backup_rig(tmp_path, access=Access.READ) as quorate:
        assert await quorate.rows("pbs_api", method="GET", path="/admin/datastore")
        text = await quorate.refusal("pbs_api", method="POST", path="/admin/datastore/store1/gc")
    assert "read" in text


@pytest.mark.parametrize("version", VERSIONS)
def test_only_what_is_listed_as_harmless_is_not_destructive(version: str) -> None:
    reasons = {
        (endpoint.method, endpoint.template): reason_of(endpoint.method, endpoint.template)
        for endpoint in pbs_facts(version).endpoints()
    }
    reads = {reason.risk for (method, _), reason in reasons.items() if method == "GET"}
    assert reads == {Risk.READ, Risk.LOOK_INSIDE}
    assert {request for request, reason in reasons.items() if reason is Reason.CHANGES} == {
        ("POST", "/admin/datastore/{store}/verify"),
        ("POST", "/admin/datastore/{store}/gc"),
        ("POST", "/admin/datastore/{store}/namespace"),
        ("POST", "/admin/verify/{id}/run"),
        ("PUT", "/admin/datastore/{store}/notes"),
        ("PUT", "/admin/datastore/{store}/group-notes"),
        ("POST", "/nodes/{node}/apt/update"),
    }
    assert reasons["POST", "/tape/backup"] is Reason.UNCLASSIFIED


# -- rules -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "params"),
    [
        ("DELETE", "/config/datastore/store1", {}),
        ("POST", "/admin/datastore/store1/prune-datastore", {"keep-last": 1}),
        ("DELETE", "/config/verify/weekly", {}),
        ("PUT", "/nodes/localhost/time", {"timezone": "UTC"}),
        (
            "DELETE", "/admin/datastore/store1/snapshots",
            {"backup-type": "vm", "backup-id": "100", "backup-time": 1736000000},
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rule", [{"datastores": ("store1",)}, {"vmids": (range(100, 101),)}])
async def test_a_call_that_may_concern_a_protected_backup_is_refused(
    tmp_path: Path, method: str, path: str, params: dict[str, Any], rule: dict[str, Any]
) -> None:
    async with backup_rig(tmp_path, **protecting(level="destroy", **rule)) as quorate:
        text = await quorate.refusal("pbs_api", method=method, path=path, params=params)
    assert "refused by the rule 'keep'" in text


async def test_a_call_about_another_datastore_is_not_refused(tmp_path: Path) -> None:
    options = protecting(level="destroy", datastores=("store1",))
    async with backup_rig(tmp_path, **options) as quorate:
        facts = await quorate.facts(
            "pbs_api", method="POST", path="/admin/datastore/archive/prune-datastore", params={"keep-last": 1}
        )
    assert facts["result"] == "done"


async def test_raw_answers_are_refused_to_callers_from_whom_rules_hide_something(tmp_path: Path) -> None:
    options = protecting(level="read", vmids=(range(100, 101),))
    async with backup_rig(tmp_path, **options) as quorate:
        text = await quorate.refusal("pbs_api", method="GET", path="/admin/datastore/store1/snapshots")
    assert "Rules hide something" in text
    assert "vm/100" not in text


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("GET", "/admin/datastore/store1/download", "sends a file"),
        ("POST", "/nodes/localhost/termproxy", "opens a console"),
        ("POST", "/access/ticket", "is a login"),
        ("POST", "/access/users/root@pam/token/new", "shown once"),
        ("POST", "/access/tfa/root@pam", "shown once"),
        ("GET", "/backup", "only backup clients"),
    ],
)
async def test_streams_consoles_and_logins_are_never_called(
    quorate: BackupRig, method: str, path: str, message: str
) -> None:
    text = await quorate.refusal("pbs_api", method=method, path=path)
    assert "is never called" in text
    assert message in text.lower() or message in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "GET", "path": "/admin/datastores"}, "PBS 4.1 has no /admin/datastores"),
        ({"method": "PUT", "path": "/version"}, "It has GET"),
        ({"method": "GET", "path": "/api2/json/version"}, "Begin after /api2/json"),
        ({"method": "GET", "path": "/admin/datastore/store1/status", "params": {"store": "x"}}, "already in the path"),
        ({"method": "POST", "path": "/access/users", "params": {}}, "userid: parameter is missing"),
        ({"method": "POST", "path": "/config/sync", "params": {"colour": "red"}}, "does not allow additional"),
    ],
)
async def test_what_pbs_would_not_accept_is_refused_before_it_is_sent(
    quorate: BackupRig, arguments: dict[str, Any], message: str
) -> None:
    assert message in await quorate.refusal("pbs_api", **arguments)
