"""Several calls in one request, for root@pam alone."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import msgspec

from quorate.pve.schema import facts
from quorate.sim import parameters
from quorate.sim.permission_check import check_permission
from quorate.sim.refusals import Refusal, bad_parameters, failure
from quorate.sim.routing import Call, all_routes, route


@route("POST /nodes/{node}/execute")
async def execute(call: Call) -> list[dict[str, Any]]:
    """Every command gets its own answer; one that fails does not stop the others."""
    try:
        commands = msgspec.json.decode(call.params["commands"])
    except msgspec.DecodeError as error:
        raise failure("commands param did not contain valid JSON: malformed JSON string") from error
    if not isinstance(commands, list):
        raise failure("commands is not an array")
    return [await _answer(call, command) for command in commands]


async def _answer(call: Call, command: Any) -> dict[str, Any]:
    try:
        return {"status": 200, "data": await _run(call, command)}
    except Refusal as refusal:
        answer: dict[str, Any] = {"status": refusal.status, "message": refusal.message}
        return answer | ({"errors": refusal.errors} if refusal.errors else {})


async def _run(call: Call, command: Any) -> Any:
    if not isinstance(command, dict) or not command.get("path") or not command.get("method"):
        raise failure(f"{command} is not a valid command")
    path = f"/nodes/{call.node}/{str(command['path']).strip('/')}"
    match = facts(call.world.version).find(str(command["method"]).upper(), path)
    known = None if match is None else all_routes().get((match.endpoint.method, match.endpoint.template))
    if match is None or known is None or known.reads_body:
        raise failure(f"no handler for '{path.removeprefix('/')}'")
    given = command.get("args") or {}
    for name in given:
        if name in match.values:
            raise bad_parameters({name: "duplicate parameter"})
    raw = {**given, **match.values}
    check_permission(call.world.access, match.endpoint.permission, call.user, raw)
    errors = match.endpoint.check(raw)
    if errors:
        raise bad_parameters(errors)
    inner = replace(
        call, endpoint=match.endpoint, params=parameters.typed(match.endpoint, raw), values=dict(match.values)
    )
    result = known.handler(inner)
    return await result if inspect.isawaitable(result) else result
