"""Pages from templates. Everything inserted is escaped, and no page runs or loads anything that is not ours."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import ChainableUndefined, Environment, PackageLoader
from starlette.responses import HTMLResponse, Response

from quorate.pipeline.redaction import clean
from quorate.surfaces.web.replies import NO_STORE, refusal
from quorate.units import ago, moment, span

PATH = "/console"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "manifest-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = NO_STORE | {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # with none, a browser sends no origin along with our own forms
    "X-Frame-Options": "DENY",
}
_ASSETS = {
    "chart.js": "text/javascript",
    "console.css": "text/css",
    "console.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "sse.min.js": "text/javascript",
    "uplot.min.js": "text/javascript",
    "uplot.min.css": "text/css",
    "icon.svg": "image/svg+xml",
    "manifest.webmanifest": "application/manifest+json",
}
_FOREVER = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}


def render(template: str, status: int = 200, **context: Any) -> Response:
    text = environment().get_template(template).render(context)
    return HTMLResponse(text, status_code=status, headers=HEADERS)


def asset(name: str) -> Response:
    if name not in _ASSETS:
        return refusal(404, "not_found", "There is no such file")
    return Response(_bytes(name), media_type=_ASSETS[name], headers=_FOREVER)


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("quorate.console"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=ChainableUndefined,  # answers of tools leave out what does not apply
    )
    made.filters |= {"moment": moment, "ago": ago, "span": span, "percent": percent, "clean": clean, "outcome": outcome}
    made.filters |= {"heading": heading, "shown": describe}
    made.globals |= {"asset": _asset_url, "path": PATH}
    return made


def heading(name: str) -> str:
    """The heading of a column, from the key in a result."""
    return {"vmid": "vmid", "id": "ID", "cpu": "CPU", "ram": "RAM"}.get(name) or name.replace("_", " ").capitalize()


def describe(value: object) -> object:
    """A value of a result as people read it."""
    return "" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def outcome(status: str) -> str:
    """The class of a task's exit status: PVE writes OK, WARNINGS with their number, or the error itself."""
    if status in ("OK", "running"):
        return {"OK": "good"}.get(status, status)
    return "warning" if status.startswith("WARNINGS") else "failed"


def percent(share: float) -> int:
    return round(100 * min(max(share, 0.0), 1.0))


def query(path: str, parameters: Mapping[str, Any], **changes: Any) -> str:
    """The address of the same page with other parameters."""
    from urllib.parse import urlencode

    kept = {name: value for name, value in {**parameters, **changes}.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept)}" if kept else path


@cache
def _bytes(name: str) -> bytes:
    return files(__package__).joinpath("static", name).read_bytes()


@cache
def _asset_url(name: str) -> str:
    """The URL of an asset with a digest, so that a browser may cache it until it changes."""
    return f"{PATH}/static/{name}?v={hashlib.sha256(_bytes(name)).hexdigest()[:12]}"
