"""The log of a server: one line for each call, without secrets, and what a changed configuration means."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from quorate import log
from quorate.config import Access
from tests.rigs.mcp_session import rig
from tests.rigs.processes import Running, running

pytestmark = pytest.mark.anyio

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
SECRET = "correct-horse-battery"


def calls(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if record.name == "quorate.calls"]  # type: ignore[attr-defined]


async def test_each_call_is_one_line_with_its_caller_outcome_duration_and_requests(tmp_path, caplog):
    caplog.set_level(logging.INFO, "quorate")
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        before = len(quorate.sim.requests)
        await quorate.facts("guest_list")
        listed = len(quorate.sim.requests) - before
        await quorate.facts("guest_power", guest=108, action="start")
        await quorate.refusal("guest_get", guest="no-such-guest")
        await quorate.refusal("guest_delete", guest=108)
        await quorate.refusal("no_such_tool")
    shown = [(call["tool"], call["outcome"], call.get("result")) for call in calls(caplog)]
    assert shown == [
        ("guest_list", "ok", None),
        ("guest_power", "ok", "done"),
        ("guest_get", "error", "not_found"),
        ("guest_delete", "error", "refused"),
        ("no_such_tool", "error", "argument"),
    ]
    first, started, unknown, *_ = calls(caplog)
    assert first["requests"] == listed > 0
    assert re.match(r"\S+ \d", first["client"])
    assert first["transport"] == "stdio"
    assert started["seconds"] > 0
    assert "no-such-guest" in unknown["error"]


@pytest.mark.parametrize(
    ("surface", "tool", "arguments", "operation"),
    [
        ("lean", "pve_read", {"operation": "guest_list"}, "guest_list"),
        ("gilby125", "proxmox_get_nodes", {}, "api_call"),
    ],
)
async def test_a_tool_of_another_surface_is_logged_with_the_operation_that_it_runs(
    tmp_path, caplog, surface, tool, arguments, operation
):
    caplog.set_level(logging.INFO, "quorate")
    async with rig(tmp_path, more={"surfaces": (surface,)}, toolsets=None) as quorate:
        await quorate.call(tool, **arguments)
    (call,) = calls(caplog)
    assert (call["tool"], call["outcome"]) == (tool, "ok")
    assert operation in call["operations"]


async def test_a_resource_that_is_read_is_logged_as_a_call(tmp_path, caplog):
    caplog.set_level(logging.INFO, "quorate")
    async with rig(tmp_path) as quorate:
        await quorate.client.read_resource("pve://guests/100")
    assert [call["outcome"] for call in calls(caplog)] == ["ok"]


async def test_the_line_of_a_call_contains_no_secret_of_its_arguments(tmp_path, caplog):
    caplog.set_level(logging.INFO, "quorate")
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        await quorate.refusal("container_create", template="debian-12", password=SECRET, memory=SECRET)
    (call,) = calls(caplog)
    assert call["error"] == "'***' is not a size."
    assert SECRET not in str(call)


def formatted(form: logging.Formatter, message: str, **fields: Any) -> str:
    record = logging.LogRecord("quorate.calls", logging.INFO, "", 0, message, None, None)
    record.fields = fields
    return form.format(record)


def test_a_line_of_text_can_be_searched_and_nothing_in_it_can_pretend_to_be_another_line():
    line = formatted(log.TextFormatter(), "call", tool="guest_list", client='a "b"\n2026 INFO', operations=["a", "b"])
    assert re.fullmatch(TIME + r' INFO call tool=guest_list client="a \\"b\\"\\n2026 INFO" operations=a,b', line)
    assert re.fullmatch(TIME + " INFO one\n  two", formatted(log.TextFormatter(), "one\ntwo"))


def test_a_line_of_json_is_one_object():
    entry = json.loads(formatted(log.JsonFormatter(), "one\ntwo", tool="guest_list", requests=3))
    assert re.fullmatch(TIME, entry.pop("time"))
    assert entry == {
        "level": "info", "logger": "quorate.calls", "message": "one\ntwo", "tool": "guest_list", "requests": 3
    }  # fmt: skip


# -- a changed configuration -------------------------------------------------------------------------------------------

CLUSTER = """
[clusters.{name}]
url = "https://192.0.2.1:8006"
token_id = "quorate@pve!assistant"
token_secret = "{secret}"
fingerprint = "{fingerprint}"
"""


def cluster(name: str) -> str:
    return CLUSTER.format(name=name, secret=SECRET, fingerprint=":".join(["AB"] * 32))


def until(server: Running, text: str) -> dict[str, Any]:
    """The next entry of the log with this text."""
    shown = []
    while line := server.stderr.readline():
        shown.append(line)
        entry: dict[str, Any] = json.loads(line)
        if text in entry["message"]:
            return entry
    raise AssertionError("".join(shown))


def test_a_saved_configuration_is_reported_with_what_it_changes_and_what_needs_a_restart(tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text('log_format = "json"\n' + cluster("home"))
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "QUORATE_STATE": str(tmp_path / "state.sqlite")}
    with running("serve", "--http", "127.0.0.1:0", "--config", str(file), environ=environ) as server:
        until(server, "listening on")

        file.write_text(
            'log_format = "json"\naccess = "operate"\nwait_seconds = 30\n' + cluster("home") + cluster("lab")
        )
        assert until(server, "settings reloaded")["message"].endswith("in effect now: access")
        waiting = until(server, "restarted")
        assert waiting["level"] == "warning"
        assert waiting["message"].endswith(": [clusters.lab] (new), wait_seconds")

        file.write_text('log_format = "json"\n[[rules\n' + cluster("home"))
        broken = until(server, "not reloaded")  # nobody has called anything
        assert broken["level"] == "error"
        assert "is not valid TOML" in broken["message"]

        file.write_text('log_format = "json"\naccess = "operate"\n' + cluster("home"))
        assert until(server, "settings reloaded")["message"].endswith("in effect now: nothing new")
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait() == 0
        assert SECRET not in server.stderr.read()
