"""The API server: HTTPS requests in PVE's order of checks, from the verb to the endpoint's code."""

from __future__ import annotations

import inspect
import logging
import re
import weakref
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from aiohttp import hdrs, web

from pve_schema.calendar_events import calendar_errors
from pve_schema.schema import Facts, Match
from pve_simulator.access.tickets import Authentication, Unauthorized, has_token
from pve_simulator.cluster.quorum import refuse_or_fail
from pve_simulator.faults import Faults, proxy_reason, with_null
from pve_simulator.guests.consoles import Consoles
from pve_simulator.http import parameters, responses
from pve_simulator.http.permission_check import check_permission
from pve_simulator.http.refusals import (
    ProxyFailure,
    Refusal,
    ServerRefusal,
    bad_parameters,
    failure,
    forbidden,
    unimplemented_method,
)
from pve_simulator.http.routing import Call, Route, all_routes
from pve_simulator.nodes.power_loss import silence_of
from pve_simulator.nodes.tasks import TaskError
from pve_simulator.world import Node, World

_LOG = logging.getLogger(__name__)

_METHODS = frozenset({"GET", "POST", "PUT", "DELETE"})
_FORMATS = frozenset({"json", "extjs", "html", "htmljs"})
_MAX_BODY = 512 * 1024
_MAX_BODY_BEFORE_8_4 = 64 * 1024
_REQUESTS_PER_CONNECTION = 100
_SLASHES = re.compile("//+")
_UNKNOWN_PROPERTY = "property is not defined in schema"
_API_PATH = re.compile(r"/api2(?:/(?P<format>[^/]*))?(?P<path>/.*)?", re.DOTALL)

_TOP = ("version", "cluster", "nodes", "storage", "access", "pools")
_WITHOUT_LOGIN = frozenset(
    {
        ("GET", "/access/domains"),
        ("GET", "/access/ticket"),
        ("POST", "/access/ticket"),
        ("POST", "/access/vncticket"),
        ("POST", "/access/openid/login"),
        ("POST", "/access/openid/auth-url"),
    }
)


