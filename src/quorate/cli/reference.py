"""One tool, explained for the shell: what it does, what it takes, and a call to begin with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quorate.config import ConfigError

if TYPE_CHECKING:
    from quorate.operations.registry import Operation

WIDTH = 100
SAMPLES = {
    "backup": "local:backup/vzdump-qemu-100.vma.zst",
    "guest": "web01",
    "guests": "web01",
    "holders": "alice@pve",
    "node": "pve1",
    "path": "/vms/100",
    "privileges": "VM.Audit",
    "roles": "PVEAuditor",
    "snapshot": "before-update",
    "storage": "local",
    "target": "pve2",
    "task": "UPID:pve1:...",
    "token": "alice@pve!cli",
    "user": "alice@pve",
}
"""What stands in examples; a name that is not here stands for itself."""


def found(name: str) -> Operation:
    """The operation of this name, or an error that names those near to it."""
    from quorate.operations.registry import operations

    known = operations()
    if name in known:
        return known[name]
    import difflib

    near = difflib.get_close_matches(name, known, 3)
    hint = (
        f"did you mean {' or '.join(near)}?" if near else "`quorate tools --access admin --toolsets all` has them all."
    )
    raise ConfigError(f"There is no tool {name!r}: {hint}")


def explained(operation: Operation) -> str:
    import textwrap

    from quorate.surfaces.describing import arguments_of

    schema = operation.schema()
    lines = [f"quorate call {operation.name} [key=value ...]", "", *textwrap.wrap(operation.summary, WIDTH), ""]
    lines += [f"toolset  {operation.toolset}", f"risk     {_risk(operation)}", "", "arguments"]
    described = arguments_of(schema)
    width = max((len(name) for name in described), default=0) + 1
    for name, about in described.items():
        first, *rest = textwrap.wrap(about, WIDTH - width - 4) or [""]
        lines.append(f"  {name + '=':<{width}}  {first}")
        lines += [" " * (width + 4) + line for line in rest]
    if not described:
        lines.append("  none")
    return "\n".join([*lines, "", "example", f"  {example(operation)}"])


def example(operation: Operation) -> str:
    import shlex

    schema = operation.schema()
    pairs = [f"{name}={_sample(name, schema['properties'][name])}" for name in schema.get("required", ())]
    words = ["quorate", "call", operation.name, *pairs]
    level = _needed(operation)
    return shlex.join([*words, *(("--access", level) if level != "read" else ())])


def _sample(name: str, part: Mapping[str, Any]) -> str:
    if "enum" in part:
        return str(part["enum"][0])
    kinds = {part.get("type"), *(one.get("type") for one in part.get("anyOf", ()))}
    if name not in SAMPLES and "string" not in kinds and "array" not in kinds:
        return str(part.get("minimum", 1))
    text = SAMPLES.get(name, name)
    return f'["{text}"]' if "array" in kinds and "string" not in kinds else text


def _needed(operation: Operation) -> str:
    from quorate.pipeline.gate import NEEDED

    return NEEDED[operation.least_risk].value


def _risk(operation: Operation) -> str:
    from quorate.pipeline.gate import NEEDED

    most = f"{operation.risk.value}, needs --access {NEEDED[operation.risk].value}"
    if operation.risk_of is None:
        return most
    return f"{operation.least_risk.value} to {most}, by the arguments"
