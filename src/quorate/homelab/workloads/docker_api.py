"""Docker and Podman through the Engine API."""

from __future__ import annotations

import posixpath
from typing import Any
from urllib.parse import quote, urlencode

from quorate.documents import Unreadable, read_json
from quorate.hints import Advice, either
from quorate.homelab.workloads.docker_shapes import (
    Pulling,
    build_copy_spec,
    create_request,
    digest_of,
    log_text,
    parse_container,
    parse_list_row,
)
from quorate.homelab.workloads.engine import Engine
from quorate.homelab.workloads.model import EngineName, Power, Spec, Workload
from quorate.homelab.workloads.unix_http import HttpResponse, UnixSocket
from quorate.problems import BadArgument, Conflict, NotFound, Problem, ServerFailed
from quorate.pve.clock import Clock
from quorate.pve.tasks import Report

VERSION = (1, 41)
"""The preferred version; an engine that supports only older or newer ones gets the nearest."""
PULL_SECONDS = 3600.0
STOP_SECONDS = 10
COPY_SECONDS = 600.0
LOG_BYTES = 256 * 1024


class DockerApi(Engine):
    def __init__(self, name: EngineName, socket: UnixSocket, version: str, clock: Clock) -> None:
        super().__init__(name, f"API {version} on {socket.path} by {socket.by}", clock)
        self._socket = socket
        self._prefix = f"/v{version}"

    @classmethod
    async def connect(cls, name: EngineName, socket: UnixSocket, clock: Clock) -> DockerApi:
        """The engine behind the socket. Raises a Problem if none answers."""
        version = _require_success(await socket.call("GET", "/version")).json()
        if not isinstance(version, dict):
            raise ServerFailed(f"What answers on {socket.path} is not {name}")
        return cls(name, socket, _negotiate_version(version), clock)

    async def list(self) -> list[Workload]:
        rows = await self._get("/containers/json?all=true")
        return sorted((parse_list_row(self.name, row) for row in rows), key=lambda one: one.name)

    async def find(self, name: str) -> Workload | None:
        container = await self._inspect(name)
        if container is None:
            return None
        try:
            digest = digest_of(await self._get(f"/images/{quote(str(container['Image']), safe='')}/json"))
        except Problem:  # its image may be gone
            digest = ""
        return parse_container(self.name, container, digest)

    async def logs(self, name: str, lines: int, since: float | None = None) -> str:
        container = await self._inspect(name)
        if container is None:
            raise NotFound(f"{self.name} has no workload {name!r}")
        asked = {"stdout": "true", "stderr": "true", "tail": str(lines)}
        asked |= {} if since is None else {"since": f"{since:.3f}"}
        path = f"/containers/{quote(name)}/logs"
        answer = await self._call("GET", f"{path}?{urlencode(asked)}", max_body=LOG_BYTES)
        while answer.cut and lines > 1:  # the beginning of an answer is kept, and the newest lines are at its end
            lines //= 2
            answer = await self._call("GET", f"{path}?{urlencode({**asked, 'tail': lines})}", max_body=LOG_BYTES)
        return log_text(answer.body, tty=bool((container.get("Config") or {}).get("Tty")))

    async def has_image(self, image: str) -> bool:
        try:
            await self._get(f"/images/{quote(image, safe='')}/json")
        except NotFound:
            return False
        return True

    async def pull(self, image: str, report: Report | None) -> None:
        name, _, tag = image.partition("@") if "@" in image else _split_tag(image)
        pulling = Pulling(image, report)
        asked = urlencode({"fromImage": name, "tag": tag})
        await self._call("POST", f"/images/create?{asked}", seconds=PULL_SECONDS, on_part=pulling.take)
        if pulling.error or not await self.has_image(image):
            raise ServerFailed(
                f"The image {image} could not be pulled",
                why=pulling.error or "It does not exist after the pull",
                next_step=either(
                    "Check its name and the host's access to the registry",
                    Advice("use {pull} for a local image", pull="never"),
                ),
            )

    async def create(self, spec: Spec, report: Report | None) -> tuple[str, ...]:
        del report
        for one in spec.mounts:
            if not one.is_path:  # Podman's API does not create volumes automatically
                await self._call("POST", "/volumes/create", {"Name": one.source})
        made = await self._call("POST", f"/containers/create?{urlencode({'name': spec.name})}", create_request(spec))
        return tuple(map(str, (made.json() or {}).get("Warnings") or ()))

    async def power(self, name: str, action: Power) -> None:
        grace = "" if action == "start" else f"?t={STOP_SECONDS}"
        await self._call("POST", f"/containers/{quote(name)}/{action}{grace}", seconds=STOP_SECONDS + 30.0)

    async def rename(self, name: str, new: str) -> None:
        await self._call("POST", f"/containers/{quote(name)}/rename?{urlencode({'name': new})}")

    async def remove(self, name: str, *, volumes: bool = False) -> None:
        asked = urlencode({"force": "true", "v": "true" if volumes else "false"})
        await self._call("DELETE", f"/containers/{quote(name)}?{asked}", seconds=STOP_SECONDS + 30.0)

    async def spec_of(self, name: str) -> Spec:
        container = await self._inspect(name)
        if container is None:
            raise NotFound(f"{self.name} has no workload {name!r}")
        return build_copy_spec(parse_container(self.name, container), container)

    async def save_image(self, image: str, limit: int) -> bytes:
        answer = await self._call("GET", f"/images/{quote(image, safe='')}/get", seconds=COPY_SECONDS, max_body=limit)
        if answer.cut:
            raise Conflict(f"The image {image} is too large to copy", why=f"The limit is {limit >> 20} MiB")
        return answer.body

    async def load_image(self, archive: bytes) -> None:
        answer = await self._call("POST", "/images/load?quiet=true", archive, seconds=COPY_SECONDS)
        said = answer.body.decode("utf-8", "replace")
        if '"error"' in said:
            raise ServerFailed("The image could not be loaded", why=said[:500])

    async def read_folder(self, name: str, path: str, limit: int) -> bytes:
        asked = urlencode({"path": path})
        answer = await self._call(
            "GET", f"/containers/{quote(name)}/archive?{asked}", seconds=COPY_SECONDS, max_body=limit
        )
        if answer.cut:
            raise Conflict(f"{path} of {name} is too large to copy", why=f"The limit is {limit >> 20} MiB")
        return answer.body

    async def write_folder(self, name: str, path: str, tar: bytes) -> None:
        asked = urlencode({"path": posixpath.dirname(path.rstrip("/")) or "/"})
        await self._call("PUT", f"/containers/{quote(name)}/archive?{asked}", tar, seconds=COPY_SECONDS)

    async def _inspect(self, name: str) -> dict[str, Any] | None:
        try:
            container: dict[str, Any] = await self._get(f"/containers/{quote(name)}/json")
        except NotFound:
            return None
        # The API also accepts the beginning of an id; only a name counts here.
        return container if str(container.get("Name", "")).lstrip("/") == name else None

    async def _get(self, path: str) -> Any:
        return (await self._call("GET", path)).json()

    async def _call(self, method: str, path: str, body: Any = None, **options: Any) -> HttpResponse:
        return _require_success(await self._socket.call(method, f"{self._prefix}{path}", body, **options))


def _require_success(answer: HttpResponse) -> HttpResponse:
    """304 means that a container is already running, or stopped."""
    if answer.status < 400:
        return answer
    try:
        said = str(read_json(answer.body)["message"])
    except (Unreadable, KeyError, TypeError):
        said = answer.body[:500].decode("utf-8", "replace").strip()
    kind = {400: BadArgument, 404: NotFound, 409: Conflict}.get(answer.status, ServerFailed)
    raise kind("The engine refused it", why=f"It said: {said}")


def _negotiate_version(version: dict[str, Any]) -> str:
    least, most = _version(version.get("MinAPIVersion")) or VERSION, _version(version.get("ApiVersion")) or VERSION
    major, minor = min(max(VERSION, least), most)
    return f"{major}.{minor}"


def _version(text: Any) -> tuple[int, int] | None:
    major, _, minor = str(text or "").partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _split_tag(image: str) -> tuple[str, str, str]:
    """Name and tag; a colon before the last slash belongs to the registry's port."""
    name, colon, tag = image.rpartition(":")
    return (name, colon, tag) if colon and "/" not in tag else (image, "", "latest")
