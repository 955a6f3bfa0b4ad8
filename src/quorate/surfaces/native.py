"""The native surface: one tool per operation, strict arguments, small schemas."""

from __future__ import annotations

from typing import Any

from mcp.types import CallToolResult, Tool, ToolAnnotations

from quorate.operations.registry import Operation, Risk, operations
from quorate.pipeline.caller import Caller, Exchange
from quorate.pipeline.run import Pipeline
from quorate.surfaces.surface import answer


class NativeSurface:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def tools(self, caller: Caller) -> list[Tool]:
        return [describe(operation) for operation in self._pipeline.visible(caller)]

    def knows(self, name: str) -> bool:
        return name in operations()

    async def call(self, name: str, arguments: dict[str, Any], exchange: Exchange) -> CallToolResult:
        return answer(await self._pipeline.run(name, arguments, exchange))


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
