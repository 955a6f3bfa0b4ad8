"""Output for programs: raw values with stable keys, in addition to the compact text (docs/output.md)."""

import json
from typing import Any

import pytest

from tests import paths
from tests.rigs.cli import quorate as command
from tests.rigs.mcp_session import rig, text_of

GUEST = 102


def from_shell(*arguments: str) -> Any:
    done = command("call", "--demo", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.anyio
async def test_twenty_guests_are_at_most_two_kilobytes_of_text(tmp_path):
    async with rig(tmp_path) as quorate:
        answer = await quorate.call("guest_list", limit=20)
        assert len(answer.structured_content["rows"]) == 20
        assert len(text_of(answer).encode()) <= 2000


@pytest.mark.anyio
async def test_structured_content_has_raw_values_beside_the_readable_text(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = await quorate.call("guest_get", guest=GUEST)
        facts, text = guest.structured_content, text_of(guest)
        assert isinstance(facts["uptime"], int)
        assert facts["memory"]["total"] == 8 * 1024**3
        assert 0 <= facts["cpu"]["load"] <= 1
        assert "/8G" in text
        assert f"of {facts['cpu']['cores']}" in text
        (first, *_) = await quorate.rows("task_list")
        assert first["started"].endswith("Z")
        assert first["started"][10] == "T"
        (storage, *_) = await quorate.rows("storage_list", content="images")
        assert storage["used"].keys() == {"used", "total"}
        (node, *_) = await quorate.rows("node_list")
        assert isinstance(node["cpu"], float)
        assert isinstance(node["uptime"], int)


@pytest.mark.anyio
async def test_stopped_and_running_guests_have_the_same_keys(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = {row["status"]: row for row in await quorate.rows("guest_list", limit=200)}
        for row in (rows["running"], rows["stopped"]):
            assert row["cpu"].keys() == {"load", "cores"}
            assert row["mem"].keys() == {"used", "total"}
        assert rows["stopped"]["mem"]["used"] == rows["stopped"]["cpu"]["load"] == 0


def test_json_of_the_command_has_objects_with_keys_and_raw_values():
    listed = from_shell("guest_list", "limit=3")
    assert listed.keys() == {"items", "total", "next_offset", "note"}
    first = listed["items"][0]
    assert first.keys() <= {"vmid", "name", "type", "node", "status", "cpu", "mem", "disk", "tags", "pool", "lock"}
    assert first["mem"].keys() == {"used", "total"}
    assert isinstance(first["disk"], int)
    assert "" not in first.values()


KEYS = {
    ("node_list",): {"node", "status", "cpu", "cores", "mem", "disk", "uptime", "guests"},
    ("storage_list",): {"storage", "nodes", "type", "shared", "used", "content"},
    ("task_list",): {"started", "node", "type", "id", "user", "status", "took", "task"},
    ("snapshot_list", "docker01"): {"snapshot", "level", "taken", "age", "ram", "description"},
    ("backup_list",): {
        "backup", "guest", "name", "type", "size", "age", "made", "protected", "verified", "verified_at", "encrypted",
        "notes",
    },
}  # fmt: skip


@pytest.mark.parametrize("call", KEYS, ids=lambda call: call[0])
def test_keys_and_types_of_lists_are_stable(call):
    for item in from_shell(*call)["items"]:
        assert item.keys() <= KEYS[call]
        for name, value in item.items():
            if name in ("size", "age", "took", "uptime"):
                assert isinstance(value, (int, float)), name
            if name in ("started", "made", "taken", "verified_at"):
                assert value[10] == "T", name


def test_an_error_is_json_as_well():
    done = command("call", "--demo", "guest_get", "nobody", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["kind"] == "not_found"


def test_every_kind_of_error_is_documented():
    from quorate.problems import ProblemCode

    text = (paths.ROOT / "docs" / "output.md").read_text()
    assert [code for code in ProblemCode if f"`{code}`" not in text] == []
