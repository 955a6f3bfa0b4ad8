"""Write what is generated from the code: pages of docs, one schema snapshot per tool. `--check` only compares."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from quorate.operations.registry import EVERY, Operation, operations
from quorate.pipeline.gate import NEEDED
from quorate.surfaces.native import as_json, describe
from tools.manifests import manifests
from tools.migrating import migrating
from tools.readme import README, readme
from tools.risks import risks
from tools.session_picture import session_picture

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "tools.md"
RISKS = ROOT / "docs" / "risks.md"
MIGRATING = ROOT / "docs" / "migrating.md"
PICTURE = ROOT / "docs" / "session.svg"
SNAPSHOTS = ROOT / "tests" / "snapshots"

INTRODUCTION = """# Tools

Generated from the code by `make docs`; do not edit.

Every tool that changes something also takes `dry_run` (show the plan, do nothing) and `wait` (seconds to follow
the task before it is handed back). Guests are named by vmid or name; `node/vmid` works, too.
"""


def main() -> int:
    wanted = generated()
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    orphans = [path for path in SNAPSHOTS.glob("*.json") if path not in wanted]
    if "--check" in sys.argv:
        for path in stale + orphans:
            sys.stderr.write(f"out of date: {path.relative_to(ROOT)} (run `make docs`)\n")
        return 1 if stale or orphans else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path])
    for path in orphans:
        path.unlink()
    return 0


def generated() -> dict[Path, str]:
    files = {SNAPSHOTS / f"{name}.json": _snapshot(one) for name, one in operations().items()}
    pages = {REFERENCE: _reference(), RISKS: risks(), MIGRATING: migrating(), README: readme()}
    return {**pages, PICTURE: session_picture(), **manifests(), **files}


def _snapshot(operation: Operation) -> str:
    return json.dumps(as_json([describe(operation)])[0], indent=2, ensure_ascii=False) + "\n"


def _reference() -> str:
    parts = [INTRODUCTION]
    for toolset in EVERY:
        parts.append(f"\n## {toolset}\n")
        parts += [_section(one) for one in operations().values() if one.toolset == toolset]
    return "".join(parts)


def _section(operation: Operation) -> str:
    schema = operation.schema()
    required = schema.get("required", [])
    rows = [_row(name, part, name in required) for name, part in schema["properties"].items()]
    table = "| argument | type | default | meaning |\n|---|---|---|---|\n" + "".join(rows)
    risk = f"Risk: {operation.risk.value}; needs access `{NEEDED[operation.risk].value}`."
    if operation.risk_of is not None:
        least = operation.least_risk
        risk = f"Risk: {least.value} to {operation.risk.value}, by the arguments; needs access `{NEEDED[least].value}` "
        risk += f"to `{NEEDED[operation.risk].value}`."
    return (
        f"\n### {operation.name}\n\n{operation.summary}\n\n{risk}\n\n{table if rows else 'No arguments.'}".rstrip()
        + "\n"
    )


def _row(name: str, part: dict[str, Any], required: bool) -> str:
    default = "required" if required else _show(part.get("default"))
    return f"| `{name}` | {_type(part)} | {default} | {part.get('description', '')} |\n"


def _show(default: Any) -> str:
    return "" if default is None else f"`{json.dumps(default)}`"


def _type(part: dict[str, Any]) -> str:
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    if "anyOf" in part:
        return " or ".join(_type(one) for one in part["anyOf"])
    if part.get("type") == "array":
        return f"list of ({_type(part.get('items', {}))})"
    bounds = [f"{sign} {part[key]:g}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in part]
    return " ".join([str(part.get("type", "any")), *bounds])


if __name__ == "__main__":
    sys.exit(main())
