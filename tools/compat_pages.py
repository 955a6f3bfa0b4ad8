"""docs/migrating.md and docs/spellings.md: setup of each drop-in surface, its tools and their arguments."""

from __future__ import annotations

import json
from collections.abc import Collection

from quorate.app import build
from quorate.config import Access, Settings
from quorate.operations.registry import DEFAULT
from quorate.pipeline.caller import Caller
from quorate.surfaces.compat import SYSTEMS, system
from quorate.surfaces.compat.declaration import Parameter, System, Tool
from quorate.surfaces.native import as_json

INTRODUCTION = """# Coming from another server

Generated from the code by `make docs`; do not edit.

Quorate can replace five other Proxmox servers: `quorate serve --surface NAME` lists that server's tools with its names,
parameters, types and defaults, and does what each of them promises. It reads the same environment variables, so an
existing setup keeps working once you change the command. You can serve several surfaces at once
(`--surface native,bsahane`) as long as no tool name occurs twice; brynnjocelyn and washyu share some.

Every call runs through the same pipeline as the native tools: checked against the PVE API, subject to access, rules and
approval, followed to the end of its task, and recorded. If the original tool calls a path or sends a parameter that PVE
does not have, Quorate still does what the tool's description promises.

The second column of each table is the native equivalent. Native tools accept a guest by vmid or name, find its node and
type themselves, and answer in a few lines.

## Comparison

These figures are generated from the code. Bytes are those of `tools/list` as Quorate serves the surface, with all
toolsets unless noted; a model reads them at every start.

"""

COLUMNS = """\
| surface | tools | bytes of `tools/list` | required before anything is destroyed |
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
[spellings.md](spellings.md) lists every argument that each tool accepts, including those that only the server's
documentation or only its code mentions.

## Variables and files

| server | variables | its own file |
|---|---|---|
| brynnjocelyn | `PROXMOX_HOST`, `PROXMOX_PORT`, `PROXMOX_USERNAME`, `PROXMOX_REALM`, `PROXMOX_PASSWORD`, `PROXMOX_TOKEN_ID`, `PROXMOX_TOKEN_SECRET`, `PROXMOX_VERIFY_SSL`, `PROXMOX_TIMEOUT`, `MCP_SERVER_NAME` | `.proxmox-mcp.json`, `.NAME.json` or `.NAME-proxmox-mcp.json` in the current directory |
| bsahane | `PROXMOX_API_URL`, `PROXMOX_TOKEN_ID`, `PROXMOX_TOKEN_SECRET`, `PROXMOX_VERIFY`, `PROXMOX_DEFAULT_NODE`, `PROXMOX_DEFAULT_STORAGE`, `PROXMOX_DEFAULT_BRIDGE`, `PROXMOX_DEFAULT_LXC_PASSWORD` | `.env` in the current directory |
| gilby125 | `PROXMOX_HOST`, `PROXMOX_PORT`, `PROXMOX_USER`, `PROXMOX_TOKEN_NAME`, `PROXMOX_TOKEN_VALUE`, `PROXMOX_ALLOW_ELEVATED` | `.env` in the current directory or its parent |
| solomonneas | `PROXMOX_URL`, `PROXMOX_TOKEN_ID`, `PROXMOX_TOKEN_SECRET`, `PROXMOX_TLS_INSECURE`, `PROXMOX_ENABLE_DESTRUCTIVE`, `PROXMOX_SSH_*`, `PROXMOX_VM_*` | none |
| washyu | `PROXMOX_HOST`, `PROXMOX_USER`, `PROXMOX_PASSWORD`, `PROXMOX_API_TOKEN`, `PROXMOX_VERIFY_SSL` | none |

## Remaining differences

- If a server's documentation shows no sample result, the result has Quorate's own shape and wording. So do errors.
- With several clusters, the drop-in tools use the first, unless they take a `host` (washyu).
- A file in the working directory may describe a connection and nothing else, because it may come from a cloned
  repository ([why](safety.md)). `PROXMOX_ALLOW_ELEVATED`, `PROXMOX_ENABLE_DESTRUCTIVE`, `PROXMOX_DEFAULT_LXC_PASSWORD`
  and SSH variables are read only from the environment. Such a file never completes a connection that the environment
  begins; the original brynnjocelyn gives its file precedence.
- Certificates are checked. gilby125 accepts any; with Quorate, set a fingerprint or `PROXMOX_VERIFY_SSL=false`.
- There is no default address or login. gilby125 has a default address, user (`root@pam`) and token name (`mcpserver`),
  brynnjocelyn the host `localhost`; with Quorate, set the variables.
- A token together with a password, or two spellings of a setting with different values, are refused.
- There is no default password. gilby125 sets `proxmox` and bsahane `changeMe123!`; in Quorate, a container without a
  given password has none, and the result says how to log in. washyu's `deploy_vm` adds an SSH server with a known
  password to each container; Quorate runs the image unmodified.
- A change refuses unknown arguments, which those servers ignore. An example is `background` in later versions of
  washyu's `ssh_execute_command`: Quorate follows a command to its end.
- washyu keeps its map and servers in its own database (`DATABASE_TYPE`, `SQLITE_PATH`, `POSTGRES_*`). Quorate keeps them
  in its state, so discover and register machines once. `MCP_HTTP_*`, `MCP_API_KEY`, `SSH_TIMEOUT`, `SSH_RETRIES` and
  `DISCOVERY_*` are not read: see [http.md](http.md) and [configuration.md](configuration.md).
- solomonneas's live smoke test (`npm run smoke:live`, `PROXMOX_SMOKE_*`) is not included: `quorate doctor` checks a real
  cluster without changing it. Its tools for smoke tests are included.
- washyu's services `truenas`, `ai_inference`, `docker_terraform` and `ai_homelab_stack_ansible` are not in the catalog;
  `pihole_terraform` installs the catalog's Pi-hole with Compose.
- washyu's `decommission_device` can move the containers of a device to only one other device; a `service_mapping` to
  several is refused.
- Host keys are checked, and `network_changes` (VLANs, routes, packet filters) of plain hosts are refused.
"""  # noqa: E501 - a row of a table is one line

