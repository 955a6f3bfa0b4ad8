"""A freeze stops every change, on every server at once and in the middle of a plan; reads continue."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from quorate.config import Approval
from quorate.state.approvals import Approvals
from quorate.state.limits import Freeze
from quorate.state.passphrase import Passphrase
from tests.rigs.cli import quorate as quorate_command
from tests.rigs.homelab import house
from tests.rigs.mcp_session import Rig, rig, second_server, text_of
from tests.rigs.simulated_guests import VM
from tests.rigs.simulator import pointed_at, running_sim
from tests.rigs.terminal import terminal
from tests.rigs.web_server import web

anyio = pytest.mark.anyio
PHRASE = "correct horse battery staple"
STOPPED, RUNNING = 108, 104


def command(environ: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Without any terminal, as an agent's shell would run it."""
    return quorate_command(*arguments, environ={"PATH": os.environ["PATH"], **environ})


def environ_of(folder: Path) -> dict[str, str]:
    return {
        "HOME": str(folder),
        "QUORATE_STATE": str(folder / "state.sqlite"),
        "QUORATE_AUDIT_FILE": str(folder / "audit.jsonl"),
    }


def frozen_by_command(folder: Path, reason: str = "moving house") -> None:
    done = command(environ_of(folder), "freeze", "--reason", reason)
    assert done.returncode == 0, done.stderr


class Watched(list[tuple[str, str]]):
    """The requests of the simulator; does something when one arrives, before it is answered."""

    def __init__(self, awaited: str, then: Callable[[], None]) -> None:
        super().__init__()
        self._wanted, self._then = awaited, then

    def append(self, request: tuple[str, str]) -> None:
        super().append(request)
        if request[0] != "GET" and request[1].endswith(self._wanted):
            self._then()


def watch(quorate: Rig, awaited: str, then: Callable[[], None]) -> None:
    quorate.sim.requests = quorate.sim.server.requests = Watched(awaited, then)


# -- what it stops


