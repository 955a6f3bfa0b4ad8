"""Views that MCP clients can show next to an answer (MCP Apps): a plan, a chart, the map.

Each is one HTML page without outside parts. The client puts it into a sandbox and passes the answer in; a client
without support for views gets text and pictures as before, and its list of tools is not longer by a byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from mcp.server.apps import APP_MIME_TYPE
from mcp.types import Resource, Tool

from quorate.operations.registry import Operation, find_operation

SCHEME = "ui://quorate/"


@dataclass(frozen=True, slots=True)
class View:
    name: str
    title: str
    about: str
    scripts: tuple[str, ...] = ()

    @property
    def uri(self) -> str:
        return f"{SCHEME}{self.name}.html"


PLAN = View("plan", "Plan", "What a change would do, what would be lost, and how it ended")
CHART = View("chart", "Chart", "Load of a guest, node or storage over time", ("uplot.min.js", "chart.js"))
MAP = View("map", "Map", "The map of the homelab")
VIEWS = {view.uri: view for view in (PLAN, CHART, MAP)}
_BY_TOOL = {"metrics_get": CHART, "network_map": MAP}


def view_of(operation: Operation) -> View | None:
    return PLAN if operation.changes else _BY_TOOL.get(operation.name)


def with_views(tools: list[Tool]) -> list[Tool]:
    """The tools as a client that shows views gets them."""
    return [_with_view(tool) for tool in tools]


def _with_view(tool: Tool) -> Tool:
    operation = find_operation(tool.name)
    view = view_of(operation) if operation else None
    return tool.model_copy(update={"meta": {**(tool.meta or {}), "ui": {"resourceUri": view.uri}}}) if view else tool


def resources() -> list[Resource]:
    return [
        Resource(uri=view.uri, name=view.name, title=view.title, description=view.about, mime_type=APP_MIME_TYPE)
        for view in VIEWS.values()
    ]


@cache
def page(uri: str) -> str | None:
    """The page at this address, None if there is none."""
    view = VIEWS.get(uri)
    if view is None:
        return None
    from quorate.console.templates import environment

    def content(name: str) -> str:
        return files("quorate.console").joinpath("static", name).read_text(encoding="utf-8")

    parts: dict[str, Any] = {
        "view": view,
        "styles": [content(name) for name in ("console.css", *(["uplot.min.css"] if view is CHART else []))],
        "scripts": [content(name) for name in (*view.scripts, "view.js")],
    }
    return environment().get_template("view.html").render(parts)
