"""Generate pages, manifests and schema snapshots from the code. `--check` only compares."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pve_schema.schema import NEWEST, facts
from quorate.operations.registry import DEFAULT, EVERY, NEEDED, Operation, chosen_operations, operations
from quorate.surfaces.native import as_json, describe
from tools.compat_pages import migration_page, spellings
from tools.manifests import manifests, registered_name
from tools.risks import risks
from tools.session_picture import session_picture

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
ACCESS = ROOT / "docs" / "access.md"
REFERENCE = ROOT / "docs" / "tools.md"
RISKS = ROOT / "docs" / "risks.md"
MIGRATING = ROOT / "docs" / "migrating.md"
SPELLINGS = ROOT / "docs" / "spellings.md"
PICTURE = ROOT / "docs" / "session.svg"
SNAPSHOTS = ROOT / "tests" / "snapshots"

INTRODUCTION = """# Tools

Generated from the code by `make docs`; do not edit.

Every tool that changes something also accepts `dry_run` (show the plan, do nothing) and `wait` (seconds to follow the
task before returning its id). Refer to guests by vmid, name or `node/vmid`.
"""


def main() -> int:
    files = generated()
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    orphans = [path for path in SNAPSHOTS.glob("*.json") if path not in files]
    if "--check" in sys.argv:
        for path in stale + orphans:
            sys.stderr.write(f"out of date: {path.relative_to(ROOT)} (run `make docs`)\n")
        return 1 if stale or orphans else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path])
    for path in orphans:
        path.unlink()
    return 0


def generated() -> dict[Path, str]:
    files = {SNAPSHOTS / f"{name}.json": _snapshot(operation) for name, operation in operations().items()}
    pages = {
        REFERENCE: _reference(),
        RISKS: risks(),
        MIGRATING: migration_page(),
        SPELLINGS: spellings(),
        README: _between("<!-- mcp-name: ", " -->", registered_name(), README),
        ACCESS: _between("<!-- counts -->\n", "<!-- end of counts -->", _counts(), ACCESS),
    }
    return {**pages, PICTURE: session_picture(), **manifests(), **files}


def _snapshot(operation: Operation) -> str:
    return json.dumps(as_json([describe(operation)])[0], indent=2, ensure_ascii=False) + "\n"


def _reference() -> str:
    parts = [INTRODUCTION]
    for toolset in EVERY:
        parts.append(f"\n## {toolset}\n")
        parts += [_section(operation) for operation in operations().values() if operation.toolset == toolset]
    return "".join(parts)


def _section(operation: Operation) -> str:
    schema = operation.schema()
    required = schema.get("required", [])
    rows = [_row(name, part, name in required) for name, part in schema["properties"].items()]
    table = "| argument | type | default | meaning |\n|---|---|---|---|\n" + "".join(rows)
    risk = f"Risk: {operation.risk.value}; needs access `{NEEDED[operation.risk].value}`."
    if (least := operation.least_risk) is not operation.risk:
        access = f"`{NEEDED[least].value}` to `{NEEDED[operation.risk].value}`"
        risk = f"Risk: {least.value} to {operation.risk.value}, depending on the arguments; needs access {access}."
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
        return " or ".join(_type(alternative) for alternative in part["anyOf"])
    if part.get("type") == "array":
        return f"list of ({_type(part.get('items', {}))})"
    bounds = [f"{sign} {part[key]:g}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in part]
    return " ".join([str(part.get("type", "any")), *bounds])


# -- generated parts of written pages ----------------------------------------------------------------------------------


def _between(begin: str, end: str, part: str, page: Path) -> str:
    before, has_begin, rest = page.read_text().partition(begin)
    _, has_end, after = rest.partition(end)
    if not (has_begin and has_end):
        raise ValueError(f"{page.name} lacks the markers of a generated part: {begin.strip()}")
    return before + begin + part + end + after


def _counts() -> str:
    toolsets = [operation.toolset for operation in operations().values()]
    default = len(chosen_operations(frozenset({DEFAULT})))
    methods = sum(1 for _ in facts(NEWEST).endpoints())
    return (
        f"{len(toolsets)} tools in {len(set(toolsets))} toolsets; `api` alone reaches all {methods} methods of the PVE "
        f"API. {default} tools are on by\ndefault; `--toolsets +firewall,+homelab` adds others. At the default "
        "access level only tools that read are listed.\nThe full list is in [the tool reference](tools.md).\n"
    )


if __name__ == "__main__":
    sys.exit(main())
