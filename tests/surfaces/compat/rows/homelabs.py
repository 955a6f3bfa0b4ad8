"""Homelabs that rows run in: machines on loopback, and Quorate with its own tools and those of washyu."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from quorate.homelab.devices.device import Device
from quorate.homelab.devices.store import Devices
from quorate.homelab.host import Host as Registered
from quorate.ssh.settings import Login, SshSettings
from tests.rigs.compose_host import ComposeHost
from tests.rigs.docker_engine import DockerEngine, docker_engine
from tests.rigs.homelab import house
from tests.rigs.host_tools import plain_tools
from tests.rigs.mcp_session import Rig
from tests.rigs.own_system import OwnSystem, own_system
from tests.rigs.ssh_server import HOST, Host

PASSWORD = "correct horse"
HASH = "$6$quoratetest$Um.hGPzJ40I3bn5.y/N.0GdNPA2.cX4Rz3KN8NhPMgW1F8X3/FBZCUrv09sJV7m7m6RA67YmfleGQciPa76gl/"
PAGE = "http://127.0.0.1:8806"
SCRIPT = '#!/usr/bin/env bash\nAPP="Jellyfin"\n' + "echo one line after the other\n" * 50


@dataclass
class HomelabRig:
    quorate: Rig
    folder: Path
    hosts: Mapping[str, Host] = field(default_factory=dict)
    engines: Mapping[str, DockerEngine] = field(default_factory=dict)
    box: OwnSystem | None = None
    compose: ComposeHost | None = None
    page: int = 0

    def port(self, name: str) -> int:
        return self.hosts[name].port

    async def registered(self) -> dict[str, Registered]:
        """As the state store has them."""
        rows = await self.quorate.app.store.fetch("SELECT entry FROM quorate_hosts")
        hosts = [msgspec.json.decode(row["entry"], type=Registered) for row in rows]
        return {host.name: host for host in hosts}

    async def devices(self) -> list[Device]:
        return await Devices(self.quorate.app.store).all()

    def running(self, name: str) -> dict[str, str]:
        """Container -> image, as the engine of that host has them."""
        return self.engines[name].running()


@asynccontextmanager
async def _homelab(tmp_path: Path, hosts: Mapping[str, Mapping[str, Any]], **options: Any) -> AsyncIterator[HomelabRig]:
    more = {"surfaces": ("native", "washyu"), "gate_chosen": True, **options.pop("more", {})}
    folder = tmp_path / "house"
    folder.mkdir()
    async with house(folder, hosts, toolsets=("homelab",), more=more, **options) as built:
        yield HomelabRig(built.quorate, folder, built.hosts)


@asynccontextmanager
async def machines(tmp_path: Path) -> AsyncIterator[HomelabRig]:
    """Two that nobody has registered, and an HTTP server that shows terminals. The second takes a password."""
    async with _homelab(tmp_path, {"nas": {}, "pi": {"password": PASSWORD}}, register=False) as homelab:
        shells = homelab.quorate.app.shells
        assert shells is not None
        shells.url = PAGE  # as the HTTP server says when it listens
        yield homelab


@asynccontextmanager
async def registered(tmp_path: Path) -> AsyncIterator[HomelabRig]:
    """One that is registered as nas, and is on the map."""
    async with _homelab(tmp_path, {"nas": {}}) as homelab:
        await homelab.quorate.facts("network_discover", hosts=["nas"])
        yield homelab


_OTHER_MACHINE = """#!/bin/sh
case $1 in */machine-id) echo 00000000000000000000000000000002; exit;; esac
exec /bin/cat "$@"
"""
"""Both are this machine, but only one of them says so."""


@asynccontextmanager
async def with_docker(tmp_path: Path, names: Sequence[str] = ("one", "two")) -> AsyncIterator[HomelabRig]:
    """Two with a Docker engine each, registered and on the map; a container `web` runs on the first."""
    async with AsyncExitStack() as stack:
        engines, hosts = {}, {}
        for name in names:
            folder = tmp_path / name
            folder.mkdir()
            engines[name] = await stack.enter_async_context(docker_engine(folder))
            path = plain_tools(folder / "tools")
            (folder / "tools" / "tar").symlink_to(str(shutil.which("tar")))
            hosts[name] = {"environment": {"PATH": path, "DOCKER_HOST": f"unix://{engines[name].socket}"}}
        if "two" in names:
            (tmp_path / "two" / "tools" / "cat").unlink()
            (tmp_path / "two" / "tools" / "cat").write_text(_OTHER_MACHINE)
            (tmp_path / "two" / "tools" / "cat").chmod(0o755)
        homelab = await stack.enter_async_context(_homelab(tmp_path, hosts))
        homelab.engines = engines
        for name in names:
            await homelab.quorate.facts("network_discover", hosts=[name])
        await homelab.quorate.facts("workload_deploy", host="one", name="web", image="nginx:1.27")
        yield homelab


with_one_docker = partial(with_docker, names=("one",))


@asynccontextmanager
async def accounts(tmp_path: Path, **system: Any) -> AsyncIterator[HomelabRig]:
    """A real system with accounts of its own, of which `op` has a password and may use sudo."""
    async with own_system(tmp_path / "box", **system) as box:
        box.add_account("op", 1600, password=HASH)
        (box.folder / "etc/sudoers.d/op").write_text("op ALL=(ALL) ALL\n")
        ssh = SshSettings(Login(), known_hosts=(box.known_hosts,), pins=tmp_path / "pins")
        async with _homelab(tmp_path, {}, homelab={"ssh": ssh, **_playbooks(tmp_path)}) as homelab:
            homelab.box = box
            arguments = {"host": "box", "address": HOST, "port": box.port, "user": "root", "key": str(box.key_file)}
            await homelab.quorate.facts("host_register", **arguments)
            yield homelab


PLAYBOOK = """
title: A mark
about: Leaves a mark on the host
parameters:
  word: {default: red, about: What to write}
