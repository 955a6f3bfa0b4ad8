"""Generate the package manifests and one-click links, so that all of them agree.

The version comes from `src/quorate/__init__.py`; name, description, authors and repository from `pyproject.toml`.
"""

from __future__ import annotations

import base64
import json
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from quorate import __version__
from quorate.config import Access

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ABOUT: dict[str, Any] = {
    "version": __version__,
    "description": PROJECT["description"],
    "author": {"name": PROJECT["authors"][0]["name"]},
    "license": PROJECT["license"],
    "keywords": PROJECT["keywords"],
}
REPOSITORY: str = PROJECT.get("urls", {}).get("Repository", "")
TITLE = "Quorate for Proxmox VE"
LINKS = re.compile(r"(?<=<!-- links -->\n).*?(?=<!-- end of links -->)", re.DOTALL)
VARIABLES = {
    "PROXMOX_URL": ("Address", "A node of the cluster, such as https://pve1.example.com:8006", False, True),
    "PROXMOX_TOKEN_ID": ("API token", "user@realm!name", False, True),
    "PROXMOX_TOKEN_SECRET": ("Token secret", "As shown once by `pveum user token add`", True, True),
    "PROXMOX_FINGERPRINT": (
        "Fingerprint",
        "SHA-256 fingerprint of a certificate issued by PVE; `pvenode cert info` on the node shows it",
        False,
        False,
    ),
    "QUORATE_ACCESS": ("Access", "What callers may do: read, operate or admin", False, False),
}
"""Name -> title, meaning, secret, required."""


def manifests() -> dict[Path, str]:
    install = ROOT / "docs" / "install.md"
    return {
        ROOT / "packaging" / "mcpb" / "manifest.json": _json(_bundle()),
        ROOT / "server.json": _json(_registry()),
        ROOT / ".claude-plugin" / "plugin.json": _json(_plugin()),
        ROOT / ".claude-plugin" / "marketplace.json": _json(_marketplace()),
        install: LINKS.sub(lambda _: _links(), install.read_text()),
    }


def _bundle() -> dict[str, Any]:
    """A desktop bundle: `make mcpb` packs it with the source, and uv on the host installs the dependencies."""
    return {
        "manifest_version": "0.4",
        "name": PROJECT["name"],
        "display_name": TITLE,
        **ABOUT,
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
        "compatibility": {
            "platforms": ["darwin", "linux", "win32"],
            "runtimes": {"python": PROJECT["requires-python"]},
        },
        "tools_generated": True,
    }


def _option(variable: str) -> str:
    return variable.lower().partition("_")[2]


def _registry() -> dict[str, Any]:
    """For the public registry, which expects the same name in the package's README (`mcp-name:`)."""
    return {
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": registered_name(),
        "title": TITLE,
        "description": PROJECT["description"],
        "version": __version__,
        **({"repository": {"url": REPOSITORY, "source": _forge(REPOSITORY)}} if REPOSITORY else {}),
        "packages": [
            {
                "registryType": "pypi",
                "identifier": PROJECT["name"],
                "version": __version__,
                "runtimeHint": "uvx",
                "packageArguments": [{"type": "positional", "value": "serve"}],
                "transport": {"type": "stdio"},
                "environmentVariables": [
                    {
                        "name": name,
                        "description": meaning,
                        "isRequired": needed,
                        "isSecret": secret,
                        **({"default": "read", "choices": [*Access]} if name == "QUORATE_ACCESS" else {}),
                    }
                    for name, (_, meaning, secret, needed) in VARIABLES.items()
                ],
            }
        ],
    }


def registered_name(repository: str = REPOSITORY) -> str:
    """A name that the repository's owner can prove is theirs; without a repository, one that nobody can claim."""
    address = urlsplit(repository or "https://example.com")
    host, owner = str(address.hostname), address.path.strip("/").partition("/")[0]
    space = f"io.github.{owner}" if host == "github.com" else ".".join(reversed(host.split(".")))
    return f"{space}/{PROJECT['name']}"


def _forge(repository: str) -> str:
    return str(urlsplit(repository).hostname).removeprefix("www.").partition(".")[0]


def _plugin() -> dict[str, Any]:
    """A plugin is a folder, so the server runs from the source in it."""
    server = {"command": "uvx", "args": ["--from", "${CLAUDE_PLUGIN_ROOT}", "quorate", "serve"]}
    return {"name": PROJECT["name"], **ABOUT, "mcpServers": {"quorate": server}}


def _marketplace() -> dict[str, Any]:
    """Makes this folder a marketplace that offers itself as a plugin."""
    plugin = {"name": PROJECT["name"], "source": "./", "description": PROJECT["description"]}
    return {
        "name": PROJECT["name"],
        "owner": ABOUT["author"],
        "metadata": {"description": PROJECT["description"]},
        "plugins": [plugin],
    }


def _server_command() -> dict[str, Any]:
    """Without cluster settings: those are in the configuration file that `quorate init` writes."""
    return {"command": "uvx", "args": [PROJECT["name"], "serve"]}


def _links() -> str:
    compact = json.dumps(_server_command(), separators=(",", ":"))
    cursor = quote(base64.b64encode(compact.encode()).decode(), safe="")
    return (
        f"- [Add to Cursor](https://cursor.com/install-mcp?name=quorate&config={cursor})\n"
        f"- [Add to VS Code](https://insiders.vscode.dev/redirect/mcp/install?name=quorate&config={quote(compact)})\n"
    )


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
