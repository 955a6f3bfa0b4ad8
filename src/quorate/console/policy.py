"""Why was it refused? What would happen to a call, and the rules in effect."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from quorate.console.login import Person
from quorate.pipeline.explanation import explain
from quorate.pipeline.pipeline import Pipeline
from quorate.problems import Problem
from quorate.surfaces.arguments import parse_pairs

if TYPE_CHECKING:
    from quorate.console.console import Console

MOST_ARGUMENTS = 50
EXPLANATION_SECONDS = 10.0


def policy_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    async def show(request: Request, person: Person) -> Response:
        person.require_operator("The rules are")
        tool = request.query_params.get("tool", "")
        text = request.query_params.get("arguments", "")[:10_000]
        explanation, problem = {}, ""
        if tool:
            try:
                async with asyncio.timeout(EXPLANATION_SECONDS):
                    explanation = await _explanation(services.pipeline, tool, text, person)
            except Problem as error:
                problem = str(error)
            except TimeoutError:
                problem = f"This takes longer than {EXPLANATION_SECONDS:g} s, perhaps because a cluster is silent"
        return await console.show(
            request,
            person,
            "policy.html",
            tool=tool,
            arguments=text,
            tools=sorted(operation.name for operation in services.pipeline.visible(person.caller)),
            explanation=explanation,
            problem=problem,
            policies=_policies(services.pipeline, person),
        )

    return [("/policy", show)]


async def _explanation(pipeline: Pipeline, tool: str, text: str, person: Person) -> dict[str, Any]:
    operation = pipeline.operation(tool)
    pairs = [line.strip() for line in text.splitlines() if line.strip()][:MOST_ARGUMENTS]
    return await explain(pipeline, tool, parse_pairs(pairs, operation.schema()), person.caller)


def _policies(pipeline: Pipeline, person: Person) -> list[dict[str, Any]]:
    """The rules and limits of every cluster that the person reaches."""
    policies = []
    for site in pipeline.sites.open_to(person.caller):
        gate = pipeline.gate(person.caller, site)
        limits = [meter.limits for meter in site.meters]
        policies.append(
            {
                "cluster": site.name,
                "access": gate.access.value,
                "rules": [(rule.name, str(rule), rule.because) for rule in gate.rules.rules],
                "limits": [
                    (field.name.replace("_", " "), value)
                    for limit in limits
                    for field in fields(limit)
                    if (value := getattr(limit, field.name)) is not None
                ],
            }
        )
    return policies
