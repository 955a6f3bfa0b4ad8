"""Instances of LXD and Incus: everything they do continues after the response and is followed to its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.homelab import house
from tests.rigs.host_tools import plain_tools
from tests.rigs.lxd_server import LxdServer, lxd_server

pytestmark = pytest.mark.anyio
TOOLSETS = ("hosts", "host_admin", "workloads")


@asynccontextmanager
async def with_lxd(tmp_path: Path) -> AsyncIterator[tuple[Any, LxdServer]]:
    (tmp_path / "house").mkdir()
    environment = {"PATH": plain_tools(tmp_path / "tools"), "LXD_DIR": str(tmp_path)}
    async with (
        lxd_server(tmp_path) as server,
        house(tmp_path / "house", {"box": {"environment": environment}}) as built,
    ):
        yield built.quorate, server


async def test_an_instance_lives_and_dies(tmp_path):
    async with with_lxd(tmp_path) as (quorate, server):
        workload = {"host": "box", "name": "web"}
        facts = await quorate.facts(
            "workload_deploy", **workload, image="tiny", ports=["8080:80"], env={"A": "b"}, memory="256M", cpus=2
        )
        assert (facts["workload"]["state"], facts["workload"]["addresses"]) == ("running", {"eth0": "10.0.3.7"})
        config = {"environment.A": "b", "limits.memory": "268435456B", "limits.cpu": "2"}
        assert server.bodies[0]["config"] == config
        assert any("Unpack: 40%" in (message or "") for *_, message in quorate.progress)
        assert (await quorate.facts("workload_logs", **workload, lines=2))["log"] == ["two", "three"]
        assert "has no times" in await quorate.refusal("workload_logs", **workload, since="1h")
        assert (await quorate.facts("workload_power", **workload, action="stop"))["now"] == "stopped"
        assert (await quorate.facts("workload_power", **workload, action="start"))["now"] == "running"
        done = await quorate.facts("workload_deploy", **workload, image="tiny", replace=True)
        assert done["workload"]["id"] != facts["workload"]["id"]
        await quorate.facts("workload_remove", **workload)
        assert server.instances == {}


async def test_an_operation_that_fails_is_reported_and_undone(tmp_path):
    async with with_lxd(tmp_path) as (quorate, server):
        server.fails = "Failed to run: forkstart"
        assert "forkstart" in await quorate.refusal("workload_deploy", host="box", name="web", image="tiny")
        assert server.instances == {}


async def test_an_instance_that_does_not_listen_is_stopped_by_force(tmp_path):
    async with with_lxd(tmp_path) as (quorate, server):
        await quorate.facts("workload_deploy", host="box", name="web", image="tiny")
        server.deaf = True
        assert (await quorate.facts("workload_power", host="box", name="web", action="stop"))["now"] == "stopped"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"command": ["sh"]}, "starts its own init"),
        ({"name": "under_score"}, "start with a letter"),
        ({"ports": ["80"]}, "It does not choose ports"),
        ({"restart": "on-failure"}, "not support restart on failure"),
        ({"image": "elsewhere:debian"}, "no image server"),
        ({"image": "absent", "pull": "never"}, "has no image"),
    ],
)
async def test_what_the_engine_cannot_do_is_refused_beforehand(tmp_path, wrong, says):
    async with with_lxd(tmp_path) as (quorate, server):
        arguments = {"host": "box", "name": "web", "image": "tiny", **wrong}
        assert says in await quorate.refusal("workload_deploy", **arguments)
        assert server.bodies == []
