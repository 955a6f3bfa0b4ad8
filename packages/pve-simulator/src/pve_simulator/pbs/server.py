"""A simulated Proxmox Backup Server over HTTPS: its state, and requests in the server's order of checks."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import logging
import random
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, unquote

from aiohttp import hdrs, web

from pve_schema.pbs import BackupEndpoint, pbs_facts
from pve_simulator.clock import Clock, RealClock
from pve_simulator.http.certificates import ServerIdentity, create_identity
from pve_simulator.http.listener import Listener
from pve_simulator.pbs.access import ROOT, Access, Credential
from pve_simulator.pbs.datastores import Datastore
from pve_simulator.pbs.jobs import run_schedules
from pve_simulator.pbs.refusals import Refusal, bad_parameters, forbidden
from pve_simulator.pbs.routing import Call, Payload, Raw, all_routes
from pve_simulator.pbs.tasks import Tasks

_LOG = logging.getLogger(__name__)

VERSION = "4.1.1"
JSON = "application/json;charset=UTF-8"
_FORMATS = frozenset({"json", "extjs"})
_FORM = "application/x-www-form-urlencoded"
_MAX_BODY = 512 * 1024
_MAX_LINE = 3072
_REFUSAL_SECONDS = 0.5
"""How long the server takes to refuse a caller by the declared permission."""
_WITHOUT_LOGIN = frozenset(
    {
        ("GET", "/ping"),
        ("GET", "/access/domains"),
        ("POST", "/access/ticket"),
        ("DELETE", "/access/ticket"),
        ("POST", "/access/openid/login"),
        ("POST", "/access/openid/auth-url"),
    }
)
_TOKEN_NAME = "simulator"  # noqa: S105


class BackupServer:
    """A Proxmox Backup Server on loopback, as an async context manager. `build` fills it before it starts."""

    def __init__(
        self,
        *,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        clock: Clock | None = None,
        seed: int = 0,
        auth_delay: bool = True,
        root_password: str = "simulator",  # noqa: S107
        node: str = "pbs",
        build: Callable[[BackupServer], None] | None = None,
        identity: Callable[[Path, list[str]], ServerIdentity] = create_identity,
    ) -> None:
        self.clock: Clock = clock or RealClock()
        self.node = node
        self.access = Access(self.clock, root_password)
        self.facts = pbs_facts(VERSION)
        self.tasks = Tasks(self.clock, node)
        self.datastores: dict[str, Datastore] = {}
        self.sections: dict[str, dict[str, dict[str, Any]]] = {
            kind: {} for kind in ("verify", "prune", "sync", "remote")
        }
        """Jobs and remotes, by kind and id."""
        self.job_states: dict[tuple[str, str], str] = {}
        """The UPID of each job's last run, by kind and id."""
        self.peers: dict[tuple[str, int], BackupServer] = {}
        """Servers that remotes may lead to, by address."""
        self.disk_total, self.disk_used = 252 << 30, 25 << 30
        self.occupied_folders: set[str] = set()
        """Folders of the machine that contain something, where no datastore can be created."""
        self.requests: list[tuple[str, str]] = []
        self.fingerprint = ""
        self.token_id = f"{ROOT}!{_TOKEN_NAME}"
        self.token_secret = str(uuid.UUID(int=random.Random(f"pbs {seed}").getrandbits(128), version=4))  # noqa: S311
        self.access.tokens[self.token_id] = Credential(self.token_secret)
        self.access.acl["/", self.token_id, "Admin"] = True
        self._auth_delay = auth_delay
        self._listen = listen
        self._identity = identity
        self._directory: Path | None = None
        self._listener: Listener | None = None
        if build is not None:
            build(self)

    # -- state ---------------------------------------------------------------------------------------------------------

    def datastore(self, name: str) -> Datastore:
        if name not in self.datastores:
            raise Refusal(f"no such datastore '{name}'")
        return self.datastores[name]

    def add_datastore(self, name: str, **config: Any) -> Datastore:
        """A datastore that already exists when the server starts."""
        store = self.datastores[name] = Datastore(name, {"name": name, "path": f"/backup/{name}", **config})
        return store

    def digest(self, *parts: object) -> str:
        """The digest of a configuration file: that of its content."""
        text = "" if not any(parts) else json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def sizes(self) -> dict[str, int]:
        """The file system that all datastores are on."""
        written = sum(store.gc.disk_bytes for store in self.datastores.values())
        used = self.disk_used + written
        return {"total": self.disk_total, "used": used, "avail": self.disk_total - used - self._reserved}

    def resize_disk(self, total: int, used: int) -> None:
        """Let the file system have this size, and this much of it be unavailable: used, or reserved."""
        self.disk_total = total
        written = sum(store.gc.disk_bytes for store in self.datastores.values())
        self.disk_used = max(used - self._reserved - written, 0)

    @property
    def _reserved(self) -> int:
        return self.disk_total // 20

    # -- life ----------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        if self._listener is None:
            raise RuntimeError("the simulated backup server is not running")
        return self._listener.url

    @property
    def ca_file(self) -> str:
        assert self._directory is not None
        return str(self._directory / "ca.pem")

    async def __aenter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="pbs-simulator-"))
        identity = self._identity(self._directory, [self.node])
        self.fingerprint = identity.fingerprint.lower()
        self.access.forget_cache()
        all_routes()
        self._listener = Listener(*self._listen, identity.context, self._handle)
        await self._listener.start()
        self.tasks.in_background(run_schedules(self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listener is not None
        assert self._directory is not None
        await self._listener.stop()
        await self.tasks.close()
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        started = self.clock.now()
        as_extjs = False
        try:
            fmt, path = self._accept(request)
            if not fmt:
                return self._static(path)
            as_extjs = fmt == "extjs"
            self.requests.append((request.method, path))
            response = await self._answer(request, path, as_extjs=as_extjs)
        except Refusal as refusal:
            if self._auth_delay and refusal.delay:
                await self.clock.sleep(started + refusal.delay - self.clock.now())
            response = _render_refusal(refusal, as_extjs=as_extjs)
            if refusal.status == 401:
                response.headers["Set-Cookie"] = (
                    "__Host-PBSAuthCookie=; Expires=Thu, 01 Jan 1970 00:00:00 GMT; "
                    "Secure; SameSite=Lax; HttpOnly; Path=/;"
                )
        return _compress(response, request)

    def _accept(self, request: web.BaseRequest) -> tuple[str, str]:
        """The format and path; no format for pages."""
        if len(request.raw_path) > _MAX_LINE:
            raise Refusal("", 414)
        decoded = unquote(request.raw_path.partition("?")[0])
        parts = [part for part in decoded.split("/") if part]
        if ".." in parts or any(part.startswith(".") for part in parts):
            raise Refusal("path contains illegal components")
        if parts[:1] != ["api2"]:
            return "", "/" + "/".join(parts)
        if len(parts) == 1:
            raise Refusal("invalid api path '/api2'", 404)
        if parts[1] not in _FORMATS:
            raise Refusal(f"Unsupported output format '{parts[1]}'.")
        return parts[1], "/" + "/".join(parts[2:])

    def _static(self, path: str) -> web.StreamResponse:
        if path == "/":
            return web.Response(text=f"<html>{self.node}</html>\n", content_type="text/html")
        return _render_refusal(Refusal(f"no such file: '{path.strip('/')}'", 404), as_extjs=False)

    async def _answer(self, request: web.BaseRequest, path: str, *, as_extjs: bool) -> web.Response:
        public = (request.method, path) in _WITHOUT_LOGIN
        auth_id = "" if public else self.access.identify(request.headers, request.method)
        match = self.facts.find(request.method, path)
        if match is None:
            shown = (
                "" if request.method == "HEAD" else f"Path '/api2/{'extjs' if as_extjs else 'json'}{path}' not found."
            )
            raise Refusal(shown, 404)
        endpoint = match.endpoint
        if not self.access.allows(auth_id, endpoint.permission, match.values):
            refusal = forbidden()
            refusal.delay = _REFUSAL_SECONDS
            raise refusal
        params = await self._parameters(request, endpoint, match.values)
        handler = all_routes().get((request.method, endpoint.template))
        if handler is None and request.method == "GET" and self.facts.children(endpoint.template):
            return _success([{"subdir": name} for name in self.facts.children(endpoint.template)], as_extjs=as_extjs)
        if handler is None:
            raise Refusal(f"{request.method} {endpoint.template} is not simulated", 501)
        try:
            result = handler(Call(self, auth_id, params, request.headers))
            result = await result if inspect.isawaitable(result) else result
        except Refusal:
            raise
        except Exception as error:  # a defect of the simulator must not look like the server's answer
            _LOG.exception("%s %s failed", request.method, endpoint.template)
            raise Refusal("internal error of the simulated backup server", 500) from error
        if isinstance(result, Raw):
            return web.Response(body=result.body, headers={hdrs.CONTENT_TYPE: result.content_type})
        return _success(result, as_extjs=as_extjs)

    async def _parameters(
        self, request: web.BaseRequest, endpoint: BackupEndpoint, values: dict[str, str]
    ) -> dict[str, Any]:
        """Path, body and query as one set of checked parameters. With a JSON body the query does not count."""
        if (request.content_length or 0) >= _MAX_BODY:
            raise Refusal("Request body too large")
        body = await request.read()
        declared = request.headers.get(hdrs.CONTENT_TYPE, "")
        kind = declared.partition(";")[0].strip().lower()
        if kind == "application/json" and body:
            fields = _parse_json(body)
            typed: dict[str, Any] = {**fields, **values}
            errors = endpoint.check(fields | _path_values(endpoint, values), is_json=True)
            if errors:
                raise bad_parameters(errors)
            return endpoint.convert(typed)
        if body and kind not in ("", _FORM):
            raise Refusal(f'unsupported content type Ok("{declared}")')
        pairs = parse_qsl(body.decode(), keep_blank_values=True) + parse_qsl(
            request.raw_path.partition("?")[2], keep_blank_values=True
        )
        texts: dict[str, Any] = dict(values)
        for name, value in pairs:
            is_list = endpoint.parameters.get(name, {}).get("type") == "array"
            if name in texts and not is_list:
                raise bad_parameters({name: "duplicate parameter."})
            texts[name] = [*texts.get(name, []), value] if is_list else value
        errors = endpoint.check(texts)
        if errors:
            _refuse_unknown_variant(errors, endpoint, texts)
            raise bad_parameters(errors)
        return endpoint.convert(texts)


def _parse_json(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except json.JSONDecodeError as error:
        raise Refusal(f"EOF while parsing a value at line {error.lineno} column {len(body)}") from error
    if not isinstance(data, dict):
        raise Refusal(
            "Expected object - got array." if isinstance(data, list) else "Expected object - got scalar value."
        )
    return data


def _path_values(endpoint: BackupEndpoint, values: dict[str, str]) -> dict[str, Any]:
    """Parameters of the path are texts, also next to a JSON body."""
    return endpoint.convert(values)


def _refuse_unknown_variant(errors: dict[str, str], endpoint: BackupEndpoint, texts: dict[str, Any]) -> None:
    """An unknown type of backup is refused by the code that reads it, in its own words."""
    value = texts.get("backup-type")
    if "backup-type" in errors and isinstance(value, str) and "backup-type" in endpoint.parameters:
        variants = ", ".join(f"`{name}`" for name in endpoint.parameters["backup-type"].get("enum", ()))
        raise Refusal(f"unknown variant `{value}`, expected one of {variants}")


def _success(result: Any, *, as_extjs: bool) -> web.Response:
    body: dict[str, Any] = {"data": result}
    if isinstance(result, Payload):
        body = {"data": result.data, **result.extra}
    if as_extjs:
        body |= {"status": 200, "success": True}
    return web.Response(body=json.dumps(body, ensure_ascii=False).encode(), headers={hdrs.CONTENT_TYPE: JSON})


def _render_refusal(refusal: Refusal, *, as_extjs: bool) -> web.Response:
    """The bare text, although the type says JSON. Only extjs has a structured form."""
    if as_extjs and refusal.status not in (401, 404):
        message = "parameter verification errors" if refusal.errors else refusal.text
        body = {"errors": refusal.errors, "message": message, "status": refusal.status, "success": False}
        return web.Response(body=json.dumps(body).encode(), headers={hdrs.CONTENT_TYPE: JSON})
    return web.Response(
        status=refusal.status, body=refusal.text.encode(), headers={hdrs.CONTENT_TYPE: JSON} if refusal.text else {}
    )


def _compress(response: web.StreamResponse, request: web.BaseRequest) -> web.StreamResponse:
    """Deflate is honored, gzip is not."""
    if isinstance(response, web.Response) and response.status == 200 and isinstance(response.body, bytes):
        accepted = [part.strip() for part in request.headers.get(hdrs.ACCEPT_ENCODING, "").split(",")]
        if "deflate" in accepted and len(response.body) > 1024:
            response.body = zlib.compress(response.body)
            response.headers[hdrs.CONTENT_ENCODING] = "deflate"
    return response
