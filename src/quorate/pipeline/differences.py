"""What a plan changes, value by value: the current one, read from the cluster at this moment, next to the new one.

PVE reads an object at the path where it is written, so one rule serves all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from quorate.command_secrets import HIDDEN
from quorate.operations.api.responses import hide_secrets
from quorate.operations.backend import Backend
from quorate.operations.plan import Call, Plan
from quorate.pipeline.responses import redacted_params
from quorate.pipeline.sanitization import one_line, shorten
from quorate.problems import Problem
from quorate.pve.cluster import Cluster
from quorate.pve.wire import Request, read

LONGEST_VALUE = 200
MOST_DIFFERENCES = 200
NO_VALUES = frozenset({"delete", "revert", "digest", "force", "skiplock", "background_delay"})
"""Parameters that say how to write, not what."""


class Difference(NamedTuple):
    what: str
    before: str
    after: str


async def differences(backend: Backend, plan: Plan) -> list[Difference]:
    """Empty where nothing that exists is changed; creations and deletions are described elsewhere."""
    found: list[Difference] = []
    for where, part in plan.parts():
        for call in part.api_calls:
            found += await _changed_by((where or backend).api, call)
    return list(dict.fromkeys(found))[:MOST_DIFFERENCES]


async def _changed_by(cluster: Cluster, call: Call) -> list[Difference]:
    facts = await cluster.facts()
    request = read(facts, call.method, call.path, call.params)
    writes = call.method == "PUT" or (call.method == "POST" and call.path.endswith("/config"))
    if request is None or not writes or facts.find("GET", call.path) is None:
        return []
    try:
        current = await cluster.get(call.path)
    except Problem:
        return []
    if not isinstance(current, Mapping):
        return []
    return list(_compare(call, request, hide_secrets(request.template, current)))


def _compare(call: Call, request: Request, current: Mapping[str, Any]) -> Iterator[Difference]:
    subject = str(call.target) if call.target else call.path
    new = {
        name: value if isinstance(value, str) else ", ".join(map(str, value))
        for name, value in redacted_params(call).items()
        if name not in NO_VALUES and f"{{{name}}}" not in request.template
    }
    new |= dict.fromkeys(request.elements("delete"), "")
    for name, after in new.items():
        before = HIDDEN if after == HIDDEN and name in current else str(current.get(name, ""))
        if before != after or after == HIDDEN:
            yield Difference(f"{subject}: {name}", _short(before), _short(after))


def _short(text: str) -> str:
    return shorten(one_line(text), LONGEST_VALUE)
