"""Ask the person at an MCP client, in both versions of the protocol."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from mcp.server import ServerRequestContext
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    JSONRPCResponse,
)
from pydantic import ValidationError

from quorate.documents import Unreadable, read_json
from quorate.pipeline.caller import AnswerLater, Ask, Question, Reply, ReplyKind

ANSWER_WITH_NEXT_CALL = "2026-07-28"
"""From this version on, a question is the result of the call, which the client then repeats."""
LONGEST_WAIT = 300.0
_KINDS = {"accept": ReplyKind.TYPED, "decline": ReplyKind.DECLINED, "cancel": ReplyKind.DISMISSED}


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
    typed = {"type": "string", "title": "Your answer", "description": f"Type {question.wanted} to continue"}
    return {"type": "object", "properties": {"typed": typed}, "required": ["typed"]}
