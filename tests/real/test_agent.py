"""The agent endpoints with the real guest agent behind them, and the simulated agent held against it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pve_simulator.api_client import Api, Reply, open_api
from pve_simulator.guest_os.agent_socket import SocketAgent
from pve_simulator.guest_os.agents import Agents
from tests.real.images import VM_ADDRESS
from tests.real.lab import Lab

pytestmark = pytest.mark.anyio

REAL = "/nodes/pve1/qemu/100/agent"
SIMULATED = "/nodes/pve1/qemu/110/agent"


@asynccontextmanager
async def root_client(lab: Lab) -> AsyncIterator[Api]:
    async with lab.cluster() as sim, open_api(sim) as api:
        yield api


async def execute(api: Api, agent: str, *argv: str, stdin: str | None = None) -> Reply:
    body = [("command", each) for each in argv]
    body += [("input-data", stdin)] if stdin is not None else []
    return await api.request("POST", f"{agent}/exec", data=body)


async def result(api: Api, agent: str, *argv: str, stdin: str | None = None) -> dict[str, Any]:
    pid = (await execute(api, agent, *argv, stdin=stdin)).data["pid"]
    async with asyncio.timeout(60):
        while True:
            status: dict[str, Any] = (await api.get(f"{agent}/exec-status", pid=pid)).data
            if status["exited"]:
                return status


async def test_a_command_runs_in_the_machine(lab: Lab):
    async with root_client(lab) as api:
        ended = await result(api, REAL, "/bin/sh", "-c", "hostname; cat; echo err >&2; exit 3", stdin="in\n")
        assert ended == {
            "exited": 1,
            "exitcode": 3,
            "out-data": "vm\nin\n",
            "out-truncated": 0,
            "err-data": "err\n",
            "err-truncated": 0,
        }


async def test_the_machine_describes_its_hardware_and_system(lab: Lab):
    async with root_client(lab) as api:
        assert (await api.get(f"{REAL}/get-host-name")).data == {"result": {"host-name": "vm"}}
        assert (await api.get(f"{REAL}/get-osinfo")).data["result"]["id"] == "debian"
        [root] = (await api.get(f"{REAL}/get-fsinfo")).data["result"]
        assert (root["mountpoint"], root["type"]) == ("/", "ext4")
        cards = {card["name"]: card for card in (await api.get(f"{REAL}/network-get-interfaces")).data["result"]}
        assert VM_ADDRESS in {each["ip-address"] for each in cards["eth0"]["ip-addresses"]}


async def test_systemd_runs_its_services(lab: Lab):
    async with root_client(lab) as api:
        for action, state in (("start", "active\n"), ("stop", "inactive\n")):
            assert (await result(api, REAL, "systemctl", action, "napping"))["exitcode"] == 0
            assert (await result(api, REAL, "systemctl", "is-active", "napping"))["out-data"] == state


async def test_a_file_of_several_pieces_is_read_whole(lab: Lab):
    async with root_client(lab) as api:
        written = await result(api, REAL, "sh", "-c", "head -c 2500000 /dev/urandom > /tmp/big; md5sum < /tmp/big")
        read = (await api.get(f"{REAL}/file-read", file="/tmp/big", decode=0)).data
        assert (read["bytes-read"], "truncated" in read) == (2_500_000, False)
        again = base64.b64decode(read["content"])
        assert len(again) == 2_500_000
        part = (await api.get(f"{REAL}/file-read", file="/tmp/big", offset=2_000_000, count=7, decode=0)).data
        assert base64.b64decode(part["content"]) == again[2_000_000:2_000_007]
        assert written["out-data"].split()[0] == hashlib.md5(again).hexdigest()


async def test_a_lost_agent_is_reported_and_works_again_later(lab: Lab):
    async with root_client(lab) as api:
        with lab.vm.agent_stopped():
            refused = await execute(api, REAL, "true")
            assert (refused.status, refused.reason) == (500, "QEMU guest agent is not running")
        assert (await result(api, REAL, "true"))["exitcode"] == 0


async def test_a_paused_machine_does_not_answer_until_it_continues(lab: Lab):
    async with root_client(lab) as api:
        with lab.vm.frozen():
            refused = await api.post(f"{REAL}/ping")
            assert (refused.status, refused.reason) == (500, "QEMU guest agent is not running")
        assert (await api.post(f"{REAL}/ping")).data == {"result": {}}


async def test_a_machine_that_is_off_does_not_answer(lab: Lab, tmp_path: Path):
    left_behind = tmp_path / "agent"
    async with lab.cluster(vm=False) as sim, open_api(sim) as api:
        sim.world.part(Agents).attach(100, SocketAgent(left_behind))
        for _ in range(2):
            refused = await api.post(f"{REAL}/ping")
            assert (refused.status, refused.reason) == (500, "QEMU guest agent is not running")
            with socket.socket(socket.AF_UNIX) as once:  # a machine that is killed leaves its socket behind
                left_behind.unlink(missing_ok=True)
                once.bind(str(left_behind))


async def test_many_ask_at_once_and_everybody_gets_his_own_answer(lab: Lab):
    async with root_client(lab) as api:
        results = await asyncio.gather(*(result(api, REAL, "/bin/echo", str(number)) for number in range(8)))
        assert [each["out-data"] for each in results] == [f"{number}\n" for number in range(8)]


BINARY = base64.b64encode("é€".encode() + b"\xff\x00\n").decode()


@pytest.mark.parametrize(
    "questions",
    [
        [("exec", ["/no/such"])],
        [("result", ["true", "é"])],
        [("result", ["true", "€"])],
        [("exec", ["echo a b"])],
        [("exec-status", {"pid": 99999})],
        [("file-read", {"file": "/nope"})],
        [("file-read", {"file": "/etc"})],
        [("file-write", {"file": "/no/dir/x", "content": "y"})],
        [("file-write", {"file": "/etc", "content": "y"})],
        [("file-write", {"file": "/tmp/x", "content": "!!", "encode": 0})],
        [("file-write", {"file": "/tmp/x", "content": "€"})],
        [("file-write", {"file": "/tmp/x", "content": "é"}), ("file-read", {"file": "/tmp/x"})],
        [
            ("file-write", {"file": "/tmp/x", "content": BINARY, "encode": 0}),
            ("file-read", {"file": "/tmp/x"}),
            ("file-read", {"file": "/tmp/x", "decode": 0}),
            ("file-read", {"file": "/tmp/x", "count": 4}),
            ("file-read", {"file": "/tmp/x", "count": 8}),
            ("file-read", {"file": "/tmp/x", "count": 9}),
            ("file-read", {"file": "/tmp/x", "offset": 3, "count": 2}),
            ("file-read", {"file": "/tmp/x", "offset": 100}),
            ("result", ["cat", "/tmp/x"]),
        ],
        [("result", ["sh", "-c", "kill -9 $$"])],
        [("result", ["sh", "-c", "exit 300"])],
        [("result", ["cat"])],
        [("set-user-password", {"username": "nobody9", "password": "newpass1"})],
        [("set-user-password", {"username": "root", "password": "newpass1"})],
        [
            ("command", {"command": "fsfreeze-status"}),
            ("command", {"command": "fsfreeze-freeze"}),
            ("exec", ["true"]),
            ("get-fsinfo", {}),
            ("command", {"command": "fsfreeze-thaw"}),
            ("command", {"command": "fsfreeze-thaw"}),
        ],
    ],
    ids=lambda questions: ", ".join(what for what, _ in questions),
)
async def test_the_simulated_agent_answers_as_the_real_one(lab: Lab, questions: list[tuple[str, Any]]):
    async with root_client(lab) as api:
        version = (await api.get(f"{REAL}/info")).data["result"]["version"]
        simulated = api.cluster.world.guests[110]
        simulated.system = replace(simulated.system, agent_version=version)
        for question in questions:
            assert await answer(api, SIMULATED, *question) == await answer(api, REAL, *question), question


async def answer(api: Api, agent: str, what: str, arguments: Any) -> object:
    match what:
        case "result":
            return await result(api, agent, *arguments)
        case "exec":
            reply = await execute(api, agent, *arguments)
        case "command":
            reply = await api.post(agent, **arguments)
        case "file-write" | "set-user-password":
            reply = await api.post(f"{agent}/{what}", **arguments)
        case _:
            reply = await api.get(f"{agent}/{what}", **arguments)
    return reply.status, reply.reason, reply.text and reply.body
