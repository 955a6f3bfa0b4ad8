"""The MCP server: tools of one or several surfaces, resources and prompts, all run by the same pipeline."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mcp.server import MCPServer
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import (
    INVALID_PARAMS,
    CallToolResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    GetPromptResult,
    InputRequiredResult,
    Prompt,
    PromptReference,
    Resource,
    ResourceTemplate,
    ResourceTemplateReference,
    Tool,
)

from quorate import __version__
from quorate.pipeline.caller import AnswerLater, Caller, Exchange, Scope
from quorate.pipeline.run import Pipeline
from quorate.pve.errors import Problem
from quorate.surfaces import rendering
from quorate.surfaces.asking import as_input_required, asker
from quorate.surfaces.surface import Surface

if TYPE_CHECKING:
    from quorate.surfaces.completions import Completions
    from quorate.surfaces.prompts import Prompts
    from quorate.surfaces.resources import Resources

log = logging.getLogger(__name__)

Identify = Callable[[], tuple[str, Scope]]
"""The subject and scope of the request being served, from its credentials."""


def nobody() -> tuple[str, Scope]:
    """Over stdio there are no credentials: whoever started the server is the caller."""
    return "", Scope()


def _remarks(transport: str) -> list[str]:
    """Instructions are made once, before anybody has come."""
    return ["Your token may allow less: what it does not is not listed."] if transport == "http" else []


class Server(MCPServer[Any]):
    """Lists and calls go straight to the surfaces; the SDK's own registries stay empty.

    The pipeline is for what no surface has: resources, prompts, completions.
    """

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
            instructions="\n\n".join([*(surface.instructions() for surface in surfaces), *_remarks(transport)]),
            log_level="WARNING",
            subscriptions=False,  # what is listed does not change while a server runs
            **sdk,
        )
        self.completion()(self._complete)  # type: ignore[no-untyped-call]

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
            log.error("%s failed: %s", name, self._pipeline.trace_of(error, arguments))
            raise ToolError(
                f"{name} failed inside Quorate ({type(error).__name__}); this is a defect, not your mistake. "
                "The server's log has the details; whether anything was changed shows in task_list."
            ) from None

    # -- resources, prompts, completions: their modules are imported when a client asks, which many never do ---------

    @cached_property
    def _resources(self) -> Resources:
        from quorate.surfaces.resources import Resources

        return Resources(self._pipeline)

    @cached_property
    def _prompts(self) -> Prompts:
        from quorate.surfaces.prompts import Prompts

        return Prompts(self._pipeline)

    @cached_property
    def _completions(self) -> Completions:
        from quorate.surfaces.completions import Completions

        return Completions(self._pipeline)

    async def list_resources(self) -> list[Resource]:
        return self._resources.listed(self._caller(None))

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        return self._resources.templates(self._caller(None))

    async def read_resource(
        self, uri: Any, context: Context[Any, Any] | None = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        from quorate.surfaces.resources import TEXT, not_found_code

        code = not_found_code(None if context is None else context.protocol_version)
        with self._protocol_errors(str(uri), code, {"uri": str(uri)}):
            text = await self._resources.read(str(uri), Exchange(self._caller(context)))
        return [ReadResourceContents(content=text, mime_type=TEXT)]

    async def list_prompts(self) -> list[Prompt]:
        return self._prompts.listed(self._caller(None))

    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None, context: Context[Any, Any] | None = None
    ) -> GetPromptResult | InputRequiredResult:
        with self._protocol_errors(name):
            return await self._prompts.get(name, arguments or {}, Exchange(self._caller(context)))

    async def _complete(
        self,
        _: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion:
        """An argument means the same in every prompt and address, so it does not matter where it stands."""
        chosen = (context.arguments if context else None) or {}
        exchange = Exchange(self._caller(None))
        return await self._completions.complete(argument.name, argument.value, chosen, exchange)

    @contextlib.contextmanager
    def _protocol_errors(
        self, what: str, not_found: int = INVALID_PARAMS, data: dict[str, Any] | None = None
    ) -> Iterator[None]:
        from quorate.surfaces.protocol_errors import as_error, defect

        try:
            yield
        except Problem as problem:
            raise as_error(problem, not_found=not_found, data=data) from None
        except Exception as error:  # noqa: BLE001 (a defect of ours, as above)
            log.error("%s failed: %s", what, self._pipeline.trace_of(error, {}))
            raise defect(error) from None

    def _caller(self, context: Context[Any, Any] | None) -> Caller:
        params = context.session.client_params if context is not None else None
        client = f"{params.client_info.name} {params.client_info.version}" if params else "unknown"
        subject, scope = self._identify()
        return Caller(client, self._transport, subject, scope)
