"""A simulated cluster in its own thread, for tests of commands; and `pveum` for it."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import ssl
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from pve_simulator.background import BackgroundCluster
from pve_simulator.clock import RealClock
from pve_simulator.simulator import SimulatedCluster
from pve_simulator.world import World
from quorate.app import simulated_cluster
from quorate.pve.client import PveClient


@contextmanager
def running_sim(**simulator: Any) -> Iterator[SimulatedCluster]:
    """In real time, unless the options say otherwise."""
    with BackgroundCluster(**{"clock": RealClock(), **simulator}) as background:
        yield background.cluster


def pointed_at(sim: SimulatedCluster) -> dict[str, str]:
    """Return the environment for a command that uses this cluster."""
    return {
        "PROXMOX_URL": sim.url,
        "PROXMOX_TOKEN_ID": sim.token_id,
        "PROXMOX_TOKEN_SECRET": sim.token_secret,
        "PROXMOX_FINGERPRINT": sim.fingerprint,
    }


_PVEUM = """#!/bin/sh
# What a node's pveum is asked for, one word a line. As there, nothing can be added twice.
case "$1 $2" in
  "user add" | "role add") grep -qx "$1 $3" "$0.known" && exit 255; echo "$1 $3" >> "$0.known" ;;
esac
for word; do printf '%s\\n' "$word" >> "$0.asked"; done
printf '\\0\\n' >> "$0.asked"
"""


def run_script(sim: SimulatedCluster, script: str, *, times: int = 1) -> tuple[str, list[list[str]]]:
    """Run a shell script as root on a node would; return the secret of the token that it creates, and what it ran."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "pveum")
        program.write_text(_PVEUM)
        program.chmod(0o755)
        program.with_name("pveum.known").touch()
        for _ in range(times):
            environ = {"PATH": f"{folder}:{os.environ['PATH']}"}
            subprocess.run(["bash"], input=script, text=True, env=environ, check=True, timeout=60)
        asked = program.with_name("pveum.asked").read_text()
    commands = [words.strip("\n").splitlines() for words in asked.split("\0")[:-1]]
    return pveum(sim, (shlex.join(["pveum", *words]) for words in commands)), commands


def pveum(sim: SimulatedCluster, lines: Iterable[str]) -> str:
    """Run these commands as root on a node would; return the secret of the token that they create."""

    async def main() -> str:
        client = PveClient(replace(simulated_cluster(sim).connection))
        secret = ""
        try:
            for line in lines:
                method, path, params = _call(shlex.split(line))
                answer = await client.request(method, path, params)
                if path.count("/token/"):
                    secret = answer.data["value"]
        finally:
            await client.close()
        return secret

    return asyncio.run(main())


def _call(words: list[str]) -> tuple[str, str, dict[str, Any]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("places", nargs="*")
    for option in ("comment", "privs", "users", "tokens", "roles", "privsep"):
        parser.add_argument(f"--{option}")
    values = vars(parser.parse_args(words[1:]))
    options = {name: value for name, value in values.items() if value is not None and name != "places"}
    match values["places"]:
        case ["user", "add", user]:
            return "POST", "/access/users", {"userid": user, **options}
        case ["role", "add", role]:
            return "POST", "/access/roles", {"roleid": role, **options}
        case ["role", "modify", role]:
            return "PUT", f"/access/roles/{role}", options
        case ["user", "modify", user]:
            return "PUT", f"/access/users/{user}", options
        case ["acl", "modify", path]:
            return "PUT", "/access/acl", {"path": path, **options}
        case ["user", "token", "add", user, token]:
            return "POST", f"/access/users/{user}/token/{token}", options
    raise AssertionError(f"no such command: {words}")


async def ask(sim: SimulatedCluster, path: str, /, **query: Any) -> Any:
    """Return what PVE itself says, without the product."""
    return (await ask_all(sim, path, **query))[path]


async def ask_all(sim: SimulatedCluster, *paths: str, **query: Any) -> dict[str, Any]:
    headers = {"Authorization": f"PVEAPIToken={sim.token_id}={sim.token_secret}"}
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=sim.ca_file))
    answers = {}
    async with aiohttp.ClientSession(f"{sim.url}/", connector=connector, headers=headers) as session:
        for path in paths:
            async with session.get(f"/api2/json{path}", params=query) as answer:
                assert answer.status == 200, await answer.text()
                answers[path] = (await answer.json())["data"]
    return answers


def volumes(world: World) -> set[str]:
    return {
        volid for storage in world.storages.values() for space in storage.spaces.values() for volid in space.volumes
    }
