"""The MCP server: tools of one or several surfaces, resources and prompts, all run by the same pipeline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from mcp.server import MCPServer, ServerRequestContext
from mcp.server.apps import APP_MIME_TYPE, Apps, client_supports_apps
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    GetPromptResult,
    InputRequiredResult,
    JSONRPCResponse,
    ListToolsResult,
    Prompt,
    PromptReference,
    Resource,
    ResourceTemplate,
    ResourceTemplateReference,
    Tool,
)
from pydantic import ValidationError

from quorate import __version__
from quorate.documents import Unreadable, read_json
from quorate.hints import Advice, Naming, tools
from quorate.log import CallRecord, current_call, record_call
from quorate.operations.arguments import LONGEST_NAME, LONGEST_TEXT, refuse_oversized
from quorate.pipeline.caller import (
    ALL_BY_DEFAULT,
    AnswerLater,
    Ask,
    Caller,
    Exchange,
    Question,
    Reply,
    ReplyKind,
    Scope,
)
from quorate.pipeline.pipeline import Pipeline
from quorate.pipeline.redaction import clean_text
from quorate.problems import BadArgument, NotFound, Problem, Refused
from quorate.pve.connection import Clock
from quorate.surfaces import rendering
from quorate.surfaces.native import Surface

if TYPE_CHECKING:
    from quorate.surfaces.handshake import Opening
    from quorate.surfaces.prompts import Prompts
    from quorate.surfaces.resources import Completions, Resources

ANSWER_WITH_NEXT_CALL = "2026-07-28"
"""From this version on, a question is the result of the call, which the client then repeats."""
LONGEST_WAIT = 300.0
_KINDS = {"accept": ReplyKind.TYPED, "decline": ReplyKind.DECLINED, "cancel": ReplyKind.DISMISSED}

log = logging.getLogger(__name__)

Identify = Callable[[], tuple[str, Scope]]
"""The subject and scope of the request being served, from its credentials."""


def no_credentials() -> tuple[str, Scope]:
    """Over stdio there are no credentials: the caller is the user who started the server."""
    return "", Scope()


def _remarks(transport: str) -> list[str]:
    """Instructions are made once, before any caller is known."""
    return ["Your token may allow less; tools beyond its scope are not listed."] if transport == "http" else []


class CallObserver(Protocol):
    """Is notified of each call, such as metrics."""

    def start_call(self) -> None: ...

    def end_call(self, call: CallRecord) -> None: ...


class CallLog:
    """Middleware of the SDK that writes a line of the log for each tool call, as its result shows it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.observers: list[CallObserver] = []

    async def __call__(self, ctx: ServerRequestContext[Any], call_next: Any) -> Any:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        for observer in self.observers:
            observer.start_call()
        call = CallRecord(str((ctx.params or {}).get("name")))
        try:
            with record_call(call, self._clock.monotonic):
                try:
                    result = await call_next(ctx)
                except Exception:
                    call.outcome = "refused"
                    raise
                call.outcome = _outcome(result)
                return result
        finally:
            for observer in self.observers:
                observer.end_call(call)


