"""docs/risks.md: the risk of each tool and API endpoint, from the registry and the API facts."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator

from pve_schema.schema import NEWEST, OLDEST, Endpoint, facts
from quorate.operations.grants import ANY, GRANTS
from quorate.operations.protection import GUARDS
from quorate.operations.registry import NEEDED, Operation, Risk, operations
from quorate.operations.risk import ORDER, RISK_PARAMETERS, effects_of, refusal

EXAMPLES = 3

INTRODUCTION = """# Risks

Generated from the code by `make docs`; do not edit. [safety.md](safety.md) explains the terms.

## Tools

| tool | risk | access | why |
|---|---|---|---|
"""
ENDPOINTS = """
## Endpoints of the PVE API

Every call of every plan is judged by this table, whichever tool makes it. If a plan contains a call with a higher risk
than its tool, the higher risk decides access and approval, unless the call is listed below as an exception.

| risk | why | endpoints | examples |
|---|---|---|---|
"""
PARAMETERS = """
These parameters make a write DESTROY on any of these paths:

| parameter | where | why |
|---|---|---|
"""
GRANTED = """
## Granted as a change

A write is CHANGE only if a row of this table grants its path, and if this table or the one above lists every option in
it. Everything else is unclassified and therefore DESTROY, such as endpoints and options of a later PVE. Deleting or
reverting an option needs the same grant. `digest` and `lock-token` are granted everywhere.

| calls | options | why |
|---|---|---|
"""
GUARDED = """
## Compared with the stored object

These options are granted, but the object is read first. If it would protect less than now, or cannot be read, the call
is DESTROY.

| object | options | DESTROY when | why |
|---|---|---|---|
"""
EXEMPT = """
## Exceptions: calls with a higher risk than their tool

| tool | call | only if |
|---|---|---|
"""
NEVER = """
## Endpoints that `api_call` never calls

| why | endpoints | examples |
|---|---|---|
"""


def risks() -> str:
    tools = [
        _tool(operation)
        for operation in sorted(
            operations().values(), key=lambda operation: (-ORDER.index(operation.risk), operation.name)
        )
    ]
    exempt = [
        f"| `{name}` | {each.reason.words} | {each.only_if} |\n"
        for name, operation in operations().items()
        for each in operation.exemptions
    ]
    return "".join(
        [
            *(INTRODUCTION, *tools, ENDPOINTS, *_classes(), PARAMETERS, *_parameters()),
            *(GRANTED, *_granted(), GUARDED, *_guarded(), EXEMPT, *exempt, NEVER, *_never()),
        ]
    )


def _tool(operation: Operation) -> str:
    risk, access = operation.risk.value, NEEDED[operation.risk].value
    if operation.least_risk is not operation.risk:
        risk = f"{operation.least_risk.value} to {risk}"
        least = NEEDED[operation.least_risk].value
        access = access if least == access else f"{least} to {access}"
    return f"| `{operation.name}` | {risk} | {access} | {_why(operation)} |\n"


def _why(operation: Operation) -> str:
    """How the arguments decide the risk, or else what the tool does."""
    said = " ".join(inspect.cleandoc(getattr(operation.risk_of, "__doc__", None) or "").split())
    return (said or operation.summary).replace("|", "\\|")


def _endpoints() -> Iterator[Endpoint]:
    """Endpoints of both versions, each once."""
    seen: set[tuple[str, str]] = set()
    for version in (NEWEST, OLDEST):
        for endpoint in facts(version).endpoints():
            if (endpoint.method, endpoint.template) not in seen:
                seen.add((endpoint.method, endpoint.template))
                yield endpoint


def _classes() -> list[str]:
    endpoints: dict[tuple[Risk, str], list[str]] = defaultdict(list)
    for endpoint in _endpoints():
        highest = effects_of(endpoint)[0]
        endpoints[highest.risk, str(highest)].append(f"`{endpoint.method} {endpoint.template}`")
    ordered = sorted(endpoints.items(), key=lambda each: (-ORDER.index(each[0][0]), -len(each[1]), each[0][1]))
    return [f"| {risk.value} | {why} | {len(paths)} | {_such_as(paths)} |\n" for (risk, why), paths in ordered]


def _parameters() -> list[str]:
    return [
        f"| {', '.join(f'`{name}`' for name in risky.names)} | `{_readable(risky.where)}` | {risky.reason.words} |\n"
        for risky in RISK_PARAMETERS
    ]


def _granted() -> list[str]:
    return [
        f"| {grant.methods} `{_readable(grant.where)}` | {_option_names(grant.options.split())} | {grant.because} |\n"
        for grant in GRANTS
    ]


def _guarded() -> list[str]:
    return [
        f"| `{_readable(guard.where)}` | {_option_names(guard.options)} | {guard.when} | {guard.reason.words} |\n"
        for guard in GUARDS
    ]


def _option_names(names: Iterable[str]) -> str:
    named = ["all" if name == ANY else f"`{name}`" for name in names]
    return ", ".join(named) or "none"


def _never() -> list[str]:
    endpoints: dict[str, list[str]] = defaultdict(list)
    for endpoint in _endpoints():
        if refused := refusal(endpoint):
            endpoints[refused.why].append(f"`{endpoint.method} {endpoint.template}`")
    return [f"| {why} | {len(paths)} | {_such_as(paths)} |\n" for why, paths in sorted(endpoints.items())]


def _such_as(endpoints: list[str]) -> str:
    return ", ".join(sorted(endpoints, key=len)[:EXAMPLES]).replace("|", "\\|")


def _readable(where: str) -> str:
    """A regular expression as a readable path, with `*` for anything."""
    return where.replace(".*", "*").replace("|", " or ")
