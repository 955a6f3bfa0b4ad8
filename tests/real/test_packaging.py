"""The compose file of packaging/, started by a real Docker as docs/http.md says."""

from __future__ import annotations

import asyncio
import io
import json
import re
import ssl
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

import pve_schema
import quorate
from tests.paths import ROOT
from tests.real.engine_host import EngineHost, engine_host
from tests.real.network import run
from tests.real.polling import wait_until

pytestmark = pytest.mark.anyio

_PYTHON = Path("/run/lab/python")
_PACKAGES = Path(httpx2.__file__).parents[1]
_USER = 10001
_IMPORTED = ("ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD")
_COMMAND = b"#!/usr/bin/python3\nimport sys\nfrom quorate.cli import main\nsys.exit(main())\n"
# No registry has a Python image here, so the container borrows the machine's Python and what these tests import.
_BORROWED = {
    "services": {
        "quorate": {
            "volumes": ["/usr:/usr:ro", f"{_PYTHON}:/python:ro"],
            "environment": {
                "PYTHONPATH": "/python/src:/python/schema:/python/packages",
                "PROXMOX_URL": "https://127.0.0.1:8006",
                "PROXMOX_TOKEN_ID": "root@pam!none",
                "PROXMOX_TOKEN_SECRET": "00000000-0000-0000-0000-000000000000",
            },
        }
    }
}


@pytest.fixture(scope="module")
def host() -> Iterator[EngineHost]:
    version = run("/usr/bin/python3", "-c", "import sys; print(sys.version_info[:2])").strip()
    if version != str(sys.version_info[:2]):
        pytest.skip(f"the machine's Python is {version}")
    sources = {"src": Path(quorate.__file__).parents[1], "schema": Path(pve_schema.__file__).parents[1]}
    for name, source in {"packages": _PACKAGES, **sources}.items():
        (_PYTHON / name).mkdir(parents=True)
        run("mount", "--bind", source, _PYTHON / name)
    with engine_host("packaging") as built:
        yield built


def _instructions() -> list[str]:
    """What the Dockerfile's last stage says about the image, as `docker import` takes it."""
    lines = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text()).splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("FROM "))
    return [line for line in lines[last:] if line.split(" ")[0] in _IMPORTED]


def _build(host: EngineHost) -> None:
    archive = host.folder / "quorate.tar"
    with tarfile.open(host.folder / "tiny.tar") as tiny, tarfile.open(archive, "w") as image:
        for entry in tiny:
            entry.uid = entry.gid = _USER if entry.name == "data" else 0
            image.addfile(entry, tiny.extractfile(entry) if entry.isfile() else None)
        for name in ("opt", "opt/quorate", "opt/quorate/bin"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            image.addfile(folder)
        links = {"lib": "usr/lib", "lib64": "usr/lib64", "opt/quorate/bin/python": "/usr/bin/python3"}
        for name, target in links.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            image.addfile(link)
        command = tarfile.TarInfo("opt/quorate/bin/quorate")
        command.mode, command.size = 0o755, len(_COMMAND)
        image.addfile(command, io.BytesIO(_COMMAND))
    changes = [word for line in _instructions() for word in ("--change", line)]
    host.docker("import", *changes, str(archive), "quorate")


async def test_the_compose_file_serves_clients_on_the_network(host: EngineHost) -> None:
    await asyncio.to_thread(_build, host)
    folder = host.folder / "packaging/compose"
    folder.mkdir(parents=True)
    (folder / "compose.yaml").write_text((ROOT / "packaging/compose/compose.yaml").read_text())
    (folder / "borrowed.yaml").write_text(json.dumps(_BORROWED))

    def compose(*words: str) -> str:
        files = ["-f", str(folder / "compose.yaml"), "-f", str(folder / "borrowed.yaml")]
        name = ["env", f"QUORATE_NAME={host.host}"]
        return run(*host.inside(), *name, "docker-compose", "--ansi", "never", *files, *words)

    def quorate_says(*words: str) -> str:
        return compose("run", "--rm", "-T", "quorate", *words)

    def set_up() -> tuple[str, Path]:
        quorate_says("certificate", host.host)
        token = quorate_says("tokens", "create", "alice").split()[-1]
        compose("up", "-d")
        wait_until(lambda: "/mcp" in compose("logs", "quorate"), "the server to say its address", 60.0)
        container = compose("ps", "-q").strip()
        host.docker("cp", f"{container}:/data/config/quorate/tls/ca.pem", str(host.folder / "ca.pem"))
        return token, host.folder / "ca.pem"

    token, authority = await asyncio.to_thread(set_up)
    context = ssl.create_default_context(cafile=str(authority))
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(verify=context, headers=headers) as http,
        Client(streamable_http_client(f"https://{host.host}:8443/mcp", http_client=http)) as client,
    ):
        assert (await client.list_tools()).tools
    health = re.search(r"HEALTHCHECK .* CMD (\[.*\])", re.sub(r"\\\n", "", (ROOT / "Dockerfile").read_text()))
    assert health is not None
    compose("exec", "-T", "quorate", *json.loads(health[1]))
    assert compose("exec", "-T", "quorate", "/usr/bin/id", "-u").strip() == str(_USER)
    await asyncio.to_thread(compose, "down", "--volumes")
