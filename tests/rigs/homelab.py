"""A homelab on loopback: SSH servers that run commands here, a simulated cluster, and Quorate in front of both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quorate.config.homelab import HomelabSettings
from quorate.ssh.settings import Login, SshSettings
from tests.rigs.mcp_session import Rig, rig
from tests.rigs.own_system import OwnSystem
from tests.rigs.ssh_server import HOST, Host, serving

TOOLSETS = ("homelab", "guests", "inside")


@dataclass
class House:
    quorate: Rig
    hosts: dict[str, Host]
    settings: HomelabSettings

    async def register(self, *names: str, **more: Any) -> None:
        """Register these hosts, or all of them, with `host_register`."""
        for name in names or self.hosts:
            host = self.hosts[name]
            login = {"user": "tester", "key": str(host.key_file), "verify": False, **more}
            await self.quorate.facts("host_register", host=name, address=HOST, port=host.port, **login)


@asynccontextmanager
async def house(
    tmp_path: Path, hosts: Mapping[str, Mapping[str, Any]] | None = None, *, register: bool = True, **options: Any
) -> AsyncIterator[House]:
    """Start a server for each of `hosts` (name -> options of tests.rigs.ssh_server.Host); `options` go to the rig.

    The rig's option `homelab` replaces fields of the HomelabSettings, `limits` are those of its SshSettings.
    """
    changes, limits = options.pop("homelab", {}), options.pop("limits", {})
    async with AsyncExitStack() as stack:
        requested = {"nas": {}} if hosts is None else hosts
        started = {
            name: await stack.enter_async_context(serving(tmp_path / name, **options_of_host))
            for name, options_of_host in requested.items()
        }
        ssh = SshSettings(
            Login(user="tester"),
            known_hosts=tuple(host.known_hosts for host in started.values()),
            pins=tmp_path / "pins",
            **limits,
        )
        places = {"secrets_file": "secrets", "secrets_folder": "", "catalogue": "catalogue", "work": "work"}
        usual = {"ssh": ssh, **{name: tmp_path / place for name, place in places.items()}}
        settings = HomelabSettings(**{**usual, **changes})
        arguments = {"toolsets": TOOLSETS, "ssh": True, **options}
        more = {"homelab": settings, **arguments.pop("more", {})}
        quorate = await stack.enter_async_context(rig(tmp_path, more=more, **arguments))
        built = House(quorate, started, settings)
        if register:
            await built.register()
        yield built


@asynccontextmanager
async def house_with(
    box: OwnSystem, folder: Path, *, homelab: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[House]:
    """A house with this system as its only host, `box`, which root logs in to."""
    ssh = SshSettings(Login(user="root"), known_hosts=(box.known_hosts,), pins=folder / "pins")
    async with house(folder, {}, homelab={"ssh": ssh, **(homelab or {})}, **options) as built:
        login = {"address": HOST, "port": box.port, "user": "root", "key": str(box.key_file)}
        await built.quorate.facts("host_register", host="box", **login)
        yield built