class ApiServer:
    """Answers the requests to all endpoints of one cluster."""

    def __init__(
        self, world: World, facts: Facts, faults: Faults, *, auth_delay: float, requests: list[tuple[str, str]]
    ) -> None:
        self._world = world
        self._facts = facts
        self._faults = faults
        self._auth_delay = auth_delay
        self.requests = requests
        self._served: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self.authentication = Authentication(
            world.access, world.clock, detailed_reasons=not world.version_at_least(9, 1, 5)
        )

    def for_node(self, node: Node) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
        """The request handler of this node's endpoint."""

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await self._handle(request, node if node.online else self._world.first_online())

        return handle

    async def _handle(self, request: web.BaseRequest, local_node: Node) -> web.StreamResponse:
        started = self._world.clock.now()
        fmt, drop = "json", ""
        response: web.StreamResponse
        try:
            if (request.method, request.raw_path.partition("?")[0]) == ("GET", "/"):
                return responses.web_page(local_node.name)
            fmt, path, written_path = self._accept(request)
            self.requests.append((request.method, path))
            drop = await self._apply_early_faults(request, path)
            if drop == "before":
                return _cut_connection(request)
            try:
                response = await self._answer(request, fmt, path, written_path, local_node)
            except (
                ConnectionResetError
            ):  # the client disconnected before its body was complete: PVE does not start such a request
                self.requests.remove((request.method, path))
                return _cut_connection(request)
            if drop == "timed out":
                raise ProxyFailure(596, proxy_reason(596))
        except ServerRefusal as error:
            response = responses.bare(error.status, error.reason, error.text)
        except Unauthorized as error:
            response = responses.bare(401, str(error))
        except ProxyFailure as error:
            response = responses.bare(error.status, error.reason)
        except Refusal as refusal:
            response = responses.render_refusal(refusal, fmt, message_in_body=self._world.version_at_least(8, 4))
        if response.status == 401:
            await self._world.clock.sleep(started + self._auth_delay - self._world.clock.now())
        return await self._finish(request, response, drop, local_node)

    def _accept(self, request: web.BaseRequest) -> tuple[str, str, str]:
        """Check verb, transfer encoding and path; returns format, path, and the path with its doubled slashes."""
        if request.method not in _METHODS:
            raise ServerRefusal(501, f"method '{request.method}' not available", empty=True)
        if "chunked" in request.headers.get(hdrs.TRANSFER_ENCODING, "").lower():
            raise ServerRefusal(501, "chunked transfer encoding not supported")
        decoded = unquote(request.raw_path.partition("?")[0])
        match = _API_PATH.fullmatch(decoded) or _API_PATH.fullmatch(_SLASHES.sub("/", decoded))
        if match is None:
            raise ServerRefusal(500, f"no such file '{_SLASHES.sub('/', decoded)}'")
        if not match["format"]:
            raise ServerRefusal(501, "no such uri")
        written_path = "/" + (match["path"] or "").strip("/")
        path = _SLASHES.sub("/", written_path)
        if match["format"] not in _FORMATS:
            raise ServerRefusal(501, f"no formatter for uri {path}, {match['format']}")
        return match["format"], path, written_path

    async def _apply_early_faults(self, request: web.BaseRequest, path: str) -> str:
        """Apply faults before the request is handled; returns how the answer is to be lost, if at all."""
        if self._faults.is_empty:
            return ""
        for fault in self._faults.for_request("latency", request.method, path):
            await self._world.clock.sleep(float(fault.argument))
        drop = self._faults.first("drop", request.method, path)
        if drop is not None and drop.argument == "before":
            return drop.argument
        if self._faults.first("401", request.method, path):
            raise Unauthorized("Authentication failed!")
        for status in (595, 596):
            away = self._faults.first(str(status), request.method, path)
            if away is not None and away.argument:
                return "timed out"
            if away is not None:
                raise ProxyFailure(status, proxy_reason(status))
        for kind, refusal in (("403", forbidden()), ("500", None), ("501", unimplemented_method(request.method, path))):
            error = self._faults.first(kind, request.method, path)
            if error is not None:
                raise refusal or failure(error.argument)
        garbage = self._faults.first("garbage", request.method, path)
        lost = drop or garbage
        return "" if lost is None else lost.argument

    async def _answer(
        self, request: web.BaseRequest, fmt: str, path: str, written_path: str, local_node: Node
    ) -> web.StreamResponse:
        user = self._authenticate(request, path)
        match = self._facts.find(request.method, path)
        route = None if match is None else all_routes().get((request.method, match.endpoint.template))
        params, undefined = await self._read_parameters(request, route)
        if (request.method, path) == ("GET", "/"):  # the API facts start below it
            return responses.success([{"subdir": name} for name in _TOP], fmt, gzip_accepted=False)
        if match is None:
            raise unimplemented_method(request.method, written_path)
        self._refuse_conflicts(match, params)
        if not match.endpoint.allow_token and (has_token(request.headers) is not None and "!" in str(user or "!")):
            raise forbidden(f"URI '{path}' not available with API token, need proper ticket.\n")
        raw = {**params, **match.values}
        check_permission(self._world.access, match.endpoint.permission, user, raw)
        await self._find_node(match, raw, local_node)
        if route is None or not route.reads_body:
            self._refuse_bad_parameters(match, raw, undefined)
        if route is None:
            raise unimplemented_method(request.method, written_path)
        typed = parameters.convert_values(match.endpoint, raw)
        call = Call(self._world, match.endpoint, user, typed, match.values, local_node, self.authentication, request)
        call.undefined = undefined
        data = await _run(route, call)
        if path.endswith("websocket") and request.headers.get(hdrs.UPGRADE, "").lower() == "websocket":
            return await self._world.part(Consoles).join(request, local_node.name, int(data["port"]))
        for fault in self._faults.for_request("null", request.method, path):
            data = with_null(data, fault.argument)
        return responses.success(data, fmt, gzip_accepted="gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""))

    def _authenticate(self, request: web.BaseRequest, path: str) -> str | None:
        if (request.method, path) in _WITHOUT_LOGIN:
            return None
        user, by_ticket = self.authentication.identify(request.headers)
        if by_ticket and request.method != "GET" and not path.endswith("/upload"):
            self.authentication.check_csrf(user, request.headers.get("CSRFPreventionToken"))
        return user

    async def _read_parameters(
        self, request: web.BaseRequest, route: Route | None
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Merge body and query, where the query wins; parameters without a value are returned by name."""
        params: dict[str, Any] = {}
        length = request.content_length or 0
        as_json = request.method in ("POST", "PUT") and _kind_of_body(request) == "application/json"
        if (length or as_json) and not (route is not None and route.reads_body):
            params = await self._read_body(request, length)
        params |= parameters.parse_form(request.raw_path.partition("?")[2])
        params.pop("_dc", None)
        undefined = tuple(name for name, value in params.items() if value is None)
        return {name: value for name, value in params.items() if value is not None}, undefined

    async def _read_body(self, request: web.BaseRequest, length: int) -> dict[str, Any]:
        if request.method not in ("POST", "PUT"):
            raise ServerRefusal(501, f"Unexpected content for method '{request.method}'")
        if length > (_MAX_BODY if self._world.version_at_least(8, 4) else _MAX_BODY_BEFORE_8_4):
            raise ServerRefusal(501, "for data too large")
        declared, kind = request.headers.get(hdrs.CONTENT_TYPE, ""), _kind_of_body(request)
        if kind == "application/json":
            try:
                return parameters.parse_json(await request.read())
            except parameters.MalformedBody as error:
                raise ServerRefusal(500, str(error)) from error
        if kind in ("", "application/x-www-form-urlencoded"):
            return parameters.parse_form((await request.read()).decode("utf-8", "replace"))
        raise ServerRefusal(506, f"upload 'Content-Type '{declared}' not implemented")

    @staticmethod
    def _refuse_conflicts(match: Match, params: dict[str, Any]) -> None:
        text = "duplicate parameter (already defined in URI) with conflicting values!"
        conflicts = {
            name: text for name, value in match.values.items() if name in params and str(params[name]) != value
        }
        if conflicts:
            raise bad_parameters(conflicts)

    async def _find_node(self, match: Match, raw: dict[str, Any], local_node: Node) -> None:
        """The node that the call is proxied to: refuse an unreachable one, and resolve localhost."""
        if match.endpoint.proxyto != "node" or "node" not in match.values:
            return
        name = match.values["node"]
        if name == "localhost":
            name = match.values["node"] = raw["node"] = local_node.name
        node = self._world.node(name)
        if not node.online:
            seconds, reason = silence_of(node, self._world.clock.now())
            await self._world.clock.sleep(seconds)
            raise ProxyFailure(595, reason)

    @staticmethod
    def _refuse_bad_parameters(match: Match, raw: dict[str, Any], undefined: tuple[str, ...]) -> None:
        errors = match.endpoint.check(raw)
        for name, text in match.endpoint.check(dict.fromkeys(undefined, "")).items():
            if name in undefined and text.startswith(_UNKNOWN_PROPERTY):
                errors[name] = text
        if match.endpoint.parameters.get("schedule", {}).get("format") == "pve-calendar-event":
            errors = calendar_errors(raw.get("schedule")) | errors
        if errors:
            raise bad_parameters(errors)

    def _date(self, response: web.Response, node: Node) -> None:
        """The answering node's own time, which clients may compare with task times."""
        now = _http_date(int(self._world.clock.now() + node.clock_offset))
        response.headers[hdrs.DATE] = now
        if hdrs.EXPIRES in response.headers:
            response.headers[hdrs.EXPIRES] = now

    async def _finish(
        self, request: web.BaseRequest, response: web.StreamResponse, drop: str, node: Node
    ) -> web.StreamResponse:
        """Apply keep-alive rules, and faults after the work is done."""
        if not isinstance(response, web.Response):  # a WebSocket, already finished
            return response
        self._date(response, node)
        if drop == "after":
            return _cut_connection(request)
        if drop == "mid":
            return await _cut_body(request, response)
        if drop in ("json", "html"):
            response = _garbage(drop)
        transport = request.transport
        count = 1
        if transport is not None:
            count = self._served[transport] = self._served.get(transport, 0) + 1
        if response.status >= 400 or count >= _REQUESTS_PER_CONNECTION or not request.keep_alive:
            response.force_close()
        else:
            response.headers[hdrs.CONNECTION] = "Keep-Alive"
        return response


@lru_cache(maxsize=8)
def _http_date(second: int) -> str:
    return formatdate(second, usegmt=True)


def _kind_of_body(request: web.BaseRequest) -> str:
    return request.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()


async def _run(route: Route, call: Call) -> Any:
    try:
        if route.needs_quorum and not call.world.quorate and (failing := await refuse_or_fail(call)):
            return failing
        result = route.handler(call)
        return await result if inspect.isawaitable(result) else result
    except (Refusal, ProxyFailure, ServerRefusal, Unauthorized, ConnectionResetError):
        raise
    except TaskError as error:  # the same text outside of a task
        raise failure(str(error)) from error
    except Exception as error:  # a defect of the simulator must not look like PVE's answer
        _LOG.exception("%s %s failed", call.endpoint.method, call.endpoint.template)
        raise failure("internal error of the simulated cluster") from error


def _garbage(kind: str) -> web.Response:
    if kind == "html":
        return web.Response(
            status=502, text="<html><body><h1>502 Bad Gateway</h1></body></html>", content_type="text/html"
        )
    return web.Response(text='{"data":[{"vmid":1', content_type="application/json")


def _cut_connection(request: web.BaseRequest) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


async def _cut_body(request: web.BaseRequest, response: web.Response) -> web.StreamResponse:
    """Announce the whole body, send half of it and disconnect."""
    body = response.body
    assert isinstance(body, bytes)
    partial = web.StreamResponse(status=response.status, reason=response.reason, headers=response.headers)
    partial.content_length = len(body)
    await partial.prepare(request)
    await partial.write(body[: len(body) // 2])
    return _cut_connection(request)