ansible:
  playbook: |
    - hosts: all
      gather_facts: false
      tasks:
        - name: The mark is there
          ansible.builtin.copy: {dest: /home/mark, content: "{{ word }}"}
          tags: [mark]
        - name: Another one
          ansible.builtin.copy: {dest: /home/other, content: "{{ word }}"}
          tags: [other]
"""
TERRAFORM = """
title: Records
about: A record of the test
parameters:
  colour: {default: red, about: Colour}
terraform:
  main.tf: |
    variable "colour" { type = string }
    resource "terraform_data" "record" { input = var.colour }
"""


def _playbooks(tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "mark.yaml").write_text(PLAYBOOK)
    return {"catalogue": folder}


@asynccontextmanager
async def with_compose(tmp_path: Path) -> AsyncIterator[HomelabRig]:
    """One with Compose, and a catalog with a service for it and one for Terraform."""
    host = ComposeHost(tmp_path / "machine")
    (host.catalogue / "records.yaml").write_text(TERRAFORM)
    async with host.page() as page, _homelab(tmp_path, {"box": host.options}, homelab=host.settings) as homelab:
        homelab.compose, homelab.page = host, page
        yield homelab


@asynccontextmanager
async def with_terraform(tmp_path: Path) -> AsyncIterator[HomelabRig]:
    """The same, where there is a program for it."""
    if not (shutil.which("tofu") or shutil.which("terraform")):
        pytest.skip("there is neither tofu nor terraform here")
    async with with_compose(tmp_path) as homelab:
        yield homelab


@asynccontextmanager
async def with_ansible(tmp_path: Path) -> AsyncIterator[HomelabRig]:
    """A real system, where Ansible is installed next to Quorate."""
    pytest.importorskip("ansible_runner")
    async with accounts(tmp_path) as homelab:
        yield homelab


@asynccontextmanager
async def online(tmp_path: Path) -> AsyncIterator[HomelabRig]:
    """The address that scripts are fetched from is a web server of the test."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=SCRIPT) if request.path == "/ct/jellyfin.sh" else web.Response(status=404)

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    url = f"http://{HOST}:{runner.addresses[0][1]}"
    try:
        async with _homelab(tmp_path, {}, homelab={"scripts_url": url}) as homelab:
            yield homelab
    finally:
        await runner.cleanup()


def this_machine() -> str:
    return os.uname().nodename
