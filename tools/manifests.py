"""The manifests by which others install Quorate, and the links for one click: made here, so that all of them agree.

The version stands in `src/quorate/__init__.py` and nowhere else.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from quorate import __version__

ROOT = Path(__file__).parent.parent
DESCRIPTION = "See and run Proxmox VE clusters: safe by default, every change checked, shown and recorded."
LINKS = re.compile(r"(?<=<!-- links -->\n).*?(?=<!-- end of links -->)", re.DOTALL)
VARIABLES = {
    "PROXMOX_URL": ("Address", "A node of the cluster, such as https://pve1.example.com:8006", False, True),
    "PROXMOX_TOKEN_ID": ("API token", "user@realm!name", False, True),
    "PROXMOX_TOKEN_SECRET": ("Secret of the token", "As `pveum user token add` shows it, once", True, True),
    "PROXMOX_FINGERPRINT": (
        "Fingerprint",
        "SHA-256 of the certificate, if it is PVE's own; `pvenode cert info` on the node shows it",
        False,
        False,
    ),
    "QUORATE_ACCESS": ("Access", "How much may be done: read, operate or admin", False, False),
}
"""Name -> title, meaning, whether it is secret, whether it is needed."""


def manifests() -> dict[Path, str]:
    install = ROOT / "docs" / "install.md"
    return {
        ROOT / "packaging" / "mcpb" / "manifest.json": _json(_bundle()),
        ROOT / "server.json": _json(_registry()),
        ROOT / ".claude-plugin" / "plugin.json": _json(_plugin()),
        install: LINKS.sub(lambda _: _links(), install.read_text()),
    }


def _bundle() -> dict[str, Any]:
    """A desktop bundle: `make mcpb` packs it with the source, and the host's uv brings the dependencies."""
    return {
        "manifest_version": "0.4",
        "name": "quorate",
        "display_name": "Quorate for Proxmox VE",
        "version": __version__,
        "description": DESCRIPTION,
        "author": {"name": "The Quorate contributors"},
        "license": "MIT",
        "keywords": ["proxmox", "homelab", "virtualization"],
        "server": {
            "type": "uv",
            "entry_point": "src/quorate/__main__.py",
            "mcp_config": {
                "command": "uv",
                "args": ["run", "--directory", "${__dirname}", "quorate", "serve"],
                "env": {name: f"${{user_config.{_option(name)}}}" for name in VARIABLES},
            },
        },
        "user_config": {
            _option(name): {
                "type": "string",
                "title": title,
                "description": meaning,
                "sensitive": secret,
                "required": needed,
                **({"default": "read" if name == "QUORATE_ACCESS" else ""} if not needed else {}),
            }
            for name, (title, meaning, secret, needed) in VARIABLES.items()
        },
        "compatibility": {"platforms": ["darwin", "linux", "win32"], "runtimes": {"python": ">=3.11"}},
        "tools_generated": True,
    }


def _option(variable: str) -> str:
    return variable.lower().partition("_")[2]


def _registry() -> dict[str, Any]:
    return {
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": "io.github.quorate/quorate",
        "title": "Quorate for Proxmox VE",
        "description": DESCRIPTION,
        "version": __version__,
        "packages": [
            {
                "registryType": "pypi",
                "identifier": "quorate",
                "version": __version__,
                "runtimeHint": "uvx",
                "packageArguments": [{"type": "positional", "value": "serve"}],
                "transport": {"type": "stdio"},
                "environmentVariables": [
                    {"name": name, "description": meaning, "isRequired": needed, "isSecret": secret}
                    for name, (_, meaning, secret, needed) in VARIABLES.items()
                ],
            }
        ],
    }


def _plugin() -> dict[str, Any]:
    return {
        "name": "quorate",
        "version": __version__,
        "description": DESCRIPTION,
        "license": "MIT",
        "keywords": ["proxmox", "homelab"],
        "mcpServers": {"quorate": _started()},
    }


def _started() -> dict[str, Any]:
    """Without a word on the cluster: that stands in the config file which `quorate init` writes."""
    return {"command": "uvx", "args": ["quorate", "serve"]}


def _links() -> str:
    compact = json.dumps(_started(), separators=(",", ":"))
    cursor = quote(base64.b64encode(compact.encode()).decode(), safe="")
    return (
        f"- [Add to Cursor](https://cursor.com/install-mcp?name=quorate&config={cursor})\n"
        f"- [Add to VS Code](https://insiders.vscode.dev/redirect/mcp/install?name=quorate&config={quote(compact)})\n"
    )


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
