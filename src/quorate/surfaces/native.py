"""A surface: one way in which the operations are shown to MCP clients."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

import msgspec
from mcp.types import CallToolResult, ImageContent, TextContent, Tool, ToolAnnotations

from quorate.config import Access
from quorate.hints import Hint, Naming, ToolHint
from quorate.operations.arguments import LONGEST_NAME, TakenElsewhere, WrongArguments, refuse_long
from quorate.operations.registry import Operation, Risk, find_operation, operations
from quorate.pipeline.caller import Caller, Exchange, Exposure
from quorate.pipeline.pipeline import Pipeline, Result
from quorate.pipeline.sites import CLUSTER
from quorate.problems import BadArgument
from quorate.surfaces import rendering
from quorate.surfaces.instructions import instructions


class Surface(Protocol):
    def tools(self, caller: Caller) -> list[Tool]:
        """What this caller sees, in a stable order."""
        ...

    def knows(self, name: str) -> bool:
        """Whether a tool of this name belongs here, seen or not."""
        ...

    def instructions(self) -> str:
        """What an assistant reads once, at the start."""
        ...

    def naming(self, caller: Caller) -> Naming:
        """How this caller makes a call that advice refers to."""
        ...

    async def call(self, name: str, arguments: dict[str, Any], exchange: Exchange) -> CallToolResult:
        """Raises Problem when there is no answer to give."""
        ...


def answer(result: Result, name: Naming = str) -> CallToolResult:
    """The same facts as text and as structure, and the pictures."""
    text, structure = rendering.text_and_structure(result.data, name)
    return CallToolResult(
        content=[TextContent(type="text", text=text), *map(image, result.pictures)],
        structured_content=structure,
        is_error=result.failed,
    )


def text_of(shown: CallToolResult) -> str:
    return "\n".join(block.text for block in shown.content if isinstance(block, TextContent))


def pictures_of(shown: CallToolResult) -> list[bytes]:
    return [base64.b64decode(block.data) for block in shown.content if isinstance(block, ImageContent)]


def image(png: bytes) -> ImageContent:
    return ImageContent(type="image", data=base64.b64encode(png).decode(), mime_type="image/png")


MAX_TOOLS, MAX_BYTES = 110, 96_000
"""The budget of one tool list: beyond it, clients drop tools, choose the wrong ones or run out of context."""
PLAN_TOKEN = {"type": "string", "description": "From the dry run of the same call"}

_EXPOSURE = Exposure()


class NativeSurface:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def tools(self, caller: Caller) -> list[Tool]:
        caller = caller.with_exposure(_EXPOSURE)
        return [self.describe_for(operation, caller) for operation in self._pipeline.visible(caller)]

    def knows(self, name: str) -> bool:
        return find_operation(name) is not None

    def instructions(self) -> str:
        return instructions(self._pipeline.gates(), self._pipeline.visible(), self._pipeline.approver.mode)

    async def call(self, name: str, arguments: dict[str, Any], exchange: Exchange) -> CallToolResult:
        exchange = exchange.with_exposure(_EXPOSURE)
        if not self.knows(name):
            self._refuse_unknown(name, exchange.caller)
        try:
            return answer(await self._pipeline.run(name, arguments, exchange), self.naming(exchange.caller))
        except TakenElsewhere as problem:
            name_tool_beyond_access(self._pipeline, problem, exchange.caller)
            raise

    def _refuse_unknown(self, name: str, caller: Caller) -> NoReturn:
        from quorate.surfaces.tool_search import find_in_other_servers, suggest_instead

        refuse_long("The name of the tool", name, LONGEST_NAME)
        _, natives = find_in_other_servers(name)
        if natives:
            hint = f"Here it is {natives}"
        else:
            hint = self._name_switched_off(name, caller) or suggest_instead(name, self._pipeline.visible(caller))
        raise BadArgument(f"There is no tool {name!r}", next_step=hint or "List the tools")

    def _name_switched_off(self, name: str, caller: Caller) -> str:
        """The tool that is meant and not listed, with how to switch it on; empty if a listed one may be meant."""
        from quorate.surfaces.tool_search import find_by_name

        visible = self._pipeline.visible(caller)
        hidden = [operation for operation in operations().values() if operation not in visible]
        if find_by_name(name, visible):
            return ""
        for operation in find_by_name(name, hidden):
            for gate in self._pipeline.gates(caller, operation):
                if refused := gate.objection(operation, caller):
                    return str(refused)
        return ""

    def naming(self, caller: Caller) -> Naming:
        caller = caller.with_exposure(_EXPOSURE)

        def name(hint: Hint) -> str | None:
            hidden = isinstance(hint, ToolHint) and allowed_risk(self._pipeline, hint, caller) is None
            return None if hidden else str(hint)

        return name

    def describe_for(self, operation: Operation, caller: Caller) -> Tool:
        tool = describe(operation)
        tool.input_schema["properties"] |= self._pipeline_arguments(operation, caller)
        return tool

    def arguments(self, operation: Operation, caller: Caller) -> dict[str, Any]:
        """The whole schema, with bounds and defaults."""
        schema = operation.schema()
        return {**schema, "properties": {**schema["properties"], **self._pipeline_arguments(operation, caller)}}

    def _pipeline_arguments(self, operation: Operation, caller: Caller) -> dict[str, Any]:
        """What the pipeline itself takes from this caller."""
        clusters = [site.name for site in self._pipeline.sites.open_to(caller)]
        # The arguments may raise the risk of any change.
        token = {"plan_token": PLAN_TOKEN} if self._pipeline.approver.takes_tokens and operation.changes else {}
        several = len(clusters) > 1 and not operation.about_homelab
        return {**token, **({CLUSTER: {"type": "string", "enum": clusters}} if several else {})}


def allowed_risk(pipeline: Pipeline, hint: ToolHint, caller: Caller) -> Risk | None:
    """The risk of the call in a hint; None if no cluster lets this caller make it."""
    operation = find_operation(hint.tool)
    if operation is None:
        return None
    risk = _risk_of(pipeline, operation, hint)
    gates = pipeline.gates(caller, operation)
    return risk if any(gate.objection(operation, caller, risk) is None for gate in gates) else None


def missing_access(pipeline: Pipeline, hint: ToolHint, caller: Caller) -> Access | None:
    """The access level that is all the call in a hint lacks; None for a call that anything else forbids."""
    operation = find_operation(hint.tool)
    if operation is None or allowed_risk(pipeline, hint, caller) is not None:
        return None
    risk = _risk_of(pipeline, operation, hint)
    levels = (gate.missing_access(operation, caller, risk) for gate in pipeline.gates(caller, operation))
    return next((level for level in levels if level), None)


def name_tool_beyond_access(pipeline: Pipeline, problem: TakenElsewhere, caller: Caller) -> None:
    """Name the tool that takes the value, if the caller only lacks the access level for it."""
    for hint in problem.advice.tools if problem.advice else ():
        if level := missing_access(pipeline, hint, caller):
            problem.next_step = f"{hint.tool} does that, which needs access level {level.value}"


def _risk_of(pipeline: Pipeline, operation: Operation, hint: ToolHint) -> Risk:
    try:
        return pipeline.risk_of(operation, hint.arguments)
    except WrongArguments:  # a hint may leave arguments to the caller
        return operation.least_risk


def describe(operation: Operation) -> Tool:
    schema = operation.schema()
    return Tool(
        name=operation.name,
        description=operation.summary,
        input_schema={
            **schema,
            "properties": {name: shorten_schema(name, part) for name, part in schema["properties"].items()},
        },
        annotations=hints(operation.risk, idempotent=operation.idempotent),
    )


_LISTED = {"dry_run": {"type": "boolean"}, "wait": {"type": "number"}, "safely": {"type": "boolean"}}
"""Arguments of every change; the instructions explain them once."""


def shorten_schema(name: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """One argument as a client pays for it with every conversation: without bounds that a refusal names, without
    defaults that go without saying, and with a number that may also be a text as a text."""
    if name in _LISTED:
        return dict(_LISTED[name])
    slim = {key: value for key, value in part.items() if key not in _BOUNDS and not _is_obvious(name, key, value)}
    if "items" in slim:
        slim["items"] = shorten_schema("", slim["items"])
    kinds = [shorten_schema("", alternative) for alternative in slim.pop("anyOf", ())]
    if {"type": "string"} in kinds:
        kinds = [kind for kind in kinds if kind != {"type": "integer"}]
    return slim | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {})


def _is_obvious(name: str, key: str, value: object) -> bool:
    """Whether a default needs no mention: an empty one, or the page length, which every page shows."""
    return key == "default" and (not value or name == "limit")


_BOUNDS = frozenset({"minimum", "exclusiveMinimum", "maximum"})


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


def budget_warning(tools: list[Tool]) -> str | None:
    """The warning at start if the list is longer than clients handle well."""
    size = len(msgspec.json.encode(as_json(tools)))
    if len(tools) <= MAX_TOOLS and size <= MAX_BYTES:
        return None
    return (
        f"these toolsets list {len(tools)} tools in {size / 1000:.0f} kB; most clients handle at most {MAX_TOOLS} "
        f"tools and {MAX_BYTES / 1000:.0f} kB well. Choose fewer --toolsets, or start with "
        "--surface lean, whose few tools reach everything."
    )