@anyio
async def test_no_change_starts_while_reads_and_dry_runs_go_on(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("guest_power", guest=STOPPED, action="start")
        frozen_by_command(tmp_path)
        mark = len(quorate.sim.requests)
        for tool, arguments in (
            ("guest_power", {"guest": STOPPED, "action": "shutdown"}),
            ("guest_delete", {"guest": STOPPED, "stop": True}),
            ("api_call", {"method": "POST", "path": f"/nodes/pve2/qemu/{RUNNING}/status/stop", "params": {}}),
            ("guest_exec", {"guest": VM, "command": ["true"]}),
            ("snapshot_create", {"guest": RUNNING, "snapshot": "before"}),
        ):
            words = await quorate.refusal(tool, **arguments)
            assert "All changes are frozen" in words, tool
            assert "moving house" in words
            assert "at a shell at 20" in words, "who and when"
        assert all(method == "GET" for method, _ in quorate.requests_since(mark))
        assert quorate.audit()[-1]["decision"] == "refused"
        assert quorate.audit()[-1]["rule"] == "freeze"
        assert await quorate.rows("guest_list")
        await quorate.facts("guest_power", guest=STOPPED, action="shutdown", dry_run=True)
        assert "moving house" in (await quorate.facts("cluster_status"))["changes"]
        await Freeze(quorate.app.store).lift("the test", quorate.app.audit)
        await quorate.facts("guest_power", guest=STOPPED, action="shutdown")
        assert "changes" not in await quorate.facts("cluster_status")


@anyio
async def test_it_counts_for_the_homelab_and_for_commands_in_the_background(tmp_path):
    async with house(tmp_path) as built:
        frozen_by_command(tmp_path)
        for tool, arguments in (
            ("host_exec", {"host": "nas", "command": "sleep 600", "wait": 0}),
            ("host_register", {"host": "new", "address": "192.0.2.9", "verify": False}),
            ("host_update", {"host": "nas", "display_name": "x"}),
        ):
            assert "All changes are frozen" in await built.quorate.refusal(tool, **arguments), tool
        assert [row["name"] for row in await built.quorate.rows("host_list", clusters=False)] == ["nas"]


@anyio
async def test_a_plan_on_its_way_stops_before_its_next_step_and_says_so(tmp_path):
    async with rig(tmp_path) as quorate:
        watch(quorate, f"/qemu/{RUNNING}/status/stop", lambda: frozen_by_command(tmp_path, "smoke in the rack"))
        answer = await quorate.call("guest_delete", guest=RUNNING, stop=True)
        assert answer.is_error
        assert "smoke in the rack" in text_of(answer)
        steps = (answer.structured_content or {})["steps"]
        assert [step["state"] for step in steps] == ["done", "not tried"]
        assert RUNNING in quorate.sim.world.guests
        assert [path for _, path in quorate.writes] == [f"/nodes/pve2/qemu/{RUNNING}/status/stop"]
        entry = next(entry for entry in reversed(quorate.audit()) if entry.get("tool") == "guest_delete")
        assert entry["outcome"] not in ("done", "refused")
        assert "smoke in the rack" in entry["error"]


@anyio
async def test_of_many_guests_those_not_begun_are_left_alone(tmp_path):
    async with rig(tmp_path) as quorate:
        guests = [row["vmid"] for row in await quorate.rows("guest_list", status="running", type="vm")]
        watch(quorate, "/status/shutdown", lambda: frozen_by_command(tmp_path))
        answer = await quorate.call("guest_power", guest=[*guests, *guests], action="shutdown")
        sent = len(quorate.writes)
        assert sent <= 8, "as many as are sent at once"
        assert answer.is_error or sent == len(set(guests))


@anyio
async def test_a_yes_is_not_used_up_by_a_freeze(tmp_path):
    async with rig(tmp_path, approval=Approval.ASK) as quorate:
        assert "waits for" in await quorate.refusal("guest_stop", guest=RUNNING, wait=0)
        (row,) = await Approvals(quorate.app.store).list()
        await Approvals(quorate.app.store).answer(row.id, True, "the operator")
        frozen_by_command(tmp_path)
        assert "All changes are frozen" in await quorate.refusal("guest_stop", guest=RUNNING)
        await Freeze(quorate.app.store).lift("the test", quorate.app.audit)
        await quorate.facts("guest_stop", guest=RUNNING)


@anyio
async def test_while_the_store_does_not_tell_nothing_is_changed(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("guest_power", guest=STOPPED, action="start")
        mark = len(quorate.sim.requests)
        with sqlite3.connect(tmp_path / "state.sqlite") as beside:
            beside.execute("DROP TABLE quorate_records")
        await quorate.refusal("guest_power", guest=STOPPED, action="shutdown")
        assert all(method == "GET" for method, _ in quorate.requests_since(mark))
        assert "not known" in (await quorate.facts("cluster_status"))["changes"]


@anyio
async def test_it_holds_on_another_server_at_once(tmp_path):
    async with rig(tmp_path) as quorate, second_server(quorate, tmp_path / "b.jsonl") as other:
        await other.facts("guest_power", guest=STOPPED, action="start")
        await Freeze(quorate.app.store).set("the test", "", quorate.app.audit)
        for server in (quorate, other):
            assert "frozen by the test" in await server.refusal("guest_power", guest=STOPPED, action="shutdown")


# -- the command


def test_freezing_is_easy_and_unfreezing_takes_the_passphrase_at_a_terminal(tmp_path):
    environ = {"PATH": os.environ["PATH"], **environ_of(tmp_path)}
    with terminal("approvals", "passphrase", environ=environ) as screen:
        for prompt in ("New passphrase", "Repeat it:"):
            screen.expect(prompt)
            screen.type(PHRASE)
        assert screen.end() == 0
    frozen_by_command(tmp_path)
    again = command(environ, "freeze", "--reason", "another")
    assert again.returncode == 0
    assert "already frozen" in again.stdout
    assert "moving house" in again.stdout
    refused = command(environ, "unfreeze")
    assert (refused.returncode, "no" in refused.stderr) == (2, True)
    with terminal("unfreeze", environ=environ) as screen:
        screen.expect("Operator's passphrase:")
        screen.press("\x04")
        assert "Nothing was entered" in screen.expect("nothing was changed.")
    with terminal("unfreeze", environ=environ) as screen:
        for _ in range(3):
            screen.expect("Operator's passphrase:")
            screen.type("not the right words")
        assert screen.end() == 1
    assert "already frozen" in command(environ, "freeze").stdout
    with terminal("unfreeze", environ=environ) as screen:
        screen.expect("moving house")
        screen.expect("Operator's passphrase:")
        screen.type(PHRASE)
        screen.expect("allowed again")
        assert screen.end() == 0
    assert "not frozen" in command(environ, "unfreeze").stdout
    output = command(environ, "audit", "--json").stdout
    assert (output.count('"tool": "freeze"') or output.count('"tool":"freeze"')) == 1
    assert command(environ, "audit", "--verify").returncode == 0


def test_without_a_passphrase_unfreezing_takes_a_person_at_a_terminal(tmp_path):
    environ = {"PATH": os.environ["PATH"], **environ_of(tmp_path)}
    frozen_by_command(tmp_path)
    assert command(environ, "unfreeze").returncode == 2
    with terminal("unfreeze", environ=environ) as screen:
        screen.expect("type unfreeze:")
        screen.type("yes")
        assert screen.end() == 1
    with terminal("unfreeze", environ=environ) as screen:
        screen.expect("type unfreeze:")
        screen.type("unfreeze")
        assert screen.end() == 0


def test_a_reason_draws_nothing_on_the_terminal_and_is_bounded(tmp_path):
    environ = environ_of(tmp_path)
    command(environ, "freeze", "--reason", "a\n\x1b[31mb" + "x" * 5000)
    output = command(environ, "freeze").stdout
    assert "\x1b" not in output
    assert len(output) < 1200


def test_the_doctor_tells(tmp_path):
    frozen_by_command(tmp_path)
    output = command(environ_of(tmp_path), "doctor", "--toolsets", "hosts").stdout
    assert "All changes are frozen" in output
    assert "moving house" in output


def test_policy_explain_tells_why_a_change_would_be_refused(tmp_path):
    frozen_by_command(tmp_path)
    words = ("policy", "explain", "guest_power", "guest=win11", "action=start", "--access", "operate", "--json")
    with running_sim() as sim:
        explained = json.loads(command({**environ_of(tmp_path), **pointed_at(sim)}, *words).stdout)
    assert explained["verdict"] == "refused at this moment"
    assert "moving house" in explained["why"]


# -- over HTTP


@anyio
async def test_over_http_an_operator_freezes_and_the_passphrase_lifts(tmp_path):
    async with web(tmp_path) as quorate:
        for name, access in (("person", "admin"), ("model", "operate")):
            await quorate.token(name, access)
        await Passphrase(quorate.rig.app.store).set(PHRASE)

        async def post(name: str = "person", **wish: Any) -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {quorate.made[name]}"}
            body = {"action": "freeze", **wish}
            answer = await quorate.plain.post("/freeze", json=body, headers=headers)
            return answer.status_code, answer.json()

        assert (await quorate.get("/freeze")).status_code == 401
        assert (await quorate.get("/freeze", quorate.made["model"])).status_code == 403
        assert (await quorate.get("/freeze", quorate.made["person"])).json() == {"frozen": False}
        assert (await post("model"))[0] == 403
        assert (await post(action="thaw"))[0] == 400
        assert (await quorate.get("/freeze", quorate.made["person"])).json() == {"frozen": False}
        status, facts = await post(reason="a leak")
        assert (status, facts["frozen"], facts["reason"]) == (200, True, "a leak")
        assert (facts["since"][10], facts["since"][-1]) == ("T", "Z")
        assert facts["by"].startswith("the operator over HTTP, token person")
        for path in ("/healthz", "/readyz"):
            shown = (await quorate.get(path)).json()
            assert shown["changes"] == "frozen"
            assert "leak" not in str(shown), "anybody may ask"
        async with quorate.client(quorate.made["model"]) as client:
            words = text_of(await client.call_tool("guest_power", {"guest": STOPPED, "action": "start"}))
            assert "a leak" in words
        foreign = {"Authorization": f"Bearer {quorate.made['person']}", "Origin": "https://evil.example"}
        wish = {"action": "unfreeze", "passphrase": PHRASE}
        assert (await quorate.plain.post("/freeze", json=wish, headers=foreign)).status_code == 403
        assert (await post(action="unfreeze"))[0] == 403
        assert (await post(action="unfreeze", passphrase="wrong words here"))[0] == 403
        assert await post(action="unfreeze", passphrase=PHRASE) == (200, {"frozen": False})
        assert (await quorate.get("/healthz")).json()["changes"] == "allowed"
        tools = [entry["tool"] for entry in quorate.rig.audit() if entry["tool"].endswith("freeze")]
        assert tools == ["freeze", "unfreeze"]
