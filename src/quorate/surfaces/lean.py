"""The lean surface: four small tools that reach every operation, for clients that drown in tools."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import msgspec
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as ListedTool
from msgspec import Meta

from quorate.documents import Unreadable, read_json
from quorate.hints import Hint, Naming, ToolHint
from quorate.operations.arguments import TakenElsewhere, WrongArguments, decode
from quorate.operations.registry import Operation, Risk, Table, find_operation, operations, schema_of
from quorate.pipeline.caller import ALL_BY_DEFAULT, Caller, Exchange
from quorate.pipeline.pipeline import Pipeline, Result
from quorate.problems import BadArgument, Problem
from quorate.suggestions import did_you_mean, similar_tools
from quorate.surfaces import rendering
from quorate.surfaces.arguments import arguments_of, first_sentence, needed_arguments
from quorate.surfaces.instructions import instructions
from quorate.surfaces.native import NativeSurface, allowed_risk, answer, hints, missing_access, name_tool_beyond_access
from quorate.surfaces.tool_search import Finder

SHOWN = 5
OPERATION_NAMES = ("tool", "name", "operation_name", "op", "command", "method", "action")
"""What callers write instead of `operation`."""


class _Finding(msgspec.Struct):
    words: Annotated[str, Meta(description="Such as 'give the db VM more memory'")] | None = None
    operation: Annotated[str, Meta(description="Describe this one")] | None = None


class _Running(msgspec.Struct):
    operation: Annotated[str, Meta(description="As pve_find names it")]
    arguments: Annotated[dict[str, Any], Meta(description="Its arguments by name")] = {}


@dataclass(frozen=True)
class Tool:
    name: str
    about: str
    risks: tuple[Risk, ...]
    """The risks of the calls that it is for, the highest last."""
    arguments: type[msgspec.Struct] = _Running
    inapplicable: ClassVar[Mapping[str, str]] = {}

    @property
    def risk(self) -> Risk:
        return self.risks[-1]

    def schema(self) -> dict[str, Any]:
        return schema_of(self.arguments)


FIND = Tool(
    "pve_find",
    "Find operations by plain words, best first, or describe one with all its arguments; without either, name them "
    "all. Run an operation with the tool listed next to it.",
    (Risk.READ,),
    _Finding,
)
READ = Tool("pve_read", "Run an operation that reads.", (Risk.READ, Risk.LOOK_INSIDE))
CHANGE = Tool(
    "pve_change",
    "Run an operation that changes something, or with dry_run in its arguments only show the plan.",
    (Risk.CHANGE,),
)
DESTROY = Tool(
    "pve_destroy",
    "Run an operation that destroys data, cuts power, grants privileges or cannot be undone, or with dry_run in its "
    "arguments only show the plan.",
    (Risk.DESTROY,),
)
TOOLS = {tool.name: tool for tool in (FIND, READ, CHANGE, DESTROY)}
RUNNERS = (READ, CHANGE, DESTROY)
"""In order of risk. A tool also runs calls of lower risk: its annotations may overstate, but never understate."""


class LeanSurface:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._native = NativeSurface(pipeline)

    @cached_property
    def _finder(self) -> Finder:
        return Finder(operations().values())

    def tools(self, caller: Caller) -> list[ListedTool]:
        return [describe_tool(tool) for tool in self.usable(caller)]

    def usable(self, caller: Caller) -> list[Tool]:
        """The tools with which this caller can do something."""
        caller = caller.with_exposure(ALL_BY_DEFAULT)
        visible = self._pipeline.visible(caller)
        return [FIND, *(tool for tool in RUNNERS if any(self._runs(tool, operation, caller) for operation in visible))]

    def knows(self, name: str) -> bool:
        return name in TOOLS

    def instructions(self) -> str:
        reach = (
            "A few tools reach everything: pve_find finds operations by plain words and says which tool runs them. "
            "Operations are named here as if they were tools: run guest_list by pve_read operation=guest_list."
        )
        anyone = Caller(exposure=ALL_BY_DEFAULT)
        gates, visible = self._pipeline.gates(anyone), self._pipeline.visible(anyone)
        return reach + "\n" + instructions(gates, visible, self._pipeline.approver.mode)

    async def call(self, name: str, arguments: dict[str, Any], exchange: Exchange) -> CallToolResult:
        exchange = exchange.with_exposure(ALL_BY_DEFAULT)
        tool = TOOLS.get(name)
        if tool is None:
            raise BadArgument(f"There is no tool {name!r}", next_step=self._advise_instead(name, exchange.caller))
        decoded = _decode_arguments(tool, arguments)
        if tool is FIND:
            return answer(Result(self._find(exchange.caller, decoded["words"], decoded["operation"])))
        return await self._run(tool, decoded["operation"], decoded["arguments"], exchange)

    # -- running ---------------------------------------------------------------------------------------------------

    async def _run(self, tool: Tool, name: str, arguments: dict[str, Any], exchange: Exchange) -> CallToolResult:
        operation = self._operation(name)
        risk = self._risk_of(operation, arguments)
        needed = tool if risk is None else _runner_for(risk)
        if RUNNERS.index(needed) > RUNNERS.index(tool):
            self._pipeline.sites.refresh()
            gates = self._pipeline.gates(exchange.caller, operation)
            objections = [gate.objection(operation, exchange.caller, risk) for gate in gates]
            if objections and objections[0] is not None and None not in objections:
                raise objections[0]
            raise BadArgument(
                f"{tool.name} does not run this call of {name}", next_step=f"Make the same call with {needed.name}"
            )
        try:
            return answer(await self._pipeline.run(name, arguments, exchange), self.naming(exchange.caller))
        except WrongArguments as problem:
            return self._wrong_arguments(operation, problem, exchange.caller)

    def _advise_instead(self, name: str, caller: Caller) -> str:
        """What to call instead of a tool that does not exist, which may be an operation."""
        hint = ToolHint(name)
        if call := self.naming(caller)(hint):
            return f"Call {call}"
        if level := missing_access(self._pipeline, hint, caller):
            return f"{name} is an operation that needs access level {level.value}"
        return f"Available: {', '.join(tool.name for tool in self.usable(caller))}"

    def naming(self, caller: Caller) -> Naming:
        caller = caller.with_exposure(ALL_BY_DEFAULT)

        def name(hint: Hint) -> str | None:
            if not isinstance(hint, ToolHint):
                return str(hint)
            risk = allowed_risk(self._pipeline, hint, caller)
            return None if risk is None else _call(_runner_for(risk), hint)

        return name

    def _risk_of(self, operation: Operation, arguments: dict[str, Any]) -> Risk | None:
        """None where the arguments are wrong: the pipeline finds that as well, and reports it without secrets."""
        try:
            return self._pipeline.risk_of(operation, arguments)
        except WrongArguments:
            return None

    def _wrong_arguments(self, operation: Operation, problem: Problem, caller: Caller) -> CallToolResult:
        """What is wrong with the arguments, and which arguments there are."""
        if isinstance(problem, TakenElsewhere):
            name_tool_beyond_access(self._pipeline, problem, caller)
        arguments = rendering.text(dict(self._arguments(operation, caller)))
        text = f"{rendering.problem_text(problem, self.naming(caller))}\n{operation.name} takes:\n{arguments}"
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)

    def _operation(self, name: str) -> Operation:
        """Find an operation, even one that is switched off: the pipeline refuses it with the reason."""
        if operation := find_operation(name):
            return operation
        plain_words = " " in name.strip()
        near = (
            [operation.name for operation in self._finder.find(name)[:3]]
            if plain_words
            else similar_tools(name, operations())
        )
        hint = did_you_mean(near) if near else f"{FIND.name} finds operations by plain words"
        raise BadArgument(f"There is no operation {name!r}", next_step=hint)

    # -- finding ---------------------------------------------------------------------------------------------------

    def _find(self, caller: Caller, words: str | None, name: str | None) -> Table | dict[str, Any]:
        if name is not None:
            return self._describe(self._operation(name), caller)
        visible = self._pipeline.visible(caller)
        if words is None:
            return _by_toolset(visible)
        hits = self._finder.find(words)
        shown = [hit for hit in hits if hit in visible][:SHOWN]
        rows = [
            [operation.name, self._runners(operation, caller), needed_arguments(operation), first_sentence(operation)]
            for operation in shown
        ]
        table = Table(("operation", "run_with", "needs", "summary"), rows, total=len(rows))
        if not shown:
            table.facts["next"] = f"Try other words, or {FIND.name} without any for the names of all operations"
        if hits and hits[0] not in visible:
            table.facts["not_available"] = self._objection(hits[0], caller)
        return table

    def _describe(self, operation: Operation, caller: Caller) -> dict[str, Any]:
        objection = self._objection(operation, caller)
        return {
            "operation": operation.name,
            "run_with": self._runners(operation, caller),
            "summary": operation.summary,
            **({"not_available": objection} if objection else {}),
            "arguments": self._arguments(operation, caller),
        }

    def _arguments(self, operation: Operation, caller: Caller) -> dict[str, str]:
        return arguments_of(self._native.arguments(operation, caller))

    def _objection(self, operation: Operation, caller: Caller) -> str:
        """Why no cluster lets the caller do it; empty if one does."""
        objections = [gate.objection(operation, caller) for gate in self._pipeline.gates(caller, operation)]
        return "" if None in objections else str(objections[0]) if objections else ""

    def _runners(self, operation: Operation, caller: Caller) -> str:
        """One tool for most operations; several where it depends on the arguments."""
        return " or ".join(tool.name for tool in RUNNERS if self._runs(tool, operation, caller))

    def _runs(self, tool: Tool, operation: Operation, caller: Caller) -> bool:
        """Whether there are calls of the operation that the tool is for, and that a cluster allows."""
        gates = self._pipeline.gates(caller, operation)
        possible = [risk for risk in tool.risks if risk in _possible(operation)]
        return any(gate.objection(operation, caller, risk) is None for gate in gates for risk in possible)


def _decode_arguments(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    decoded = dict(arguments)
    if tool is FIND and "query" in decoded and "words" not in decoded:  # what most search tools call it
        decoded["words"] = decoded.pop("query")
    if isinstance(text := decoded.get("arguments"), str):  # how some clients send an object inside an object
        with contextlib.suppress(Unreadable):
            decoded["arguments"] = read_json(text)
    try:
        return decode(tool, decoded)
    except WrongArguments as problem:
        if tool is FIND:
            raise
        if renamed := next((name for name in OPERATION_NAMES if name in decoded and "operation" not in decoded), None):
            problem.next_step = f"Give the operation as operation={decoded[renamed]}"
        elif set(decoded) - {"operation", "arguments"}:
            problem.next_step = 'Put the arguments of the operation into arguments, such as {"guest": "web01"}'
        raise


def _runner_for(risk: Risk) -> Tool:
    return next(tool for tool in RUNNERS if risk in tool.risks)


def _call(tool: Tool, hint: ToolHint) -> str:
    arguments = f" arguments={msgspec.json.encode(hint.arguments).decode()}" if hint.arguments else ""
    return f"{tool.name} operation={hint.tool}{arguments}"


def describe_tool(tool: Tool) -> ListedTool:
    return ListedTool(
        name=tool.name,
        description=tool.about,
        input_schema=tool.schema(),
        annotations=hints(tool.risk, idempotent=tool in (FIND, READ)),
    )


def _possible(operation: Operation) -> set[Risk]:
    """The risks that single calls of the operation can have."""
    risks = list(Risk)
    return set(risks[risks.index(operation.least_risk) : risks.index(operation.risk) + 1])


def _by_toolset(visible: Iterable[Operation]) -> dict[str, Any]:
    names: dict[str, list[str]] = {}
    for operation in visible:
        names.setdefault(operation.toolset, []).append(operation.name)
    return {toolset: ", ".join(listed) for toolset, listed in sorted(names.items())}