def _outcome(result: Any) -> str:
    """The outcome, from the wire form of the result."""
    if isinstance(result, dict) and result.get("resultType") == "input_required":
        return "asked"
    return "error" if isinstance(result, dict) and result.get("isError") else "ok"


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
        identify: Identify = no_credentials,
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
            extensions=[Apps()],  # views for clients that show them; their pages are read as resources
            **sdk,
        )
        self.calls = CallLog(pipeline.clock)
        self.middleware.extend((self.calls, refuse_malformed_answers))
        self.completion()(self._complete)  # type: ignore[no-untyped-call]

    async def run_stdio_async(self) -> None:
        from quorate.surfaces.handshake import Opening, standard_streams

        async with standard_streams() as (lines, writer):
            await self.converse(Opening(lines, writer))

    async def converse(self, opening: Opening, *, may_record: Callable[[], bool] = lambda: True) -> None:
        """Take over a conversation on standard input and output.

        `may_record`: whether the settings are still those for which its cache was opened.
        """
        from quorate.surfaces.stdio import conversation

        read, write = conversation(opening, may_record)
        await self._lowlevel_server.run(read, write, self._lowlevel_server.create_initialization_options())

    def knows(self, name: str) -> bool:
        return any(surface.knows(name) for surface in self._surfaces)

    async def _handle_list_tools(self, ctx: Any, params: Any) -> ListToolsResult:
        listed = await super()._handle_list_tools(ctx, params)
        if client_supports_apps(ctx):
            from quorate.surfaces.views import with_views

            listed.tools = with_views(listed.tools)
        return listed

    async def list_tools(self) -> list[Tool]:
        caller = self._caller(None)
        return [tool for surface in self._surfaces for tool in surface.tools(caller)]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        report = None if context is None else context.report_progress
        surface = next((surface for surface in self._surfaces if surface.knows(name)), self._surfaces[0])
        caller = self._caller(context)
        call = current_call() or CallRecord(name)
        call.describe_caller(caller.subject, caller.client, caller.transport)
        try:
            refuse_oversized(name, arguments)
            return await surface.call(name, arguments, Exchange(caller, report, asker(context)))
        except AnswerLater as later:
            return input_required_result(later)
        except Problem as problem:
            # Cleaned here, too: a surface refuses some calls before the pipeline sees them.
            call.fail(problem.code, self._pipeline.sanitize(problem.what, arguments))
            raise ToolError(clean_text(rendering.problem_text(problem, surface.naming(caller)))) from None
        except Exception as error:  # noqa: BLE001 (a defect: details go to the log, not to the caller)
            log.error("%s failed: %s", name[:LONGEST_NAME], self._pipeline.trace_of(error, arguments))
            call.fail("defect", type(error).__name__)
            defect = _defect(name, error, Advice("Check whether anything was changed", tools.task_list))
            raise ToolError(clean_text(defect.render(surface.naming(caller)))) from None

    # -- resources, prompts, completions: their modules are imported when a client asks, which many never do ---------

    @cached_property
    def _resources(self) -> Resources:
        from quorate.surfaces.resources import Resources

        return Resources(self._pipeline, self._naming)

    @cached_property
    def _prompts(self) -> Prompts:
        from quorate.surfaces.prompts import Prompts

        return Prompts(self._pipeline, self._naming)

    @cached_property
    def _completions(self) -> Completions:
        from quorate.surfaces.resources import Completions

        return Completions(self._pipeline)

    async def list_resources(self) -> list[Resource]:
        return self._resources.list_resources(self._resource_caller(None))

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        return self._resources.templates(self._resource_caller(None))

    async def read_resource(
        self, uri: Any, context: Context[Any, Any] | None = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        from quorate.surfaces.resources import TEXT, not_found_code

        if str(uri).startswith("ui://"):
            from quorate.surfaces.views import page

            if (view := page(str(uri))) is not None:
                return [ReadResourceContents(content=view, mime_type=APP_MIME_TYPE)]
        code = not_found_code(None if context is None else context.protocol_version)
        with self._protocol_errors(str(uri)[:LONGEST_TEXT], code, {"uri": str(uri)[:LONGEST_TEXT]}):
            refuse_oversized("resources/read", {"uri": str(uri)})
            text = await self._resources.read(str(uri), Exchange(self._resource_caller(context)))
        return [ReadResourceContents(content=text, mime_type=TEXT)]

    async def list_prompts(self) -> list[Prompt]:
        return self._prompts.list_prompts(self._resource_caller(None))

    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None, context: Context[Any, Any] | None = None
    ) -> GetPromptResult | InputRequiredResult:
        with self._protocol_errors(name[:LONGEST_NAME]):
            refuse_oversized(name, arguments or {})
            return await self._prompts.get(name, arguments or {}, Exchange(self._resource_caller(context)))

    async def _complete(
        self,
        _: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion:
        """An argument means the same in every prompt and address, so the reference does not matter."""
        chosen = (context.arguments if context else None) or {}
        with self._protocol_errors("completion/complete"):
            refuse_oversized("completion/complete", {**chosen, "argument": argument.name, "value": argument.value})
        exchange = Exchange(self._resource_caller(None))
        return await self._completions.complete(argument.name, argument.value, chosen, exchange)

    @contextlib.contextmanager
    def _protocol_errors(
        self, what: str, not_found: int = INVALID_PARAMS, data: dict[str, Any] | None = None
    ) -> Iterator[None]:
        """Problems and defects as errors of the protocol, where no answer can carry them."""
        try:
            yield
        except NotFound as problem:
            raise self._protocol_error(not_found, problem, data) from None
        except (BadArgument, Refused) as problem:  # the caller can correct these
            raise self._protocol_error(INVALID_PARAMS, problem, data) from None
        except Problem as problem:
            raise self._protocol_error(INTERNAL_ERROR, problem, data) from None
        except Exception as error:  # noqa: BLE001 (a defect, as above)
            log.error("%s failed: %s", what, self._pipeline.trace_of(error, {}))
            raise MCPError(code=INTERNAL_ERROR, message=str(_defect("The request", error))) from None

    def _protocol_error(self, code: int, problem: Problem, data: dict[str, Any] | None) -> MCPError:
        message = rendering.problem_text(problem, self._naming(self._caller(None)))
        return MCPError(code=code, message=message, data=data)

    def _naming(self, caller: Caller) -> Naming:
        """Tools of any surface, for what belongs to none of them."""
        namings = [surface.naming(caller) for surface in self._surfaces]
        return lambda hint: next((call for name in namings if (call := name(hint))), None)

    def _caller(self, context: Context[Any, Any] | None) -> Caller:
        params = context.session.client_params if context is not None else None
        client = f"{params.client_info.name} {params.client_info.version}" if params else "unknown"
        subject, scope = self._identify()
        return Caller(client, self._transport, subject, scope)

    def _resource_caller(self, context: Context[Any, Any] | None) -> Caller:
        """For resources, prompts and completions, which cost no tokens until they are used."""
        return self._caller(context).with_exposure(ALL_BY_DEFAULT)


def _defect(what: str, error: Exception, next_step: Advice | None = None) -> Problem:
    """An internal defect: the log has the place and the cause, the caller sees no internals."""
    return Problem(
        f"{what} failed inside Quorate ({type(error).__name__})",
        why="This is a defect, not your mistake; the server's log has the details",
        next_step=next_step,
    )


# -- questions for the person at the client, in both versions of the protocol ------------------------------------------


def asker(context: Context[Any, Any] | None) -> Ask | None:
    """A function that asks the person; None if the client cannot."""
    if context is None or not _can_ask(context):
        return None
    later = (context.protocol_version or "") >= ANSWER_WITH_NEXT_CALL

    async def ask(question: Question) -> Reply:
        return _read_answer(context, question) if later else await _ask_now(context, question)

    return ask


def input_required_result(later: AnswerLater) -> InputRequiredResult:
    question = later.question
    params = ElicitRequestFormParams(message=question.text, requested_schema=_form(question))
    return InputRequiredResult(
        input_requests={question.id: ElicitRequest(params=params)},
        request_state=f"{question.id} {question.asked}",  # sealed, so a client cannot change it
    )


def read_malformed_answer(text: str | bytes) -> JSONRPCResponse | None:
    """A malformed answer to a question, as one that the waiting call refuses at once: with an empty result.

    None if the text is not an answer. Without this, the call would wait for what has already come.
    """
    try:
        message = read_json(text)
    except Unreadable:
        return None
    if not isinstance(message, dict) or "method" in message or not {"result", "error"} & message.keys():
        return None
    request = message.get("id")
    if not isinstance(request, (int, str)) or isinstance(request, bool):
        return None
    return JSONRPCResponse(jsonrpc="2.0", id=request, result={})


async def refuse_malformed_answers(ctx: ServerRequestContext[Any], call_next: Any) -> Any:
    """Middleware of the SDK: refuse a malformed answer that comes with a call, and say how else to answer."""
    answers = (ctx.params or {}).get("inputResponses") if ctx.method == "tools/call" else None
    if answers is None:
        return await call_next(ctx)
    if not isinstance(answers, Mapping):
        raise MCPError(
            code=INVALID_PARAMS,
            message="inputResponses is malformed: it must be an object with one answer for each question. "
            "The question is still open",
        )
    for question, answer in answers.items():
        if not _is_readable(answer):
            raise MCPError(
                code=INVALID_PARAMS,
                message=f"The answer to {question} is malformed, so it counts as none. The question is still open: "
                f"answer it again, or let the operator run: quorate approvals approve {question}",
            )
    return await call_next(ctx)


def _is_readable(answer: object) -> bool:
    try:
        ElicitResult.model_validate(answer, by_name=False)
    except ValidationError:
        return False
    return True


def _can_ask(context: Context[Any, Any]) -> bool:
    """A bare `elicitation: {}` means forms; a client that only opens URLs cannot show one."""
    capabilities = context.client_capabilities
    elicitation = capabilities.elicitation if capabilities else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def _read_answer(context: Context[Any, Any], question: Question) -> Reply:
    """The answer counts only for the question with its id; a new question has none yet."""
    answer = (context.input_responses or {}).get(question.id)
    if answer is None:
        raise AnswerLater(question)
    asked = _time_of(context.request_state or "", question)
    return _reply(answer, asked) if isinstance(answer, ElicitResult) else Reply(ReplyKind.UNREADABLE, asked=asked)


def _time_of(state: str, question: Question) -> float | None:
    """When the question was asked; None if the client did not return the state of exactly this question."""
    key, _, time = state.partition(" ")
    try:
        asked = float(time)
    except ValueError:
        return None
    return asked if key == question.id and math.isfinite(asked) else None


async def _ask_now(context: Context[Any, Any], question: Question) -> Reply:
    async with asyncio.timeout(LONGEST_WAIT):
        try:
            return _reply(await context.session.elicit_form(question.text, _form(question), context.request_id))
        except ValidationError:
            return Reply(ReplyKind.UNREADABLE)
        except MCPError:
            return Reply(ReplyKind.NOT_SHOWN)


def _reply(answer: ElicitResult, asked: float | None = None) -> Reply:
    typed = (answer.content or {}).get("typed")
    return Reply(_KINDS[answer.action], "" if typed is None else str(typed), asked)


def _form(question: Question) -> dict[str, Any]:
    typed = {"type": "string", "title": "Your answer", "description": f"Type {question.word} to continue"}
    return {"type": "object", "properties": {"typed": typed}, "required": ["typed"]}
