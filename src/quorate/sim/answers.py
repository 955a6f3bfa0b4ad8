"""Responses in PVE's form: status line, headers, and bodies of /api2/json and /api2/extjs."""

from __future__ import annotations

import gzip
from typing import Any

import msgspec
from aiohttp import hdrs, web

from quorate.sim.refusals import Refusal, first_line
from quorate.sim.routing import Answer

SERVER = "pve-api-daemon/3.0"
CONTENT_TYPE = "application/json;charset=UTF-8"

_COMPRESS_FROM = 1024


class BareResponse(web.Response):
    """A response without a Content-Type, as PVE's HTTP server sends its own errors."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.popall(hdrs.CONTENT_TYPE, None)


def success(data: Any, fmt: str, *, gzip_accepted: bool) -> web.Response:
    """HTTP 200 with the data, and what an `Answer` has beside it."""
    body: dict[str, Any] = {"data": data}
    if isinstance(data, Answer):
        body = {"data": data.data}
        if data.total:  # PVE leaves the total of nothing away
            body["total"] = data.total
        if data.changes is not None:
            body["changes"] = data.changes
    if fmt == "extjs":
        body["success"] = 1
    return _json(200, "OK", body, gzip_accepted=gzip_accepted)


def refused(refusal: Refusal, fmt: str, *, message_in_body: bool) -> web.Response:
    """The refusal as the format shows it; extjs always says 200 and puts the status inside."""
    body: dict[str, Any] = {"data": None}
    if refusal.errors:
        body["errors"] = refusal.errors
    if fmt == "extjs":
        body |= {"success": 0, "status": refusal.status, "message": refusal.message}
        return _json(200, "OK", body)
    if message_in_body:
        body["message"] = refusal.message
    return _json(refusal.status, refusal.reason, body)


def bare(status: int, reason: str, text: str = "") -> web.Response:
    """An answer of the HTTP server itself: plain text or nothing."""
    return BareResponse(status=status, reason=first_line(reason), body=text.encode(), headers={hdrs.SERVER: SERVER})


def _json(status: int, reason: str, body: dict[str, Any], *, gzip_accepted: bool = False) -> web.Response:
    headers = {
        hdrs.SERVER: SERVER,
        hdrs.CONTENT_TYPE: CONTENT_TYPE,
        hdrs.CACHE_CONTROL: "max-age=0",
        hdrs.PRAGMA: "no-cache",
        hdrs.EXPIRES: "",  # the front fills in the time of the answer
    }
    encoded = msgspec.json.encode(body)
    if gzip_accepted and len(encoded) > _COMPRESS_FROM:
        encoded = gzip.compress(encoded, compresslevel=1)
        headers[hdrs.CONTENT_ENCODING] = "gzip"
    return web.Response(status=status, reason=reason, body=encoded, headers=headers)
