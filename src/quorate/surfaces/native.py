"""The native MCP surface: one tool per operation, strict arguments, small schemas."""

from __future__ import annotations

import base64
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ImageContent, TextContent, Tool, ToolAnnotations

from quorate import __version__
from quorate.operations.registry import Operation, Risk
from quorate.pipeline.record import Caller
from quorate.pipeline.run import Pipeline
from quorate.pve.errors import Problem
from quorate.surfaces import rendering
from quorate.surfaces.instructions import instructions

log = logging.getLogger(__name__)


class NativeServer(MCPServer[Any]):
    """Lists and calls go straight to the pipeline; the SDK's own tool registry stays empty."""

    def __init__(self, pipeline: Pipeline, *, transport: str = "stdio") -> None:
        self._pipeline = pipeline
        self._transport = transport
        super().__init__(
            "quorate",
            title="Quorate for Proxmox VE",
            version=__version__,
            instructions=instructions(pipeline.gate, pipeline.visible()),
            log_level="WARNING",
        )

    async def list_tools(self) -> list[Tool]:
        return [describe(operation) for operation in self._pipeline.visible()]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult:
        try:
            result = await self._pipeline.run(name, arguments, self._caller(context), _reporter(context))
        except Problem as problem:
            raise ToolError(rendering.problem_text(problem)) from None
        except Exception as error:  # noqa: BLE001 (a defect of ours: the log gets the place, the caller no internals)
            log.error("%s failed: %s", name, self._pipeline.trace_of(error))
            raise ToolError(
                f"{name} failed inside Quorate ({type(error).__name__}); this is a defect, not your mistake. "
                "The server's log has the details; whether anything was changed shows in task_list."
            ) from None
        return CallToolResult(
            content=[TextContent(type="text", text=rendering.text(result.data)), *map(_image, result.pictures)],
            structured_content=rendering.structured(result.data),
            is_error=result.failed,
        )

    def _caller(self, context: Context[Any, Any] | None) -> Caller:
        params = context.session.client_params if context is not None else None
        client = f"{params.client_info.name} {params.client_info.version}" if params else "unknown"
        return Caller(client, self._transport)


def _reporter(
    context: Context[Any, Any] | None,
) -> Callable[[float, float | None, str], Awaitable[None]] | None:
    return None if context is None else context.report_progress


def _image(png: bytes) -> ImageContent:
    return ImageContent(type="image", data=base64.b64encode(png).decode(), mime_type="image/png")


def describe(operation: Operation) -> Tool:
    return Tool(
        name=operation.name,
        description=operation.summary,
        input_schema=operation.schema(),
        annotations=ToolAnnotations(
            read_only_hint=not operation.changes,
            destructive_hint=operation.risk is Risk.DESTROY,
            idempotent_hint=operation.idempotent,
            open_world_hint=operation.risk is Risk.LOOK_INSIDE,
        ),
    )


def as_json(tools: list[Tool]) -> list[dict[str, Any]]:
    """The `tools` array as it goes over the wire."""
    return [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in tools]
