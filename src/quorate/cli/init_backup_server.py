"""quorate init --pbs: add a Proxmox Backup Server to the configuration in a few questions."""

from __future__ import annotations

import argparse
import asyncio
import re
import tomllib
from pathlib import Path

from quorate.cli.connection import SetupStopped, as_token_id, log_in, reach_server
from quorate.cli.options import FAILED, OK
from quorate.cli.prompts import ask_until
from quorate.config import ConfigError
from quorate.config.files import toml_text, with_table, write_atomically, write_private
from quorate.config.sources import text_of
from quorate.pbs.client import grant_commands
from quorate.pbs.server import BackupServer
from quorate.problems import Problem
from quorate.pve.connection import PBS, Connection, Token
from quorate.pve.trust import fingerprint_bytes, fingerprint_text

USUAL_NAME = "pbs"
USUAL_TOKEN = "quorate@pbs!mcp"  # noqa: S105 - the name of a token


def add_backup_server(options: argparse.Namespace, file: Path) -> int:
    """Ask, check each answer, and write the table `[pbs.NAME]`; everything else in the file stays."""
    options.host = options.pbs or options.host
    name = _choose_name(options.name or USUAL_NAME, file)
    print(f"This adds the Proxmox Backup Server {name} to {file}. Nothing is written until the end.")
    try:
        endpoint, trust = reach_server(options, PBS)
        token_id = _choose_token(options)
        secret, connection = log_in(options, endpoint, trust, token_id, PBS)
        _check_datastores(name, connection)
    except SetupStopped as reason:
        print(f"\n{reason}\nNothing was written.")
        return FAILED
    secret_file = secret.file or file.with_name(f"{name}.secret")
    if secret.file is None:
        write_private(secret_file, secret.text + "\n")
    _write(file, name, connection, str(secret.file) if secret.file else secret_file.name)
    print(f"\nWritten: {file}. Check the setup with `quorate doctor`, then try `quorate call pbs_status`.")
    return OK


def _choose_name(name: str, file: Path) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name, re.ASCII):
        raise ConfigError('--name must be letters, digits, "-" and "_" only.')
    content = tomllib.loads(text_of(file, "configuration")) if file.exists() else {}
    if name in {**content.get("pbs", {}), **content.get("clusters", {})}:
        raise ConfigError(f"The name {name} is taken in {file}: choose another one with --name.")
    return name


def _choose_token(options: argparse.Namespace) -> str:
    """The token's id, after showing how to create it, unless its secret is already in a file."""
    if options.token_id or options.yes:
        token_id = as_token_id(options.token_id or USUAL_TOKEN)
    else:
        token_id = ask_until("\nAPI token (need not exist yet)", "--token-id", as_token_id, default=USUAL_TOKEN)
    if options.token_secret_file is None:
        user, _, token = token_id.partition("!")
        print("\nThese commands create the token with the right to see everything. Run them as root on the server:\n")
        if user != "root@pam":
            print(f"  proxmox-backup-manager user create {user}")
        print(f"  proxmox-backup-manager user generate-token {user} {token}")
        for command in grant_commands(token_id, "/", "Audit"):
            print(f"  {command}")
        print("\n`generate-token` shows the secret once. docs/pbs.md lists the roles for more than reading.")
    return token_id


def _check_datastores(name: str, connection: Connection) -> None:
    async def read() -> list[str]:
        server = BackupServer(name, connection)
        try:
            return await server.datastores()
        finally:
            await server.close()

    try:
        print(f"Its datastores are {', '.join(asyncio.run(read())) or 'none yet'}.")
    except Problem as problem:
        raise SetupStopped(str(problem)) from None


def _write(file: Path, name: str, connection: Connection, secret_file: str) -> None:
    assert isinstance(connection.credentials, Token)
    pinned = connection.trust.fingerprint
    described = {
        "url": connection.endpoints[0],
        "token_id": connection.credentials.id,
        "token_secret": {"file": secret_file},
        "fingerprint": fingerprint_text(fingerprint_bytes(pinned)) if pinned else None,
    }
    try:
        if not file.exists():
            write_private(file, toml_text({f"pbs.{name}": described}))
            return
        text = with_table(text_of(file, "configuration"), ("pbs", name), described)
        write_atomically(file, text, file.stat().st_mode & 0o777)
    except (OSError, ValueError) as error:
        lines = toml_text({f"pbs.{name}": described})
        raise ConfigError(f"{file} cannot be added to ({error}): add this by hand.\n{lines}") from None
