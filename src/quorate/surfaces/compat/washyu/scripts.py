"""Community scripts for Proxmox VE: found by words, looked at, never run from here."""

from __future__ import annotations

from typing import Any

from quorate.operations.registry import Risk
from quorate.problems import Problem
from quorate.surfaces.compat.declaring import Tool, may, need
from quorate.surfaces.compat.running import Run
from quorate.surfaces.compat.washyu.shapes import good

PREVIEW = 500
CATEGORY = may("category", "string", about="install: of the container scripts", choices=("ct", "vm", "install", "misc"))
INSTALLER = "-install"
"""What ct/jellyfin.sh runs inside its container is jellyfin-install: for who looks for one, they are the same."""


async def search(run: Run) -> dict[str, Any]:
    """Names only, unless more is asked for."""
    rows, beside = await run.listing("script_search", words=run["query"], category=_category(run))
    found = rows if run["include_metadata"] else [{key: row[key] for key in ("script", "category")} for row in rows]
    return good(query=run["query"], total_found=len(found), scripts=found, **beside)


async def info(run: Run) -> dict[str, Any]:
    """With the beginning of its text, where that can be fetched."""
    asked = {"script": run["script_name"].removesuffix(".sh").removesuffix(INSTALLER), "category": _category(run)}
    try:
        found = await run.facts("script_info", text=True, **asked)
        found["preview"] = str(found.pop("content"))[:PREVIEW]
    except Problem as problem:
        found = await run.facts("script_info", **asked)
        found["no_preview"] = str(problem)
    return good(script={name: value for name, value in found.items() if name not in ("next_offset", "to_run")})


def _category(run: Run) -> str | None:
    return "ct" if run["category"] == "install" else run["category"]


TOOLS = (
    Tool(
        "search_proxmox_scripts",
        "Community scripts for Proxmox VE by words; works offline.",
        (need("query", "string"), CATEGORY, may("include_metadata", "boolean", False, "What each needs and makes")),
        Risk.READ,
        "script_search",
        search,
    ),
    Tool(
        "get_proxmox_script_info",
        "What a community script needs and makes, and how it begins.",
        (need("script_name", "string", "Such as jellyfin"), CATEGORY),
        Risk.READ,
        "script_info",
        info,
    ),
)
