"""An infrastructure plan with a real Docker: applied, broken halfway, gone on with, and rolled back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from quorate.secret import Secret
from tests.real.engine_host import IMAGE, PULLED, EngineHost, engine_host, serving
from tests.real.homelab import HomelabLab
from tests.real.homelab import serving as homelab_serving
from tests.real.lab import Lab
from tests.rigs.mcp_session import Rig, text_of

pytestmark = pytest.mark.anyio
STAY = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"]
UNITS = [unit for unit in Path("/etc/systemd/system").glob("*.service") if unit.is_file() and not unit.is_symlink()]
"""The host with the engines has the files of the machine that the tests run on."""
UNIT = "[Unit]\nDescription=Mine\n[Service]\nExecStart=/bin/sleep {}\n[Install]\nWantedBy=multi-user.target\n"


@pytest.fixture(scope="module")
def host() -> Iterator[EngineHost]:
    with engine_host("infra") as built:
        yield built


def planning(host: EngineHost, folder: Path) -> AbstractAsyncContextManager[Rig]:
    own = {"work": folder / "work", "services_folder": str(folder / "srv"), "passphrase": Secret("four random words")}
    return serving(host, folder, "workloads", "infra", **own)


def state_of(host: EngineHost) -> dict[str, Any]:
    """Every container as Docker itself tells it, without what is different each time that one is made."""
    ids = host.docker("ps", "--all", "--quiet").split()
    told = json.loads(host.docker("inspect", *ids)) if ids else []
    return {
        container["Name"]: {
            "config": {key: value for key, value in container["Config"].items() if value and key != "Hostname"},
            "limits": {key: value for key, value in container["HostConfig"].items() if value},  # null, [] and 0 are one
            "mounts": sorted((each["Destination"], each.get("Name", "")) for each in container["Mounts"]),
            "status": container["State"]["Status"],
        }
        for container in told
    }


async def test_a_plan_that_fails_halfway_continues_and_can_be_rolled_back(host, tmp_path):
    async with planning(host, tmp_path) as quorate:
        host.docker("run", "--detach", "--name", "old", "--env", "WORD=a b", "--memory", "64m", IMAGE, *STAY)
        host.docker("create", "--name", "asleep", "--volume", "pages:/data", IMAGE, *STAY)
        before = state_of(host)
        done = await quorate.facts("infra_backup", devices=["box"], scope=["workloads", "services"], name="before")
        backup = done["steps"][-1]["backup"]
        document: dict[str, Any] = {
            "name": "lab",
            "workloads": {
                "first": {
                    "host": "box",
                    "engine": "docker",
                    "image": IMAGE,
                    "command": STAY,
                    "volumes": ["rows:/data"],
                },
                "second": {
                    "host": "box",
                    "engine": "docker",
                    "image": "127.0.0.1:5000/absent:1",
                    "command": STAY,
                    "needs": ["first"],
                },
                "third": {
                    "host": "box",
                    "engine": "docker",
                    "image": IMAGE,
                    "command": STAY,
                    "needs": ["second"],
                    "replicas": 2,
                },
            },
        }
        answer = await quorate.call("infra_apply", document=document)
        assert answer.is_error
        assert answer.structured_content, text_of(answer)
        states = [step["state"] for step in answer.structured_content["steps"]]
        assert states == ["done", "failed", "not tried", "not tried"]
        assert "absent" in answer.structured_content["steps"][1]["why"]
        assert {"/first", "/old", "/asleep"} == set(state_of(host))
        document["workloads"]["second"]["image"] = PULLED
        done = await quorate.facts("infra_apply", document=document)
        assert [step["state"] for step in done["steps"]] == ["done"] * 3
        assert (await quorate.facts("infra_apply", document=document))["result"] == "nothing to do"
        assert {"/first", "/second", "/third", "/third-2"} <= set(state_of(host))
        await quorate.facts("workload_remove", host="box", name="old", engine="docker")
        await quorate.facts("workload_power", host="box", name="asleep", action="start", engine="docker")
        back = await quorate.facts("infra_rollback", backup=backup)
        assert f"{2 + len(UNITS)} pieces were read again" in back["proved"]
        after = state_of(host)
        assert {name: container["status"] for name, container in after.items()} == {
            "/old": "running",
            "/asleep": "exited",
        }
        for container in (*before.values(), *after.values()):
            container.pop("status")
        assert after == before
        host.docker("rm", "--force", "old", "asleep")


async def test_a_unit_of_systemd_is_as_it_was_after_a_rollback(lab: Lab, homelab: HomelabLab, tmp_path: Path):
    known = homelab.hosts["desk"].known_hosts + lab.debian.known_hosts
    toolsets = ("hosts", "map", "infra")
    async with homelab_serving(homelab, tmp_path, "desk", known=known, toolsets=toolsets) as quorate:

        async def change(**config: Any) -> None:
            await quorate.facts("device_update", device="units", changes={"services": {"mine": config}}, backup=False)

        async def state() -> str:
            command = (
                "systemctl is-active mine; systemctl is-enabled mine; grep -o 'sleep .*' /etc/systemd/system/mine*"
            )
            return str((await quorate.facts("host_exec", host="units", command=command))["stdout"])

        address = {"address": lab.debian.address, "key": str(lab.key)}
        await quorate.facts("host_register", host="units", **address, verify=False)
        await change(unit=UNIT.format(1000))
        await quorate.facts("infra_backup", devices=["units"], scope=["services"], name="before")
        await change(unit=UNIT.format(2000))
        await change(running=False, enabled=False)
        assert await state() == "inactive\ndisabled\nsleep 2000\n"
        await quorate.facts("infra_rollback", backup="before")
        assert await state() == "active\nenabled\nsleep 1000\n"
        assert (await quorate.facts("infra_rollback", backup="before"))["result"] == "nothing to do"
        await quorate.facts(
            "host_exec", host="units", command="systemctl disable --now mine; rm /etc/systemd/system/mine*"
        )


async def test_data_in_a_volume_comes_back(host, tmp_path):
    async with planning(host, tmp_path) as quorate:
        await quorate.facts(
            "workload_deploy", host="box", name="db", engine="docker", image=IMAGE, volumes=["kept:/data"], command=STAY
        )
        host.docker("exec", "db", "sh", "-c", "echo first > /data/rows")
        done = await quorate.facts("infra_backup", devices=["box"], scope=["workloads"], data=True)
        backup = done["steps"][-1]["backup"]
        host.docker("exec", "db", "sh", "-c", "echo second > /data/rows; echo x > /data/later")
        back = await quorate.facts("infra_rollback", backup=backup, data=True)
        assert back["more_than_then"] == ["data/later"]
        assert host.docker("exec", "db", "cat", "/data/rows") == "first\n"
        host.docker("rm", "--force", "db")
