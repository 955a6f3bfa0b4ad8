"""The pytest plugin as the tests of a blocking client use it, and the README, whose examples run."""

from __future__ import annotations

import json
import re
import shlex
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pve_simulator.background import AsyncBackgroundCluster, BackgroundCluster

README = (Path(__file__).parents[2] / "README.md").read_text()
START = "/nodes/pve1/qemu/108/status/start"
CURRENT = "/nodes/pve1/qemu/108/status/current"


def ask(pve: BackgroundCluster, path: str, method: str = "GET") -> Any:
    """The answer that a client of the standard library gets."""
    request = urllib.request.Request(
        f"{pve.url}/api2/json{path}", method=method, headers={"Authorization": pve.authorization}
    )
    trust = ssl.create_default_context(cafile=pve.ca_file)
    with urllib.request.urlopen(request, context=trust, timeout=30) as answer:
        return json.load(answer)["data"]


def test_time_passes_only_when_the_clock_is_turned(pve: BackgroundCluster):
    upid = ask(pve, START, "POST")
    status = f"/nodes/pve1/tasks/{upid}/status"
    assert ask(pve, status)["status"] == "running"
    assert ask(pve, CURRENT)["status"] == "stopped"
    pve.advance(10)
    assert ask(pve, status)["exitstatus"] == "OK"
    assert ask(pve, CURRENT)["status"] == "running"
    assert pve.world.guests[108].running


def test_a_fault_lasts_until_it_is_removed(pve: BackgroundCluster):
    fault = pve.add_fault("403:GET:/version")
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(pve, "/version")
    refused.value.close()
    assert refused.value.code == 403
    pve.remove_fault(fault)
    assert ask(pve, "/version")["version"] == "9.1.8"
    assert pve.requests == [("GET", "/version")] * 2


@pytest.mark.pve(nodes=2, guests=7, version="8.4", faults=["node-offline:pve2"])
def test_the_marker_says_which_cluster_it_is(pve: BackgroundCluster):
    assert ask(pve, "/version")["version"] == "8.4"
    assert {node["node"]: node["status"] for node in ask(pve, "/nodes")} == {"pve1": "online", "pve2": "offline"}
    assert len(pve.world.guests) == 7


@pytest.mark.pve(speed=1000)
def test_time_that_passes_on_its_own_is_not_turned(pve: BackgroundCluster):
    with pytest.raises(TypeError, match="passes on its own"):
        pve.advance(1)
    with pytest.raises(ValueError, match="either a speed or a clock"):
        BackgroundCluster(speed=2, clock=pve.cluster.clock)


def test_the_world_is_changed_between_two_requests(pve: BackgroundCluster):
    def rename() -> str:
        pve.world.guests[108].config["name"] = "renamed"
        return threading.current_thread().name

    assert pve.call(rename) == "pve-simulator"
    assert ask(pve, CURRENT)["name"] == "renamed"


def test_a_cluster_that_cannot_start_leaves_no_thread():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        cluster = BackgroundCluster(listen=f"127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(OSError, match="in use"):
            cluster.__enter__()
    assert "pve-simulator" not in {thread.name for thread in threading.enumerate()}


def test_the_examples_for_pytest_pass_where_the_package_is_installed(tmp_path: Path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "test_readme.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_readme.py"]
    tried = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert f"{code.count('def test_')} passed" in tried.stdout


@pytest.mark.parametrize("line", re.findall(r"^\$ (pve-simulator.*)$", README, re.MULTILINE))
def test_the_command_lines_print_how_to_reach_the_cluster(line: str):
    program, *arguments = shlex.split(line)
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
        finally:
            process.terminate()
        assert process.wait(30) == 0
    shown = json.loads(re.search(r"^\{.*\}$", README, re.MULTILINE)[0])  # type: ignore[index]
    assert ready.keys() == shown.keys()
    assert ready["token_id"] == shown["token_id"]


def test_every_part_of_the_fixture_that_the_page_names_exists(pve: BackgroundCluster):
    table = README.partition("| of the fixture |")[2].partition("\n\n")[0]
    names = [name for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)", cell)]
    assert {"url", "advance", "call"} <= set(names)
    for name in names:
        assert getattr(pve, name) is not None


@pytest.mark.anyio
@pytest.mark.pve(world="stock")
async def test_an_asynchronous_test_awaits_the_clock(async_pve: AsyncBackgroundCluster):
    headers = {"Authorization": async_pve.authorization}
    trust = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=async_pve.ca_file))
    async with aiohttp.ClientSession(async_pve.url, connector=trust, headers=headers) as session:
        (await session.post("/api2/json/nodes/pve1/qemu/102/status/start")).raise_for_status()
        assert not async_pve.world.guests[102].running
        await async_pve.advance(10)
        assert async_pve.world.guests[102].running
        fault = await async_pve.add_fault("403:GET:/version")
        assert (await session.get("/api2/json/version")).status == 403
        await async_pve.remove_fault(fault)
        assert await async_pve.call(lambda: threading.current_thread().name) == "pve-simulator"
        await async_pve.reset()
        assert (await session.get("/api2/json/version")).status == 200
        assert not async_pve.world.guests[102].running


def test_a_cluster_starts_over_at_the_same_address(pve: BackgroundCluster):
    url = pve.url
    ask(pve, START, "POST")
    pve.advance(5)
    pve.reset()
    assert (pve.url, pve.requests) == (url, [])
    assert ask(pve, CURRENT)["status"] == "stopped"
