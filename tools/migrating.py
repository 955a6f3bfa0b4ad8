"""The page for people who come from another server: what to set, and each of its tools with ours beside it."""

from __future__ import annotations

import json
from collections.abc import Collection

from quorate.app import build
from quorate.config import Access, Settings
from quorate.operations.registry import DEFAULT_TOOLSETS
from quorate.pipeline.caller import Caller
from quorate.surfaces.compat import SYSTEMS, system
from quorate.surfaces.compat.declaring import System
from quorate.surfaces.native import as_json

INTRODUCTION = """# Coming from another server

Generated from the code by `make docs`; do not edit.

Quorate can stand in for five other Proxmox servers: `quorate serve --surface NAME` lists that server's tools with its
names, parameters, types and defaults, and does what each of them promises. Its environment variables are understood,
so an existing set-up goes on working when the command is changed. Several surfaces can be served at once
(`--surface native,bsahane`), as long as no tool name occurs twice; brynnjocelyn and washyu have some in common.

Everything runs through the same pipeline as our own tools: checked against PVE's API facts, followed to the end of the
task, gated and recorded. Where one of these tools calls a path or sends a parameter that PVE does not have, ours does
what its description promises.

The second column of each table is the native way to ask for the same. Native tools take a guest by vmid or name, find
node and type themselves and answer in a few lines.

## Side by side

Counted from the code. Bytes are those of `tools/list` as Quorate serves the surface, with all
toolsets unless said otherwise; a model reads them at every start.

"""

COLUMNS = """\
| surface | tools | bytes of `tools/list` | before something is destroyed, that server itself asks for |
|---|---|---|---|
"""

OWN_GATE = {
    "brynnjocelyn": "nothing",
    "bsahane": "`confirm`, which the model fills in",
    "gilby125": "`PROXMOX_ALLOW_ELEVATED`, once, for everything",
    "solomonneas": "`PROXMOX_ENABLE_DESTRUCTIVE` and `destructive`, which the model fills in",
    "washyu": "nothing",
}
OURS = "a person who types the guest's name, or an operator with a passphrase"

LACKING = """
What a stand-in cannot promise: where a server's documents show no answer, its shape and words are ours, and so are
those of errors. With several clusters the drop-in tools are about the first, unless they take a `host` (washyu).
"""

SET_UP = {
    "brynnjocelyn": (
        "It has no switch of its own for changes, so what it may do is decided here: `--access operate` for changes, "
        "`--access admin` for what destroys, and `--approval ask`, `token` or `none` for who agrees to that."
    ),
    "bsahane": (
        "`confirm` and `dry_run` are its own gates and hold as they do there. A model can fill in `confirm` by itself, "
        "so it is no approval: what destroys also needs `--access admin` and `--approval ask`, `token` or `none`."
    ),
    "gilby125": (
        "`PROXMOX_ALLOW_ELEVATED=true` opens everything but the basic reads, as it does there. Where Quorate has been "
        "told nothing about access or approval, it stands for `--access admin` and counts as the operator's yes; "
        "whatever is chosen here goes first. Answers are markdown."
    ),
    "solomonneas": (
        "`PROXMOX_ENABLE_DESTRUCTIVE=1` and `destructive` are its own gates and hold as they do there. Where Quorate "
        "has been told nothing about access or approval, the variable stands for `--access admin` and counts as the "
        "operator's yes; whatever is chosen here goes first. Its live smoke run is `quorate smoke`."
    ),
    "washyu": (
        "It has no switch of its own for changes, so what it may do is decided here: `--access operate` for "
        "changes and for looking into machines, `--access admin` for what destroys, and `--approval ask`, `token` "
        "or `none` for who agrees to that; all its tools work with `--access admin --approval ask`. All toolsets "
        "are on, those of the homelab too. Host keys are checked: the operator trusts a machine once, with "
        "`quorate trust`. The account `mcp_admin` gets a key of its own; one that the other server has made is "
        "registered with its key (`register_server key_path=~/.ssh/mcp/mcp_admin_key`). `host` is a Proxmox host "
        "or cluster of the settings. A `password` is used for its call and kept nowhere. Terminals are shown by "
        "the HTTP transport. What that server only pretends to do is done here: plans, scaling, decommissioning, "
        "backup, rollback. VLANs and packet filters of plain machines are not: a plan with `network_changes` is "
        "refused."
    ),
}


def migrating() -> str:
    return INTRODUCTION + side_by_side() + LACKING + "".join(_section(system(name)) for name in SYSTEMS)


def side_by_side() -> str:
    ours = [_row("native", OURS, DEFAULT_TOOLSETS), _row("native", OURS), _row("lean", OURS)]
    return COLUMNS + "".join([*ours, *(_row(name, OWN_GATE[name]) for name in SYSTEMS)])


def _row(surface: str, asks: str, toolsets: Collection[str] = ("all",)) -> str:
    settings = Settings(access=Access.ADMIN, toolsets=tuple(toolsets), surfaces=(surface,))
    (served,) = build(settings).surfaces()
    tools = as_json(served.tools(Caller()))
    size = len(json.dumps(tools, ensure_ascii=False, separators=(",", ":")).encode())
    named = f"`{surface}`" + (", default toolsets" if toolsets is DEFAULT_TOOLSETS else "")
    return f"| {named} | {len(tools)} | {size:,} | {asks} |\n"


def _section(one: System) -> str:
    rows = "".join(
        f"| `{tool.name}` | {_native(tool.native)} | {tool.risk.value.replace('_', ' ')} |\n"
        for tool in one.tools.values()
    )
    return f"\n## {one.name}\n\n{SET_UP[one.name]}\n\n| its tool | our own way | risk |\n|---|---|---|\n{rows}"


def _native(text: str) -> str:
    return text if "`" in text else f"`{text}`"
