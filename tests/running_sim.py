"""A simulated cluster in a thread of its own, for tests that drive commands from outside; and `pveum` for it."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from quorate.app import simulated_cluster
from quorate.pve.client import PveClient
from quorate.sim.cluster import SimulatedCluster


@contextmanager
def running_sim(**simulator: Any) -> Iterator[SimulatedCluster]:
    sim = SimulatedCluster(**{"auth_delay": 0.0, **simulator})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(sim.__aenter__(), loop).result(30)
        yield sim
    finally:
        asyncio.run_coroutine_threadsafe(sim.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def pointed_at(sim: SimulatedCluster) -> dict[str, str]:
    """The environment of a command that is to talk to this cluster."""
    return {
        "PROXMOX_URL": sim.url,
        "PROXMOX_TOKEN_ID": sim.token_id,
        "PROXMOX_TOKEN_SECRET": sim.token_secret,
        "PROXMOX_FINGERPRINT": sim.fingerprint,
    }


def pveum(sim: SimulatedCluster, lines: Iterable[str]) -> str:
    """Run these commands as a root shell of a node would; the secret of the token that they make."""

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
    given = vars(parser.parse_args(words[1:]))
    options = {name: value for name, value in given.items() if value is not None and name != "places"}
    match given["places"]:
        case ["user", "add", user]:
            return "POST", "/access/users", {"userid": user, **options}
        case ["role", "add", role]:
            return "POST", "/access/roles", {"roleid": role, **options}
        case ["acl", "modify", path]:
            return "PUT", "/access/acl", {"path": path, **options}
        case ["user", "token", "add", user, token]:
            return "POST", f"/access/users/{user}/token/{token}", options
    raise AssertionError(f"no such command: {words}")
