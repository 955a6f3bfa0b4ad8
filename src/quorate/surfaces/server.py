"""The MCP server: tools of one or several surfaces, all run by the same pipeline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, InputRequiredResult, Tool

from quorate import __version__
from quorate.pipeline.caller import AnswerLater, Caller, Exchange, Scope
from quorate.pipeline.run import Pipeline
from quorate.pve.errors import Problem
from quorate.surfaces import rendering
from quorate.surfaces.asking import as_input_required, asker
from quorate.surfaces.surface import Surface

log = logging.getLogger(__name__)

Identify = Callable[[], tuple[str, Scope]]
"""The subject and scope of the request being served, from its credentials."""


def nobody() -> tuple[str, Scope]:
    """Over stdio there are no credentials: whoever started the server is the caller."""
    return "", Scope()


class Server(MCPServer[Any]):
    """Lists and calls go straight to the surfaces; the SDK's own tool registry stays empty."""

    def __init__(
        self,
        pipeline: Pipeline,
        surfaces: Sequence[Surface],
        *,
        transport: str = "stdio",
        identify: Identify = nobody,
        **sdk: Any,
    ) -> None:
        self._pipeline = pipeline
        self._surfaces = surfaces
        self._transport = transport
        self._identify = identify
        super().__init__(
            "quorate",
            title="Quorate for Proxmox VE",
            version=__version__,
            instructions="\n\n".join(surface.instructions() for surface in surfaces),
            log_level="WARNING",
            **sdk,
        )

    def knows(self, name: str) -> bool:
        return any(surface.knows(name) for surface in self._surfaces)

    async def list_tools(self) -> list[Tool]:
        caller = self._caller(None)
        return [tool for surface in self._surfaces for tool in surface.tools(caller)]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        surface = next((one for one in self._surfaces if one.knows(name)), self._surfaces[0])
        report = None if context is None else context.report_progress
        try:
            return await surface.call(name, arguments, Exchange(self._caller(context), report, asker(context)))
        except AnswerLater as later:
            return as_input_required(later)
        except Problem as problem:
            raise ToolError(rendering.problem_text(problem)) from None
        except Exception as error:  # noqa: BLE001 (a defect of ours: the log gets the place, the caller no internals)
            log.error("%s failed: %s", name, self._pipeline.trace_of(error))
            raise ToolError(
                f"{name} failed inside Quorate ({type(error).__name__}); this is a defect, not your mistake. "
                "The server's log has the details; whether anything was changed shows in task_list."
            ) from None

    def _caller(self, context: Context[Any, Any] | None) -> Caller:
        params = context.session.client_params if context is not None else None
        client = f"{params.client_info.name} {params.client_info.version}" if params else "unknown"
        subject, scope = self._identify()
        return Caller(client, self._transport, subject, scope)
