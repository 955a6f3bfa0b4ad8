"""The parts of the README that are counted or follow from elsewhere; the rest of it is written by hand."""

from __future__ import annotations

from pathlib import Path

from quorate.operations.registry import DEFAULT_TOOLSETS, operations
from quorate.pve.schema import NEWEST, facts
from tools.manifests import registered_name
from tools.migrating import side_by_side

README = Path(__file__).parent.parent / "README.md"


def readme() -> str:
    text = _between("<!-- mcp-name: ", " -->", registered_name(), README.read_text())
    text = _between("<!-- counts -->\n", "<!-- end of counts -->", _counts(), text)
    return _between("<!-- side by side -->\n", "<!-- end of side by side -->", side_by_side(), text)


def _between(begin: str, end: str, part: str, text: str) -> str:
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"README.md has lost its place for a generated part: {begin.strip()}")
    return before + begin + part + end + after


def _counts() -> str:
    toolsets = [one.toolset for one in operations().values()]
    default = sum(toolset in DEFAULT_TOOLSETS for toolset in toolsets)
    methods = sum(1 for _ in facts(NEWEST).endpoints())
    return (
        f"{len(toolsets)} tools in {len(set(toolsets))} toolsets; `api` among them knows all {methods} methods of PVE. "
        f"{default} tools are on by default\nand `--toolsets guests,backups,metrics`, say, chooses others; at the "
        "default access level only those that read are listed.\n[docs/tools.md](docs/tools.md) has them all.\n"
    )
