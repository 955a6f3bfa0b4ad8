"""MCP clients: the entry that each needs, and the file it goes into. Entries never contain a secret."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quorate.config import ConfigError
from quorate.config.files import backup_of, toml_text, write_atomically

NAME = "quorate"
Command = tuple[str, list[str]]
"""Program and arguments."""


@dataclass(frozen=True, slots=True)
class Client:
    title: str
    file: Callable[[Path], Path] | None
    """Its settings file, given the home folder; None if it has none."""
    key: str = "mcpServers"
    extra: Mapping[str, str] | None = None
    """Further fields of an entry."""
    toml: bool = False
    hint: str = ""

    def entry(self, command: Command) -> dict[str, Any]:
        return {**(self.extra or {}), "command": command[0], "args": command[1]}

    def snippet(self, command: Command) -> str:
        if self.file is None:
            return self.hint
        if self.toml:
            return toml_text({f"{self.key}.{NAME}": self.entry(command)}).rstrip()
        return json.dumps({self.key: {NAME: self.entry(command)}}, indent=2, ensure_ascii=False)


def _application(name: str, *below: str) -> Callable[[Path], Path]:
    """A settings file of a desktop application on each platform."""

    def locate(home: Path) -> Path:
        if sys.platform == "darwin":
            return home.joinpath("Library", "Application Support", name, *below)
        if sys.platform == "win32":
            return Path(os.environ.get("APPDATA", home / "AppData" / "Roaming")).joinpath(name, *below)
        return home.joinpath(".config", name, *below)

    return locate


_STDIO = {"type": "stdio"}
OPEN_WEBUI = """\
Open WebUI connects to MCP servers over HTTP. Start one and create a token for it:
  quorate serve --http 127.0.0.1:8806{config}
  quorate tokens{config} create open-webui
then add it under Admin Settings, External Tools: type MCP (Streamable HTTP), URL http://127.0.0.1:8806/mcp,
authentication Bearer, and the token as the key."""
CLIENTS: Mapping[str, Client] = {
    "claude-desktop": Client("Claude Desktop", _application("Claude", "claude_desktop_config.json")),
    "claude-code": Client("Claude Code", lambda home: home / ".claude.json", extra=_STDIO),
    "cursor": Client("Cursor", lambda home: home / ".cursor" / "mcp.json"),
    "vscode": Client("VS Code", _application("Code", "User", "mcp.json"), key="servers", extra=_STDIO),
    "codex": Client("Codex CLI", lambda home: home / ".codex" / "config.toml", key="mcp_servers", toml=True),
    "gemini": Client("Gemini CLI", lambda home: home / ".gemini" / "settings.json"),
    "open-webui": Client("Open WebUI", None, hint=OPEN_WEBUI),
}


def own_command(config: Path) -> Command:
    """The command that starts the server, with its full path, because desktop clients have a minimal PATH."""
    program = Path(sys.argv[0])
    arguments = ["serve", "--config", str(config)]
    if program.stem == NAME and program.is_file():
        return str(program.absolute()), arguments
    return sys.executable, ["-m", NAME, *arguments]


def write_entry(client: Client, command: Command, home: Path, *, replace: bool) -> list[str]:
    """Add the entry to the client's file and preserve the rest; returns what was done, in lines."""
    assert client.file is not None
    file = client.file(home)
    old = _text(file)
    new = (_merge_toml if client.toml else _merge_json)(client, command, old, file, replace)
    if new == old:
        return [f"{file} already has it."]
    done = []
    mode = 0o600
    if file.exists():
        mode = file.stat().st_mode & 0o777
        done.append(f"The old file was saved as {backup_of(file)}.")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, new, mode)
    return [*done, f"Written to {file}; restart {client.title}."]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): add the lines above to it by hand.") from None


def _merge_json(client: Client, command: Command, old: str, file: Path, replace: bool) -> str:
    whole = _decode(old, file)
    servers = whole.setdefault(client.key, {})
    if not isinstance(servers, dict):
        raise ConfigError(f"{client.key} in {file} is not an object: add the lines above by hand.")
    entry = client.entry(command)
    present = servers.get(NAME)
    if present == entry:
        return old
    if present is not None and not replace:
        raise ConfigError(f"{file} already has another entry {NAME}: --overwrite replaces it.")
    # Other fields of the present entry, such as variables or permissions, belong to the user.
    servers[NAME] = {**present, **entry} if isinstance(present, dict) else entry
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _decode(old: str, file: Path) -> dict[str, Any]:
    """Strict, because rewriting a file with comments or duplicate keys would lose something."""

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("it has a duplicate key")
        return dict(pairs)

    try:
        whole = json.loads(old, object_pairs_hook=object_of) if old.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not plain JSON ({error}): add the lines above to it by hand.") from None
    if not isinstance(whole, dict):
        raise ConfigError(f"{file} does not contain an object: add the lines above to it by hand.")
    return whole


def _merge_toml(client: Client, command: Command, old: str, file: Path, replace: bool) -> str:  # noqa: ARG001
    """Append the table; comments and order of the rest are preserved, and an existing entry is never replaced."""
    try:
        before = tomllib.loads(old)
        present = before.get(client.key, {}).get(NAME)
        if present == client.entry(command):
            return old
        if present is not None:
            raise ConfigError(f"{file} already has another entry {NAME}: change it by hand to the lines above.")
        new = (old.rstrip("\n") + "\n\n" if old.strip() else "") + client.snippet(command) + "\n"
        tomllib.loads(new)
    except (tomllib.TOMLDecodeError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be added to ({error}): add the lines above to it by hand.") from None
    return new
