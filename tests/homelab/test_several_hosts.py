"""Several hosts in one call: a list, a label, all; one table with failures first, one plan, one approval."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest
from mcp.client.session import ElicitationFnT
from mcp.types import ElicitResult

from quorate.config import Approval
from tests.rigs.homelab import House, house
from tests.rigs.mcp_session import rig
from tests.rigs.silent_host import silent
from tests.rigs.simulated_guests import VM, machine
from tests.rigs.ssh_server import HOST

pytestmark = pytest.mark.anyio

THREE: dict[str, dict[str, Any]] = {"nas": {}, "pi": {}, "web": {}}


async def with_a_dead_one(built: House) -> None:
    """Nobody listens at its port."""
    await built.quorate.facts("host_register", host="dead", address=HOST, port=1, user="tester", verify=False)


async def label(built: House, **labels: list[str]) -> None:
    for host, host_labels in labels.items():
        await built.quorate.facts("host_update", host=host, labels=host_labels)


def hosts_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    table = answer["hosts"]
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def approving(asked: list[str]) -> ElicitationFnT:
    """A person who types what the question asks for; the questions go to `asked`."""

    async def person(context: Any, params: Any) -> ElicitResult:
        del context
        asked.append(params.message)
        word = params.message.rpartition("Type ")[2].partition(" to approve")[0]
        return ElicitResult(action="accept", content={"typed": word})

    return person


async def test_a_host_a_list_a_label_and_all_are_named_alike(tmp_path):
    async with house(tmp_path, THREE) as built:
        await label(built, nas=["role=store"], pi=["role=store", "small"])
        named = {
            "nas": {"host nas"},
            ("nas", "web"): {"host nas", "host web"},
            "role=store": {"host nas", "host pi"},
            ("small", "web", "pi"): {"host pi", "host web"},
            "all": {"host nas", "host pi", "host web"},
        }
        for reference, expected in named.items():
            rows = await built.quorate.rows(
                "host_status", host=list(reference) if isinstance(reference, tuple) else reference
            )
            assert {row["host"] for row in rows} == expected


async def test_the_name_of_a_host_is_never_taken_for_a_label_and_no_host_is_called_all(tmp_path):
    async with house(tmp_path, THREE) as built:
        await label(built, web=["nas"])
        assert [row["host"] for row in await built.quorate.rows("host_status", host="nas")] == ["host nas"]
        refusal = await built.quorate.refusal("host_register", host="all", address="10.0.0.1", verify=False)
        assert "every registered host" in refusal
        assert "There is no host 'nobody'" in await built.quorate.refusal("host_status", host="nobody")


async def test_a_status_shows_what_matters_and_dead_hosts_first(tmp_path):
    async with house(tmp_path, THREE) as built:
        await with_a_dead_one(built)
        answer = await built.quorate.facts("host_status")
        rows = [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
        assert (answer["failed"], answer["total"]) == (1, 4)
        assert "refuses the connection" in rows[0]["why_not"]
        alive = rows[1:]
        assert {row["host"] for row in alive} == {"host nas", "host pi", "host web"}
        assert all(row["up"] and row["memory"] and row["disk"] and row["load"] for row in alive)


async def test_calls_at_the_same_time_do_not_crowd_the_ssh_server_of_a_host(tmp_path):
    """OpenSSH drops connections at random once ten have not logged in."""
    async with house(tmp_path) as built:
        calls = [built.quorate.facts("host_status", host="all") for _ in range(20)]
        answers = await asyncio.gather(*calls)
        assert all(answer["failed"] == 0 for answer in answers)
        await built.quorate.facts("host_status", host="all")
        assert len(built.hosts["nas"].connections) < 10


async def test_a_command_runs_on_the_others_if_one_is_dead(tmp_path):
    async with house(tmp_path, THREE) as built:
        await with_a_dead_one(built)
        answer = await built.quorate.call("host_exec", host="all", command="echo $((6*7)); exit 3")
        rows = hosts_of(answer.structured_content)
        assert rows[0]["host"] == "host dead"
        assert "refuses the connection" in rows[0]["why"]
        assert {row["host"]: (row["state"], row["exit_code"], row["stdout"]) for row in rows[1:]} == {
            f"host {name}": ("command failed (exit 3)", 3, "42\n") for name in THREE
        }
        assert answer.structured_content["result"] == "0 of 4 done"
        assert answer.is_error
        steps = built.quorate.audit()[-1]["steps"]
        assert len(steps) == 3


CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("host_upgrade", {}),
    ("host_reboot", {}),
    ("host_exec", {"command": "true"}),
    ("host_service_control", {"service": "cron", "action": "restart"}),
    ("host_file_write", {"path": "/root/x", "content": "x"}),
    ("workload_prune", {}),
)


async def test_a_change_that_is_possible_on_none_of_the_hosts_is_an_error(tmp_path):
    async with house(tmp_path, {}) as home:
        for (tool, more), dry_run in itertools.product(CHANGES, (True, False)):
            refusal = await home.quorate.refusal(tool, host=["nas", "box1"], dry_run=dry_run, **more)
            assert (
                "2 hosts: not possible on any of them, so nothing was changed. nas, box1: not registered. " in refusal
            )
            assert "Register them, or give their addresses: host_register." in refusal


async def test_a_change_of_several_hosts_is_approved_once(tmp_path):
    asked: list[str] = []
    async with house(tmp_path, THREE, approval=Approval.ASK, elicitation=approving(asked)) as built:
        app = built.quorate.app
        app.settings = replace(app.settings, approve_changes=True)
        answer = await built.quorate.facts("host_exec", host="all", command=["true"])
        assert [row["state"] for row in hosts_of(answer)] == ["done"] * 3
    assert len(asked) == 1
    assert all(f"target: host {name}" in asked[0] for name in THREE)


async def test_files_are_written_to_and_read_from_several_hosts(tmp_path):
    async with house(tmp_path, THREE) as built:
        quorate, path = built.quorate, str(tmp_path / "note.txt")
        written = hosts_of(await quorate.facts("host_file_write", host=["nas", "pi"], path=path, content="hello\n"))
        assert [row["state"] for row in written] == ["done", "done"]
        facts = await quorate.facts("host_file", host="nas", path=path)
        assert (facts["content"], facts["size"]) == ("hello\n", 6)
        several = await quorate.facts("host_file", host=["nas", "pi"], path=path)
        assert several["content"] == {"host nas": "hello\n", "host pi": "hello\n"}
        names = [row["name"] for row in await quorate.rows("host_file", host="web", path=str(tmp_path))]
        assert "note.txt" in names
        refusal = await quorate.refusal("host_file", host="nas", path=str(tmp_path / "absent"))
        assert "does not exist" in refusal


async def test_of_long_files_and_folders_on_several_hosts_a_part_is_shown_and_that_is_said(tmp_path):
    (tmp_path / "long.txt").write_text("x" * 9000)
    (tmp_path / "many").mkdir()
    for number in range(120):
        (tmp_path / f"many/{number:03}").touch()
    async with house(tmp_path, THREE) as built:
        several = await built.quorate.facts("host_file", host=["pi", "nas"], path=str(tmp_path / "long.txt"))
        assert list(several["content"].items()) == [("host nas", "x" * 4096), ("host pi", "x" * 4096)]
        assert several["notes"]["host pi"].startswith("offset=4096 continues")
        folder = await built.quorate.facts("host_file", host=["pi", "nas"], path=str(tmp_path / "many"))
        assert len(folder["rows"]) == 200
        assert folder["notes"]["host nas"] == "100 of 120 entries are shown"
        shown = await built.quorate.facts("host_file_write", host="all", path="/x", content="", dry_run=True)
        assert [step["step"] for step in shown["steps"]] == [f"Write 0 bytes to /x on host {name}" for name in THREE]


async def test_commands_that_end_with_an_error_come_first(tmp_path):
    async with house(tmp_path, THREE) as built:
        (tmp_path / "once").mkdir()
        answer = await built.quorate.facts("host_exec", host="all", command=f"rmdir {tmp_path}/once")
        ended = hosts_of(answer)
        assert [row["exit_code"] for row in ended] == [1, 1, 0]
        assert [row["state"] for row in ended] == ["command failed (exit 1)"] * 2 + ["done"]
        assert answer["result"] == "1 of 3 done"
        assert built.quorate.audit()[-1]["outcome"] == "partly done"
        everywhere = await built.quorate.facts("host_exec", host="all", command="nosuchcommand")
        assert everywhere["result"] == "command failed (exit 127)"
        assert built.quorate.audit()[-1]["outcome"] == "command failed"


@pytest.mark.parametrize("most", [64 * 1024, 1024 * 1024])
async def test_the_newest_lines_of_a_long_log_are_read_and_what_was_not_searched_is_said(tmp_path, most):
    log = tmp_path / "long.log"
    lines = [f"2026-01-01 10:00:00 line {number:06}" for number in range(100_000)]
    log.write_text("\n".join(lines) + "\n")
    async with house(tmp_path, THREE, limits={"max_output": most}) as built:
        newest = await built.quorate.facts("host_logs", host="nas", path=str(log), lines=2)
        assert newest["log"] == lines[-2:]
        for host in ("nas", ["nas", "pi"]):
            none = await built.quorate.facts("host_logs", host=host, path=str(log), pattern="line 000001")
            assert "Only the end of the log was searched" in none["note"]
        facts = await built.quorate.facts("host_logs", host="nas", path=str(log), pattern="line 099999")
        assert facts["log"] == lines[-1:]
        later = await built.quorate.facts(
            "host_logs", host="nas", path=str(log), pattern="nothing", since="2026-01-03 11:00+00:00"
        )
        assert "note" not in later


async def test_the_newest_lines_of_a_journal_are_shown_for_any_time(tmp_path):
    entries = [f"2026-01-01T10:00:{number:02}+0000 web nginx[7]: line {number}\n    of two" for number in range(20)]
    async with rig(tmp_path, toolsets=("hosts",)) as quorate:
        machine(quorate, 104).services["ssh"].log = entries
        for time in ({}, {"since": "1h"}, {"until": "1m"}):
            logs = await quorate.facts("host_logs", host="demo/104", unit="ssh", lines=4, **time)
            assert logs["log"] == "\n".join(entries[-2:]).splitlines()


async def test_logs_of_files_are_found_by_time_and_pattern(tmp_path):
    log = tmp_path / "app.log"
    log.write_text(
        "2026-01-01 10:00:00 started\n2026-01-01 11:00:00 ERROR broke\n  at line 5\n2026-01-01 12:00:00 ERROR again\n"
    )
    async with house(tmp_path, THREE) as built:
        quorate = built.quorate
        facts = await quorate.facts("host_logs", host="nas", path=str(log), pattern="error")
        assert [line[11:] for line in facts["log"]] == ["11:00:00 ERROR broke", "12:00:00 ERROR again"]
        facts = await quorate.facts(
            "host_logs", host="nas", path=str(log), since="2026-01-01 10:30+00:00", until="2026-01-01 11:30+00:00"
        )
        zone_free = [line.strip() for line in facts["log"]]
        assert zone_free[-1] == "at line 5"
        rows = await quorate.rows("host_logs", host="all", path=str(log), lines=1)
        assert {(row["host"], row["line"][11:]) for row in rows} == {
            (f"host {name}", "12:00:00 ERROR again") for name in THREE
        }
        (tmp_path / "plain.log").write_text("no time at all\n")
        refusal = await quorate.refusal("host_logs", host="nas", path=str(tmp_path / "plain.log"), since="1h")
        assert "no time that is understood" in refusal
        assert "There is no log file" in await quorate.refusal("host_logs", host="nas", path="/nowhere.log")


async def test_several_hosts_are_verified_without_a_login_where_nothing_answers(tmp_path, monkeypatch):
    monkeypatch.setattr("quorate.homelab.selection.KNOCK_SECONDS", 0.3)
    async with house(tmp_path, {"nas": {}}) as built:
        with silent() as port:
            arguments = {"address": HOST, "port": port, "user": "tester", "verify": False}
            await built.quorate.facts("host_register", host="quiet", **arguments)
            rows = {row["host"]: row for row in await built.quorate.rows("host_verify", host="all")}
        quiet = rows["host quiet"]
        assert (quiet["verified"], quiet["failed_at"]) == (False, "connection")
        assert quiet["why"].startswith("Nothing answers")
        assert rows["host nas"]["verified"] is True


LOOKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("host_discover", {"sections": ["system"]}),
    ("host_service", {"state": "all"}),
    ("host_file", {"path": "/etc/hostname"}),
    ("host_logs", {}),
    ("host_status", {}),
)


@pytest.mark.parametrize(("tool", "arguments"), LOOKS, ids=[tool for tool, _ in LOOKS])
async def test_each_of_several_machines_is_found_once(tmp_path, tool, arguments):
    """The agent of a VM is asked which system it runs whenever the VM is found."""
    async with house(tmp_path, {"nas": {}}, toolsets=("hosts", "host_admin")) as built:
        mark = len(built.quorate.sim.requests)
        await built.quorate.facts(tool, host=[str(VM), "nas"], **arguments)
        asked = [path for _, path in built.quorate.requests_since(mark) if path.endswith("agent/get-osinfo")]
        assert len(asked) == 1
