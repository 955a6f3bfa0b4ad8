"""Responses in PVE's form: status line, headers, and bodies of every format."""

from __future__ import annotations

import gzip
import html
from typing import Any
from urllib.parse import quote

import msgspec
from aiohttp import hdrs, web

from pve_simulator.http.refusals import Refusal, first_line
from pve_simulator.http.routing import Binary, Payload, Text

SERVER = "pve-api-daemon/3.0"
CONTENT_TYPE = "application/json;charset=UTF-8"

_COMPRESS_FROM = 1024


class BareResponse(web.Response):
    """A response without a Content-Type, as PVE's HTTP server sends its own errors."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.popall(hdrs.CONTENT_TYPE, None)


def success(data: Any, fmt: str, *, gzip_accepted: bool) -> web.Response:
    """HTTP 200 with the data, and the extra fields of a `Payload`."""
    body: dict[str, Any] = {"data": data}
    if isinstance(data, Text):
        headers = {hdrs.SERVER: SERVER, "Content-Disposition": f'attachment; filename="{data.filename}"'}
        return web.Response(body=data.text.encode(), headers={**headers, hdrs.CONTENT_TYPE: "text/plain"})
    if isinstance(data, Binary):
        headers = {hdrs.SERVER: SERVER, "Content-Disposition": f"attachment; filename*=UTF-8''{quote(data.filename)}"}
        return web.Response(body=data.content, headers={**headers, hdrs.CONTENT_TYPE: "application/octet-stream"})
    if isinstance(data, Payload):
        body = {"data": data.data}
        if data.total:  # PVE omits the total of an empty list
            body["total"] = data.total
        if data.changes is not None:
            body["changes"] = data.changes
    if fmt == "html":
        return _page(200, "OK", body)
    if fmt in ("extjs", "htmljs"):
        body["success"] = 1
    if fmt == "htmljs":
        return _form_answer(body)
    return _json(200, "OK", body, gzip_accepted=gzip_accepted)


def render_refusal(refusal: Refusal, fmt: str, *, message_in_body: bool) -> web.Response:
    """A refusal in the given format; extjs and htmljs always answer 200 with the status in the body."""
    body: dict[str, Any] = {"data": None}
    if refusal.errors:
        body["errors"] = refusal.errors
    if fmt in ("extjs", "htmljs"):
        body |= {"success": 0, "status": refusal.status, "message": refusal.message}
        return _form_answer(body) if fmt == "htmljs" else _json(200, "OK", body)
    if fmt == "html":
        return _page(refusal.status, refusal.reason, {"data": None, "message": refusal.message})
    if message_in_body:
        body["message"] = refusal.message
    return _json(refusal.status, refusal.reason, body)


def _form_answer(body: dict[str, Any]) -> web.Response:
    """The answer to a web upload form: the JSON of extjs in an HTML page."""
    headers = {hdrs.SERVER: SERVER, hdrs.CONTENT_TYPE: "text/html;charset=UTF-8"}
    return web.Response(body=html.escape(msgspec.json.encode(body).decode()).encode(), headers=headers)


def _page(status: int, reason: str, body: dict[str, Any]) -> web.Response:
    """The data as an HTML page."""
    shown = html.escape(msgspec.json.format(msgspec.json.encode(body), indent=2).decode())
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n  <head>\n    <meta charset="utf-8">\n'
        f"    <title>Proxmox VE API</title>\n  </head>\n  <body>\n<pre>\n{shown}\n</pre>\n  </body>\n</html>\n"
    )
    headers = {hdrs.SERVER: SERVER, hdrs.CONTENT_TYPE: "text/html;charset=UTF-8"}
    return web.Response(status=status, reason=reason, body=text.encode(), headers=headers)


def web_page(node: str) -> web.Response:
    """The root page; PVE's web interface is not simulated."""
    title = f"{html.escape(node)} - Proxmox Virtual Environment"
    text = f"<!DOCTYPE html>\n<html>\n  <head><title>{title}</title></head>\n</html>\n"
    headers = {hdrs.SERVER: SERVER, hdrs.CONTENT_TYPE: "text/html; charset=utf-8"}
    return web.Response(body=text.encode(), headers=headers)


def bare(status: int, reason: str, text: str = "") -> web.Response:
    """An answer of the HTTP server itself: plain text or nothing."""
    return BareResponse(status=status, reason=first_line(reason), body=text.encode(), headers={hdrs.SERVER: SERVER})


def _json(status: int, reason: str, body: dict[str, Any], *, gzip_accepted: bool = False) -> web.Response:
    headers = {
        hdrs.SERVER: SERVER,
        hdrs.CONTENT_TYPE: CONTENT_TYPE,
        hdrs.CACHE_CONTROL: "max-age=0",
        hdrs.PRAGMA: "no-cache",
        hdrs.EXPIRES: "",  # the server sets the time of the answer
    }
    encoded = msgspec.json.encode(body)
    if gzip_accepted and len(encoded) > _COMPRESS_FROM:
        encoded = gzip.compress(encoded, compresslevel=1)
        headers[hdrs.CONTENT_ENCODING] = "gzip"
    return web.Response(status=status, reason=reason, body=encoded, headers=headers)
