"""The native surface: one tool per operation, strict arguments, small schemas."""

from __future__ import annotations

from typing import Any

from mcp.types import CallToolResult, Tool, ToolAnnotations

from quorate.operations.registry import Operation, Risk, operation_named
from quorate.pipeline.caller import Caller, Exchange
from quorate.pipeline.routing import CLUSTER
from quorate.pipeline.run import Pipeline
from quorate.surfaces.instructions import instructions
from quorate.surfaces.surface import answer

PLAN_TOKEN = {"type": "string", "description": "From the dry run of the same call"}


class NativeSurface:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def tools(self, caller: Caller) -> list[Tool]:
        return [self.described(operation, caller) for operation in self._pipeline.visible(caller)]

    def knows(self, name: str) -> bool:
        return operation_named(name) is not None

    def instructions(self) -> str:
        return instructions(self._pipeline.gates(), self._pipeline.visible(), self._pipeline.approver.mode)

    async def call(self, name: str, arguments: dict[str, Any], exchange: Exchange) -> CallToolResult:
        return answer(await self._pipeline.run(name, arguments, exchange))

    def described(self, operation: Operation, caller: Caller) -> Tool:
        """With what the pipeline itself takes from this caller."""
        clusters = [site.name for site in self._pipeline.sites.open_to(caller)]
        tool, approver = describe(operation), self._pipeline.approver
        if approver.takes_tokens and approver.needed(operation.risk):
            tool.input_schema["properties"]["plan_token"] = PLAN_TOKEN
        if len(clusters) > 1 and not operation.about_homelab:
            tool.input_schema["properties"][CLUSTER] = {"type": "string", "enum": clusters}
        return tool


def describe(operation: Operation) -> Tool:
    schema = operation.schema()
    return Tool(
        name=operation.name,
        description=operation.summary,
        input_schema={**schema, "properties": {**schema["properties"]}},
        annotations=hints(operation.risk, idempotent=operation.idempotent),
    )


def hints(risk: Risk, *, idempotent: bool) -> ToolAnnotations:
    return ToolAnnotations(
        read_only_hint=risk in (Risk.READ, Risk.LOOK_INSIDE),
        destructive_hint=risk is Risk.DESTROY,
        idempotent_hint=idempotent,
        open_world_hint=risk is Risk.LOOK_INSIDE,
    )


def as_json(tools: list[Tool]) -> list[dict[str, Any]]:
    """The `tools` array as it goes over the wire."""
    return [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in tools]
