"""The guest agent of VMs: preconditions, commands, files and refusals."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest

from pve_simulator.api_client import Api, Reply
from pve_simulator.storage.storages import Volume

AGENT = "/nodes/pve1/qemu/102/agent"


async def execute(api: Api, *argv: str, agent: str = AGENT, stdin: str | None = None) -> Reply:
    body: list[tuple[str, str]] = [("command", each) for each in argv]
    if stdin is not None:
        body.append(("input-data", stdin))
    return await api.request("POST", f"{agent}/exec", data=body)


async def result(api: Api, *argv: str, stdin: str | None = None) -> dict[str, Any]:
    pid = (await execute(api, *argv, stdin=stdin)).data["pid"]
    status: dict[str, Any] = (await api.get(f"{AGENT}/exec-status", pid=pid)).data
    return status


async def test_a_command_gives_its_exit_code_and_both_outputs(api: Api):
    ended = await result(api, "/bin/sh", "-c", "echo hi; echo err >&2; exit 3")
    assert ended == {
        "exited": 1,
        "exitcode": 3,
        "out-data": "hi\n",
        "out-truncated": 0,
        "err-data": "err\n",
        "err-truncated": 0,
    }


async def test_a_json_array_is_a_command_as_well(api: Api):
    started = await api.request("POST", f"{AGENT}/exec", json={"command": ["echo", "a b"]})
    ended = await api.get(f"{AGENT}/exec-status", pid=started.data["pid"])
    assert ended.data["out-data"] == "a b\n"


async def test_the_input_reaches_the_command(api: Api):
    assert await result(api, "/bin/cat", stdin="stdin text") == {
        "exited": 1,
        "exitcode": 0,
        "out-data": "stdin text",
        "out-truncated": 0,
    }


@pytest.mark.parametrize(
    ("version", "message"), [("7.2.22", "Invalid parameter 'pid'"), ("10.0.2", "PID ld does not exist")]
)
async def test_a_result_can_be_read_once(api: Api, version: str, message: str):
    guest = api.cluster.world.guests[102]
    guest.system = replace(guest.system, agent_version=version)
    pid = (await execute(api, "true")).data["pid"]
    assert (await api.get(f"{AGENT}/exec-status", pid=pid)).data == {"exited": 1, "exitcode": 0}
    for unknown in (pid, 99999):
        again = await api.get(f"{AGENT}/exec-status", pid=unknown)
        assert (again.status, again.reason) == (500, f"Agent error: {message}")
    assert (await api.get(f"{AGENT}/info")).data["result"]["version"] == version


async def test_a_slow_command_runs_until_its_time_has_passed(api: Api):
    pid = (await execute(api, "/bin/sleep", "3")).data["pid"]
    assert (await api.get(f"{AGENT}/exec-status", pid=pid)).data == {"exited": 0}
    await api.clock.advance(3)
    assert (await api.get(f"{AGENT}/exec-status", pid=pid)).data == {"exited": 1, "exitcode": 0}


async def test_a_killed_command_shows_the_signal(api: Api):
    pid = (await execute(api, "sleep", "100")).data["pid"]
    assert (await result(api, "kill", "-9", str(pid)))["exitcode"] == 0
    assert (await api.get(f"{AGENT}/exec-status", pid=pid)).data == {"exited": 1, "signal": 9}


@pytest.mark.parametrize("command", ["/no/such", "echo a b"])
async def test_a_missing_program_breaks_the_connection_to_the_daemon(api: Api, command: str):
    reply = await execute(api, command)
    assert (reply.status, reply.reason, reply.text) == (596, "Broken pipe", "")


async def test_without_a_command_the_parameter_is_missing(api: Api):
    reply = await api.post(f"{AGENT}/exec")
    assert (reply.status, reply.errors) == (400, {"command": "property is missing and it is not optional"})


@pytest.mark.parametrize(
    ("node", "vmid", "reason"),
    [
        ("pve1", 999, "Configuration file 'nodes/pve1/qemu-server/999.conf' does not exist"),
        ("pve2", 102, "Configuration file 'nodes/pve2/qemu-server/102.conf' does not exist"),
        ("pve3", 109, "No QEMU guest agent configured"),
        ("pve1", 108, "VM 108 is not running"),
        ("pve1", 100, "QEMU guest agent is not running"),
        ("pve3", 106, "QEMU guest agent is not running"),
    ],
)
async def test_the_preconditions_are_checked_in_order(api: Api, node: str, vmid: int, reason: str):
    base = f"/nodes/{node}/qemu/{vmid}/agent"
    replies = [
        await execute(api, "true", agent=base),
        await api.get(f"{base}/exec-status", pid=1),
        await api.get(f"{base}/get-fsinfo"),
        await api.get(f"{base}/file-read", file="/etc/hostname"),
        await api.post(base, command="get-time"),
    ]
    assert {(reply.status, reply.reason) for reply in replies} == {(500, reason)}


async def test_files_can_be_written_and_read_back(api: Api):
    written = await api.post(f"{AGENT}/file-write", file="/tmp/x", content="hello")
    assert written.data is None
    read = await api.get(f"{AGENT}/file-read", file="/tmp/x")
    assert read.data == {"content": "hello", "bytes-read": 5}
    part = await api.get(f"{AGENT}/file-read", file="/tmp/x", offset=1, count=3)
    assert part.data == {"content": "ell", "bytes-read": 3, "truncated": 1}
    raw = await api.get(f"{AGENT}/file-read", file="/tmp/x", decode=0)
    assert base64.b64decode(raw.data["content"]) == b"hello"


async def test_bytes_from_inside_are_shown_one_character_each(api: Api):
    encoded = base64.b64encode("é€".encode() + b"\xff\x00").decode()
    await api.post(f"{AGENT}/file-write", file="/tmp/u", content=encoded, encode=0)
    shown = "é€".encode().decode("latin-1") + "\xff\x00"
    assert (await api.get(f"{AGENT}/file-read", file="/tmp/u")).data["content"] == shown
    assert (await result(api, "cat", "/tmp/u"))["out-data"] == shown


async def test_content_that_pve_packs_itself_has_one_byte_for_a_character(api: Api):
    await api.post(f"{AGENT}/file-write", file="/tmp/l", content="é")
    assert (await result(api, "wc", "-c", "/tmp/l"))["out-data"] == "1 /tmp/l\n"
    wide = await api.post(f"{AGENT}/file-write", file="/tmp/l", content="€")
    assert (wide.status, wide.reason[:35]) == (500, "Wide character in subroutine entry ")


async def test_arguments_in_any_script_reach_the_guest_and_come_back_byte_by_byte(api: Api):
    for text in ("é", "€"):
        pid = (await execute(api, "echo", text)).data["pid"]
        status = (await api.get(f"{AGENT}/exec-status", pid=pid)).data
        assert status["out-data"].encode("latin-1").decode() == f"{text}\n"


async def test_a_read_that_ends_with_the_file_does_not_know_it(api: Api):
    await api.post(f"{AGENT}/file-write", file="/tmp/x", content="hello")
    exact = await api.get(f"{AGENT}/file-read", file="/tmp/x", count=5)
    assert exact.data == {"content": "hello", "bytes-read": 5, "truncated": 1}


async def test_encoded_content_is_decoded_in_the_guest(api: Api):
    encoded = base64.b64encode(b"\x00\x01binary").decode()
    await api.post(f"{AGENT}/file-write", file="/tmp/b", content=encoded, encode=0)
    assert (await result(api, "wc", "-c", "/tmp/b"))["out-data"] == "8 /tmp/b\n"


async def test_a_missing_file_is_refused_in_the_words_of_the_agent(api: Api):
    missing = await api.get(f"{AGENT}/file-read", file="/nope")
    text = "Agent error: failed to open file '/nope' (mode: 'r'): No such file or directory"
    assert (missing.status, missing.reason) == (500, text)
    nowhere = await api.post(f"{AGENT}/file-write", file="/no/dir/x", content="y")
    assert "(mode: 'wb'): No such file or directory" in nowhere.reason


async def test_too_much_content_is_refused_by_the_schema(api: Api):
    reply = await api.post(f"{AGENT}/file-write", file="/tmp/x", content="x" * 61441)
    assert reply.errors == {"content": "value may only be 61440 characters long"}


async def test_the_agent_reports_its_system(api: Api):
    assert (await api.get(f"{AGENT}/get-host-name")).data == {"result": {"host-name": "docker01"}}
    assert (await api.get(f"{AGENT}/get-timezone")).data["result"] == {"zone": "UTC", "offset": 0}
    assert len((await api.get(f"{AGENT}/get-vcpus")).data["result"]) == 4
    assert (await api.get(f"{AGENT}/get-time")).data["result"] == int(api.clock.now() * 1e9)
    [root] = (await api.get(f"{AGENT}/get-fsinfo")).data["result"]
    assert root["mountpoint"] == "/"
    assert root["used-bytes"] < root["total-bytes"]
    blocks = (await api.get(f"{AGENT}/get-memory-blocks")).data["result"]
    size = (await api.get(f"{AGENT}/get-memory-block-info")).data["result"]["size"]
    assert len(blocks) * size == 8192 * 1024**2
    assert "guest-exec" in {
        each["name"] for each in (await api.get(f"{AGENT}/info")).data["result"]["supported_commands"]
    }
    assert (await api.post(AGENT, command="get-host-name")).data == {"result": {"host-name": "docker01"}}
    assert (await api.post(AGENT, command="ping")).data == {"result": {}}


async def test_while_the_file_systems_are_frozen_commands_are_refused(api: Api):
    assert (await api.post(f"{AGENT}/fsfreeze-status")).data == {"result": "thawed"}
    assert (await api.post(f"{AGENT}/fsfreeze-freeze")).data == {"result": 1}
    assert (await api.post(f"{AGENT}/fsfreeze-status")).data == {"result": "frozen"}
    assert "frozen" in (await execute(api, "true")).reason
    assert (await api.get(f"{AGENT}/get-fsinfo")).data["result"]["error"]["class"] == "CommandNotFound"
    assert (await api.post(f"{AGENT}/fsfreeze-thaw")).data == {"result": 1}
    assert (await execute(api, "true")).status == 200


async def test_passwords_are_set_for_known_users_only(api: Api):
    done = await api.post(f"{AGENT}/set-user-password", username="root", password="newpass1")
    assert done.data == {"result": {}}
    nobody = await api.post(f"{AGENT}/set-user-password", username="nobody9", password="newpass1")
    assert nobody.reason == "Agent error: child process has failed to set user password"
    short = await api.post(f"{AGENT}/set-user-password", username="root", password="x")
    assert short.errors == {"password": "value must be at least 5 characters long"}


async def test_the_agent_shuts_the_guest_down_after_a_moment(api: Api):
    assert (await api.post(f"{AGENT}/shutdown")).status == 200
    assert (await api.get("/nodes/pve1/qemu/102/status/current")).data["status"] == "running"
    await api.clock.advance(5)
    assert (await api.get("/nodes/pve1/qemu/102/status/current")).data["status"] == "stopped"


async def test_files_survive_a_restart_and_processes_do_not(api: Api):
    await api.post(f"{AGENT}/file-write", file="/root/kept", content="x")
    pid = (await execute(api, "sleep", "1000")).data["pid"]
    await api.post("/nodes/pve1/qemu/102/status/stop")
    await api.clock.advance(10)
    await api.post("/nodes/pve1/qemu/102/status/start")
    await api.clock.advance(10)
    assert (await api.get(f"{AGENT}/file-read", file="/root/kept")).data["content"] == "x"
    assert (await api.get(f"{AGENT}/exec-status", pid=pid)).status == 500


async def test_running_commands_takes_the_unrestricted_privilege(api: Api):
    bob = api.as_token("bob@pve!monitor")
    denied = await execute(bob, "true")
    assert (denied.status, denied.reason) == (
        403,
        "Permission check failed (/vms/102, VM.GuestAgent.Unrestricted)",
    )
    assert (await bob.get(f"{AGENT}/get-host-name")).status == 200


@pytest.mark.api(version="8.4.1")
async def test_pve_8_asks_for_vm_monitor(api: Api):
    denied = await execute(api.as_token("bob@pve!monitor"), "true")
    assert denied.reason == "Permission check failed (/vms/102, VM.Monitor)"
    assert (await execute(api, "true")).status == 200


@pytest.mark.parametrize(
    ("options", "answers"),
    [
        ({"ide2": "local:iso/rescue-live.iso,media=cdrom", "ostype": "l26"}, True),
        ({"ide2": "local:iso/debian-13.1.0-amd64-netinst.iso,media=cdrom", "ostype": "l26"}, False),
        ({"ide2": "local:iso/rescue-live.iso,media=cdrom", "ostype": "win11"}, False),
        ({"ide2": "local:iso/rescue-live.iso,media=cdrom", "ostype": "other"}, False),
        ({}, False),
    ],
)
async def test_only_systems_with_an_agent_answer_for_it(api: Api, options: dict[str, str], answers: bool):
    image = Volume("local:iso/rescue-live.iso", "iso", "iso", 1024, 1024, 0)
    api.cluster.world.storages["local"].add("pve1", image)
    await api.post("/nodes/pve1/qemu", vmid=500, agent="1", start=1, **options)
    await api.clock.advance(30)
    assert api.cluster.world.guests[500].running
    reply = await api.get("/nodes/pve1/qemu/500/agent/get-osinfo")
    assert (reply.status == 200) is answers
    assert answers or reply.reason == "QEMU guest agent is not running"
