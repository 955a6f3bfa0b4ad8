"""Community scripts: search and inspect. Nothing runs."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import SCRIPT_RUN, Advice
from quorate.homelab.homelab import Homelab
from quorate.homelab.scripts.download import fetch_script
from quorate.homelab.scripts.index import REFRESH, Index, current
from quorate.homelab.scripts.script import Category, Script
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import duration

ScriptName = Annotated[str, Meta(description="As script_search names it, or ct/NAME.sh")]


def index_of(homelab: Homelab) -> Index:
    return current(homelab.settings.scripts_index)


def provenance(homelab: Homelab, index: Index) -> dict[str, Any]:
    """How old the index is, because scripts may have changed since."""
    if index.taken is None:
        return {"index": f"bundled, with only some of the scripts. {REFRESH}"}
    return {"index": f"fetched {duration(max(0.0, homelab.clock.time() - index.taken))} ago"}


PAGE = 16 * 1024
"""Characters of a script's text in one answer."""
COLUMNS = ("script", "category", "name", "about", "cpu", "ram_mb", "disk_gb", "os", "port", "tags")


@operation(
    risk=Risk.READ,
    search_words="community scripts helper-scripts tteck find a script for an app catalogue",
    example="words=dns",
)
async def script_search(
    homelab: Homelab,
    words: Annotated[str, Meta(description="All must match; empty lists every script")] = "",
    category: Category | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 25,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Community scripts for Proxmox VE that create containers (ct) or VMs, or maintain nodes (misc). Works offline."""
    index = index_of(homelab)
    rows = [
        [one.slug, one.category, one.name, one.about, one.cpu, one.ram, one.disk, _system(one), one.port,
         ", ".join(one.tags)]
        for one in index.matching(words, category)
    ]  # fmt: skip
    table = page(COLUMNS, rows, limit=limit, offset=offset)
    table.facts = provenance(homelab, index)
    return table


@operation(
    risk=Risk.READ,
    search_words="community script helper-scripts tteck what does this script need show its text",
    example="script=jellyfin",
)
async def script_info(
    homelab: Homelab,
    script: ScriptName,
    category: Category | None = None,
    text: Annotated[bool, Meta(description="Fetch the script and show it")] = False,
    offset: Annotated[int, Meta(ge=0, description="Of the text, in characters")] = 0,
) -> dict[str, Any]:
    """What a community script needs and creates, from the index; with `text`, the current script itself."""
    index = index_of(homelab)
    found = index.get(script, category)
    facts = _facts(found) | provenance(homelab, index)
    if not text:
        return facts | {"address": f"{homelab.settings.scripts_url.rstrip('/')}/{found.path}"}
    fetched = await fetch_script(homelab.settings.scripts_url, found.path)
    shown = fetched.text[offset : offset + PAGE]
    end = offset + len(shown)
    return facts | {
        "address": fetched.address,
        "sha256": fetched.sha256,
        "runs_also": fetched.runs_also,
        "content": shown,
        **({"next_offset": end} if end < len(fetched.text) else {}),
    }


def _system(script: Script) -> str:
    return f"{script.os} {script.version}".strip()


def _facts(script: Script) -> dict[str, Any]:
    facts = {
        "script": script.path,
        "name": script.name,
        "category": script.category,
        "about": script.about,
        "cpu": script.cpu,
        "ram_mb": script.ram,
        "disk_gb": script.disk,
        "os": _system(script),
        "unprivileged": script.unprivileged,
        "port": script.port,
        "tags": list(script.tags),
    }
    known = {name: value for name, value in facts.items() if value not in (None, "", [])}
    if script.category == "ct":
        return known | {"to_run": Advice("Run it on a node", SCRIPT_RUN(script=script.path))}
    return known | {"to_run": "it asks questions, so run it at a shell of the node"}
