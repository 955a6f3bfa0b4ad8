"""A host whose `docker` supports Compose: it starts nothing, but records its calls as files in a folder.

    host = ComposeHost(folder); pass host.options and host.catalogue to the homelab rig
    host.say("no-pull")     from now on images cannot be fetched
    host.say("slow")        or only until unsay
    host.calls              every call of docker, one line each

A real web server in the test decides whether a service is healthy; it reads `host.version`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.rigs.tcp_server import tcp_server

TEMPLATE = """
title: The page
about: A page for tests
version: "1.0"
needs: {memory: 1M, disk: 1M, ports: []}
parameters:
  web_port: {type: port, default: 8080, about: Port}
  password: {type: secret, generate: 24, about: Password}
  colour: {type: choice, choices: [red, blue], default: red, about: Colour}
files: {page.conf: "colour\\n"}
compose: |
  services:
    page: {image: "example/page:${VERSION}", ports: ["${WEB_PORT}:80"]}
health: {http: /alive, port: web_port, seconds: 30}
backup: [data]
"""
DOCKER = r"""#!/bin/sh
here=@HERE@
echo "$*" >> "$here/calls"
case "$1 $2" in
"compose version") exit 0;;
"ps "*) [ ! -e "$here/containers" ] || cat "$here/containers"; exit 0;;
"inspect "*) [ ! -e "$here/containers" ] || printf 'sha256:feed\texample/page:%s\n' "$(cat "$here/version")"; exit 0;;
"tag "*) exit 0;;
"compose -p") ;;
*) echo "docker: unknown $1 $2" >&2; exit 1;;
esac
folder=${5%/*}
case $6 in
pull) while [ -e "$here/slow" ]; do sleep 0.05; done
    [ ! -e "$here/no-pull" ] || { echo "manifest unknown" >&2; exit 1; }; echo "page Pulled" >&2;;
up) . "$folder/.env"; echo "$VERSION" > "$here/version"
    state='running\tUp 2 seconds'
    case $VERSION in *crashing) state='restarting\tRestarting (1) 2 seconds ago';; esac
    printf "c1\t%s-page-1\t$state\texample/page:%s\tpage\n" "$3" "$VERSION" > "$here/containers";;
down) rm -f "$here/containers" "$here/version";;
logs) echo "page-1 | the last words";;
esac
"""
_ABSENT = tuple((name, "#!/bin/sh\nexit 127\n") for name in ("docker-compose", "podman"))
"""Those of them that this machine has."""
_SUDO = '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n'


class ComposeHost:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for name, text in (("docker", DOCKER.replace("@HERE@", str(folder))), ("sudo", _SUDO), *_ABSENT):
            self.program(name, text)
        self.catalogue = folder / "templates"
        self.catalogue.mkdir()
        (self.catalogue / "page.yaml").write_text(TEMPLATE)
        self.services = folder / "opt"

    @property
    def options(self) -> dict[str, Any]:
        return {"environment": {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin"}}

    @property
    def settings(self) -> dict[str, Any]:
        return {"catalogue": self.catalogue, "services_folder": str(self.services)}

    @property
    def version(self) -> str:
        file = self.folder / "version"
        return file.read_text().strip() if file.exists() else ""

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def program(self, name: str, text: str) -> None:
        (self.folder / "bin" / name).write_text(text)
        (self.folder / "bin" / name).chmod(0o755)

    def say(self, what: str) -> None:
        (self.folder / what).touch()

    def unsay(self, what: str) -> None:
        (self.folder / what).unlink()

    @asynccontextmanager
    async def page(self) -> AsyncIterator[int]:
        """The page of the service, healthy while a version runs that is not called broken."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            status = "200 OK" if self.version and not self.version.endswith(("broken", "crashing")) else "503 Not well"
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()

        async with tcp_server(answer) as port:
            yield port
