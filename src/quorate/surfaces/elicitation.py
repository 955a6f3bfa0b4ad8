"""Ask the person at an MCP client, in both versions of the protocol."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.mcpserver import Context
from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult

from quorate.pipeline.caller import AnswerLater, Ask, Question

ANSWER_WITH_NEXT_CALL = "2026-07-28"
"""From this version on, a question is the result of the call, which the client then repeats."""
LONGEST_WAIT = 300.0


def asker(context: Context[Any, Any] | None) -> Ask | None:
    """A function that asks the person; None if the client cannot."""
    if context is None or not _can_ask(context):
        return None
    later = (context.protocol_version or "") >= ANSWER_WITH_NEXT_CALL

    async def ask(question: Question) -> str | None:
        result = _given_answer(context, question) if later else await _ask_now(context, question)
        return None if result.action != "accept" else str((result.content or {}).get("typed", ""))

    return ask


def input_required_result(later: AnswerLater) -> InputRequiredResult:
    question = later.question
    params = ElicitRequestFormParams(message=question.text, requested_schema=_form(question))
    return InputRequiredResult(input_requests={question.id: ElicitRequest(params=params)}, request_state=question.id)


def _can_ask(context: Context[Any, Any]) -> bool:
    """A bare `elicitation: {}` means forms; a client that only opens URLs cannot show one."""
    capabilities = context.client_capabilities
    elicitation = capabilities.elicitation if capabilities else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def _given_answer(context: Context[Any, Any], question: Question) -> ElicitResult:
    """The answer counts only for the question with its id; a new question has none yet."""
    answer = (context.input_responses or {}).get(question.id)
    if not isinstance(answer, ElicitResult):
        raise AnswerLater(question)
    return answer


async def _ask_now(context: Context[Any, Any], question: Question) -> ElicitResult:
    async with asyncio.timeout(LONGEST_WAIT):
        result: ElicitResult = await context.session.elicit_form(question.text, _form(question), context.request_id)
        return result


def _form(question: Question) -> dict[str, Any]:
    typed = {"type": "string", "title": "Your answer", "description": f"Type {question.wanted} to continue"}
    return {"type": "object", "properties": {"typed": typed}, "required": ["typed"]}