SET_UP = {
    "brynnjocelyn": (
        "It has no switch for changes, so choose at start: `--access operate` for changes, `--access admin` for "
        "destructive calls, and `--approval ask`, `token` or `none` for how those are approved."
    ),
    "bsahane": (
        "Its own gates, `confirm` and `dry_run`, work as in the original. A model can set `confirm` itself, so it is "
        "not an approval: changes also need `--access operate`, destructive calls `--access admin` and `--approval "
        "ask`, `token` or `none`."
    ),
    "gilby125": (
        "`PROXMOX_ALLOW_ELEVATED=true` unlocks everything but the basic reads, as in the original. If neither access "
        "nor approval is set, it implies `--access admin` and counts as the operator's approval; explicit settings "
        "take precedence. Results are Markdown."
    ),
    "solomonneas": (
        "Its own gates, `PROXMOX_ENABLE_DESTRUCTIVE=1` and `destructive`, work as in the original. If neither access "
        "nor approval is set, the variable implies `--access admin` and counts as the operator's approval; explicit "
        "settings take precedence. Without the variable, its writes with `confirm` need `--access operate`."
    ),
    "washyu": (
        "It has no switch for changes, so choose at start: `--access operate` for changes and for looking inside "
        "machines, `--access admin` for destructive calls, and `--approval ask`, `token` or `none` for how those are "
        "approved. All its tools work with `--access admin --approval ask`. All toolsets are on, including the "
        "homelab. Host keys are checked: trust each machine once with `quorate trust`. The account `mcp_admin` gets "
        "its own key; an account that the other server created is adopted with its key (`~/.ssh/mcp/mcp_admin_key`) "
        "and sudo rule. `host` names a configured Proxmox host or cluster. A `password` is used for its call and "
        "never stored. Terminals need the HTTP transport. Plans, scaling, decommissioning, backup and rollback, which "
        "that server only simulates, are real here. VLANs and packet filters of plain hosts are not supported: a plan "
        "with `network_changes` is refused."
    ),
}


def migration_page() -> str:
    return INTRODUCTION + side_by_side() + LACKING + "".join(_section(system(name)) for name in SYSTEMS)


def side_by_side() -> str:
    ours = [_row("native", OURS, (DEFAULT,)), _row("native", OURS), _row("lean", OURS)]
    return COLUMNS + "".join([*ours, *(_row(name, OWN_GATE[name]) for name in SYSTEMS)])


def _row(surface: str, asks: str, toolsets: Collection[str] = ("all",)) -> str:
    settings = Settings(access=Access.ADMIN, toolsets=tuple(toolsets), surfaces=(surface,))
    (served,) = build(settings).surfaces()
    tools = as_json(served.tools(Caller()))
    size = len(json.dumps(tools, ensure_ascii=False, separators=(",", ":")).encode())
    named = f"`{surface}`" + (", default tools" if DEFAULT in toolsets else "")
    return f"| {named} | {len(tools)} | {size:,} | {asks} |\n"


def _section(system: System) -> str:
    rows = "".join(
        f"| `{tool.name}` | {_native(tool.native)} | {tool.risk.value.replace('_', ' ')} |\n"
        for tool in system.tools.values()
    )
    return f"\n## {system.name}\n\n{SET_UP[system.name]}\n\n| tool | native equivalent | risk |\n|---|---|---|\n{rows}"


def _native(text: str) -> str:
    return text if "`" in text else f"`{text}`"


# -- spellings of arguments --------------------------------------------------------------------------------------------

SPELLINGS = """# Arguments of the drop-in tools

Generated from the code by `make docs`; do not edit.

This page lists every spelling that the tools of [other servers](migrating.md) accept: from their documentation and from
their code. **Bold** arguments are required. `a` / `b` are two names for one argument; if both are given, the first
counts. *Accepted* arguments are not listed in the tool's schema. *Ignored* ones have no effect, and the result says so.

Numbers may be sent as strings and strings as numbers (`"100"` and `100` are the same vmid), lists and objects also as
JSON text. Every tool that changes something accepts `dry_run`. Tools that only read ignore unknown arguments and say
so; a change with an unknown argument is refused, because the argument might alter what it does.
"""


def spellings() -> str:
    return SPELLINGS + "".join(_spellings_of(system(name)) for name in SYSTEMS)


def _spellings_of(system: System) -> str:
    rows = "".join(
        f"| `{tool.name}` | {_names(tool.parameters)} | {_accepted(tool)} | {_names(tool.accepted, ignored=True)} |\n"
        for tool in system.tools.values()
    )
    return f"\n## {system.name}\n\n| tool | arguments | accepted | ignored |\n|---|---|---|---|\n{rows}"


def _accepted(tool: Tool) -> str:
    return _names(tuple(parameter for parameter in tool.accepted if parameter not in tool.parameters))


def _names(parameters: tuple[Parameter, ...], *, ignored: bool = False) -> str:
    return ", ".join(_name(parameter) for parameter in parameters if bool(parameter.ignored) == ignored)


def _name(parameter: Parameter) -> str:
    written = " / ".join(f"`{name}`" for name in parameter.spellings)
    return f"**{written}**" if parameter.required else written
