"""quorate trust: trust the SSH key of a host; show the certificate of a backup server."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh

from quorate.cli.options import FAILED, OK, add_command, with_store
from quorate.cli.prompts import confirm, is_interactive
from quorate.config import ConfigError, load
from quorate.config.files import usual_pins
from quorate.homelab.host import Hosts
from quorate.pipeline.redaction import clean_text
from quorate.problems import NotConfigured
from quorate.pve.connection import PBS
from quorate.pve.trust import fetch_certificate, objection
from quorate.ssh.host_keys import PREFERRED, entry_name, fingerprint_command, key_type, load_pins, pin, unpin
from quorate.ssh.target import SSH_PORT, split_port

if TYPE_CHECKING:
    from quorate.config.pbs import BackupServerSettings
    from quorate.state.store import Store


CONNECT_SECONDS = 15


def add(commands: Any) -> None:
    trust = add_command(commands, "trust", _trust)
    trust.add_argument(
        "host",
        metavar="HOST[:PORT]",
        nargs="?",
        help="address of a node, guest or host; or the name of a registered host, or of a backup server in the "
        "configuration, whose certificate is shown",
    )
    trust.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")
    what = trust.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="list the trusted SSH keys")
    what.add_argument("--remove", action="store_true", help="no longer trust the SSH key of this host")


def _trust(options: argparse.Namespace) -> int:
    pins = usual_pins(os.environ)
    if options.list:
        return _list(pins)
    if not options.host:
        raise ConfigError("Name a host: quorate trust HOST[:PORT].")
    if (server := _find_backup_server(options)) is not None:
        return _show_certificate(server)
    host, port = _registered_address(options) or _address(options.host)
    if options.remove:
        return _remove(pins, host, port)
    if not is_interactive():
        raise ConfigError("quorate trust asks a person: run it at a terminal.")
    return _trust_key(pins, host, port)


def _find_backup_server(options: argparse.Namespace) -> BackupServerSettings | None:
    """The configured backup server of that name, if any."""
    settings = load(file=options.config, tolerate=True)
    return next((server for server in settings.backup_servers if server.name == options.host), None)


def _show_certificate(server: BackupServerSettings) -> int:
    """Show the certificate of a backup server, and what to set if it is not trusted."""
    endpoint, trust = server.connection.endpoints[0], server.connection.trust
    try:
        shown = asyncio.run(fetch_certificate(endpoint))
        why_not = asyncio.run(objection(endpoint, trust, shown))
    except (OSError, TimeoutError) as error:
        print(f"quorate: no certificate from {endpoint}: {error or 'no answer'}", file=sys.stderr)
        return FAILED
    print(f"The certificate of {server.name} ({endpoint}):")
    for label, text in (("subject", shown.subject), ("issuer", shown.issuer), ("SHA-256", shown.fingerprint)):
        print(f"  {label:<8} {clean_text(text)}")
    print(f"  {'valid':<8} {shown.begins:%Y-%m-%d} to {shown.ends:%Y-%m-%d}")
    if why_not is None:
        print("It is trusted." if trust.verify or trust.fingerprint else "It is not checked (verify = false).")
        return OK
    print(f"It is not trusted: {why_not}.")
    print(
        f"Compare it with `{PBS.show_certificate}` on the server. If it is the same, set this in [pbs.{server.name}]:"
    )
    print(f'  fingerprint = "{shown.fingerprint}"')
    return FAILED


def _registered_address(options: argparse.Namespace) -> tuple[str, int] | None:
    """The address of the registered host of that name, if any."""
    addresses: list[tuple[str, int]] = []

    async def run(store: Store) -> int:
        host = await Hosts(store).find(options.host)
        if host is not None and host.jump:
            raise ConfigError(
                f"{host} is behind the jump host {host.jump}: log in once with `ssh -J`, which asks the same question."
            )
        addresses.extend([(host.address, host.port)] if host else [])
        return OK

    if any(character in options.host for character in ".:[]@/"):  # an address
        return None
    with_store(options, run)
    if addresses:
        print(f"The registered host {options.host} is at {addresses[0][0]}.")
    return addresses[0] if addresses else None


def _address(text: str) -> tuple[str, int]:
    try:
        host, port = split_port(text)
    except NotConfigured:
        host, port = "", None
    if not host or host.startswith("-") or any(character.isspace() or character in ",*?!|#@" for character in host):
        raise ConfigError(f"{text!r} is not a host: write HOST, HOST:PORT or [ADDRESS]:PORT.")
    return host, port or SSH_PORT


def _list(pins: Path) -> int:
    keys = load_pins(pins)
    for key in keys:
        print(f"{key.name}  {key.kind}  {key.fingerprint}")
    if not keys:
        print(f"There are no trusted keys ({pins}).")
    return OK


def _remove(pins: Path, host: str, port: int) -> int:
    if not unpin(pins, host, port):
        print(f"quorate: no key of {entry_name(host, port)} is trusted", file=sys.stderr)
        return FAILED
    print(f"The key of {entry_name(host, port)} is no longer trusted.")
    return OK


def _trust_key(pins: Path, host: str, port: int) -> int:
    key = asyncio.run(_key_of(host, port))
    name = entry_name(host, port)
    if key is None:
        print(f"quorate: no SSH key from {name}; check the address and that an SSH server runs there", file=sys.stderr)
        return FAILED
    fingerprint = key.get_fingerprint()
    old = next((pin for pin in load_pins(pins) if pin.name == name), None)
    if old is not None and old.fingerprint == fingerprint:
        print(f"The key of {name} is already trusted: {old.kind} {fingerprint}")
        return OK
    if old is not None:
        print(f"WARNING: ANOTHER KEY OF {name} IS TRUSTED: {old.kind} {old.fingerprint}")
    print(f"{name} has this key:\n  {key_type(key)} {fingerprint}")
    print(f"Compare it with the output of this command on the host: {fingerprint_command(key)}")
    if not confirm("Do they match?"):
        print("Nothing was changed.")
        return FAILED
    pin(pins, host, port, key)
    print(f"Trusted; stored in {pins}.")
    return OK


async def _key_of(host: str, port: int) -> asyncssh.SSHKey | None:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await asyncssh.get_server_host_key(host, port, server_host_key_algs=PREFERRED, config=None)
    except (OSError, asyncssh.Error, TimeoutError):
        return None
