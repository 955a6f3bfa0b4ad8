"""quorate init: set up a cluster and a client in a few questions, or add one of them to what is there."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.cli.clients import CLIENTS, own_command, write_entry
from quorate.cli.connection import (
    USUAL_TOKEN,
    SetupStopped,
    TokenSecret,
    check_privileges,
    choose_token,
    log_in,
    reach_server,
)
from quorate.cli.options import FAILED, OK, add_command
from quorate.cli.prompts import TRIES, ask_until, choose, choose_passphrase, confirm, is_interactive
from quorate.config import Access, ConfigError, load
from quorate.config.files import (
    backup_of,
    home,
    toml_text,
    usual_config_file,
    with_table,
    write_atomically,
    write_private,
)
from quorate.config.sources import text_of
from quorate.config.values import toolset_names
from quorate.operations.registry import DEFAULT, DEFAULT_TOOLS, HOMELAB, TOOLSETS, describe_unknown, expand, in_use
from quorate.problems import Problem
from quorate.pve.connection import SystemClock, Token
from quorate.pve.trust import fingerprint_bytes, fingerprint_text
from quorate.state.passphrase import Passphrase
from quorate.state.store import open_store

if TYPE_CHECKING:
    from quorate.pve.connection import Connection


LEVELS = {
    "read": "look at everything, change nothing",
    "operate": "also start, create, change and back up",
    "admin": "also delete, cut power and manage users, each time after your approval",
}
USUAL_NAME = "home"
NO_CLIENT = "none"


def add(commands: Any) -> None:
    init = add_command(commands, "init", _init)
    init.add_argument("--host", metavar="ADDRESS", help="a node of the cluster, such as pve1.example.com or 10.0.0.5")
    init.add_argument("--pbs", metavar="ADDRESS", nargs="?", const="", help="add a Proxmox Backup Server instead")
    init.add_argument("--access", choices=tuple(LEVELS), help="access level")
    init.add_argument(
        "--toolsets",
        metavar="A,B",
        help="tools to serve: default, +NAME to add to it, all, homelab; only hosts and the like: no Proxmox VE needed",
    )
    init.add_argument("--pve", choices=("8", "9"), help="version of Proxmox VE, for the script to run there")
    init.add_argument("--name", metavar="NAME", help=f"name of the cluster (default: {USUAL_NAME})")
    init.add_argument("--fingerprint", metavar="SHA256", help="fingerprint of the certificate, if you have compared it")
    init.add_argument("--token-id", metavar="USER@REALM!NAME", help=f"the API token (default: {USUAL_TOKEN})")
    init.add_argument("--token-secret-file", metavar="FILE", type=Path, help="a file that contains its secret")
    init.add_argument("--config", metavar="FILE", type=Path, help="the file to write (default: the standard one)")
    init.add_argument("--overwrite", action="store_true", help="start a new file; the old one is saved as a copy")
    init.add_argument("--client", choices=(*CLIENTS, NO_CLIENT), help="show the entry for this client")
    init.add_argument("--write", action="store_true", help="also write it to the client's own file")
    init.add_argument("--yes", action="store_true", help="use the default answers and continue")
    init.epilog = (
        "The token's secret is never an argument: it is typed without echo or read from a file. If the configuration "
        "exists, --client alone sets up another client for it; otherwise a cluster is added to it under its own name, "
        "and everything else in the file is preserved."
    )


def _init(options: argparse.Namespace) -> int:
    file = (options.config or usual_config_file(os.environ)).expanduser().absolute()
    options.adds = file.exists() and not options.overwrite
    if options.pbs is not None:
        from quorate.cli.init_backup_server import add_backup_server  # rarely needed

        return add_backup_server(options, file)
    if options.adds and _only_client(options):
        _set_up_client(options, file)
        _suggest(options, file, load(file=file, tolerate=True).toolsets)
        return OK
    if options.adds:
        print(f"This adds a cluster to {file} and preserves the rest. Nothing is written until the end.")
    else:
        what = "plain hosts" if _needs_no_cluster(options) else "a cluster"
        print(f"This sets up {what} in {file}. Nothing is written until the end.")
    options.name = _name(options, _clusters_in(file) if options.adds else ())
    if options.adds and options.toolsets:
        raise ConfigError(f"--toolsets applies to all clusters: change `toolsets` in {file} instead.")
    if _needs_no_cluster(options):
        return _init_hosts_only(options, file)
    try:
        chosen, connection, token_secret = _ask_all(options, file)
    except SetupStopped as reason:
        print(f"\n{reason}\n{_continuation(options)}")
        return FAILED
    except KeyboardInterrupt:
        print(f"\n\n{_continuation(options)}")
        raise
    _write(options, file, chosen, connection, token_secret)
    _set_up_client(options, file)
    if options.access == Access.ADMIN.value:
        _offer_passphrase(options, file)
    _suggest(options, file, chosen)
    return OK


def _needs_no_cluster(options: argparse.Namespace) -> bool:
    """Whether the tools that were chosen by option work on plain hosts alone."""
    if not options.toolsets or options.host:
        return False
    try:
        used = in_use(expand(toolset_names(options.toolsets.replace(",", " ").split())))
    except KeyError as unknown:
        raise ConfigError(f"{describe_unknown(unknown.args[0])}.") from None
    return all(name in HOMELAB for name in used)


def _init_hosts_only(options: argparse.Namespace, file: Path) -> int:
    """A configuration without a cluster: hosts are registered later, one call each."""
    options.access, chosen = _level(options), _toolsets(options)
    _save(options, file, toml_text({"": {"access": options.access, "toolsets": chosen}}), file)
    print(f"\nWritten: {file} (readable only by you).")
    _set_up_client(options, file)
    if options.access == Access.ADMIN.value:
        _offer_passphrase(options, file)
    config = _config_option(file)
    print(
        f"\nDone. Check the setup, then add the first host:\n  quorate doctor{config}\n  quorate trust ADDRESS{config}"
    )
    print(f"  quorate call host_register host=NAME address=ADDRESS user=LOGIN --access operate{config}")
    return OK


def _only_client(options: argparse.Namespace) -> bool:
    """Whether the configuration stays as it is and a client is set up for it."""
    if options.host or options.name or options.token_id:
        return False
    if options.client is not None:
        return bool(options.client != NO_CLIENT)
    if options.yes or not is_interactive():
        return False
    print("A configuration already exists.")
    return choose("Add a client or a cluster?", "--client", ("client", "cluster"), default="client") == "client"


def _ask_all(options: argparse.Namespace, file: Path) -> tuple[Sequence[str] | None, Connection, TokenSecret]:
    """The toolsets, the connection and its secret; every answer is kept in `options`.

    Questions are asked outside an event loop, because Ctrl-C would not reach them inside one.
    """
    endpoint, trust = reach_server(options)
    options.access = level = _level(options)
    chosen = load(file=file, tolerate=True).toolsets if options.adds else _toolsets(options)
    toolsets = _toolsets_for_pve(chosen)
    token_id = choose_token(options, level, toolsets)
    token_secret, connection = log_in(options, endpoint, trust, token_id)
    check_privileges(options, connection, level, toolsets)
    return chosen, connection, token_secret


def _continuation(options: argparse.Namespace) -> str:
    return f"Nothing was written. To continue with the same answers:\n  {_same_answers(options)}"


def _same_answers(options: argparse.Namespace) -> str:
    """The command that skips the questions that were answered."""
    names = ("host", "access", "toolsets", "pve", "name", "fingerprint", "token_id", "token_secret_file", "config")
    words = ["quorate", "init"]
    for name in (*names, "client"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join([*words, *(f"--{flag}" for flag in ("overwrite", "write") if getattr(options, flag))])


# -- the questions -----------------------------------------------------------------------------------------------------


def _clusters_in(file: Path) -> tuple[str, ...]:
    try:
        return tuple(tomllib.loads(text_of(file, "configuration")).get("clusters", ()))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML ({error}): correct it, or start over with --overwrite.") from None


def _name(options: argparse.Namespace, taken: Sequence[str]) -> str:
    def usable(name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name, re.ASCII):
            raise ConfigError('--name must be letters, digits, "-" and "_" only.')
        if name in taken:
            raise ConfigError(
                f"There is already a cluster {name}: choose another --name, or start over with --overwrite."
            )
        return name

    if options.name is not None or not options.adds:
        return usable(options.name or USUAL_NAME)
    if not is_interactive():
        raise ConfigError(
            "The configuration already exists: pass --name NAME to add a cluster to it, --client NAME to set up "
            "another client, --config for another file, or --overwrite to start a new one."
        )
    if taken:
        print(f"Existing clusters: {', '.join(taken)}.")
    return ask_until("Name of the new cluster", "--name", usable, default="" if USUAL_NAME in taken else USUAL_NAME)


def _level(options: argparse.Namespace) -> str:
    if options.access:
        return str(options.access)
    if options.yes:
        return Access.READ.value
    if is_interactive():
        print("\nWhat may the assistant do?")
        for name, about in LEVELS.items():
            print(f"  {name:<8} {about}")
    return choose("Access", "--access", tuple(LEVELS), default="read")


def _toolsets(options: argparse.Namespace) -> tuple[str, ...] | None:
    """The toolsets as the configuration will name them; None for the default."""

    def valid(text: str) -> tuple[str, ...]:
        names = toolset_names(text.replace(",", " ").split())
        _toolsets_for_pve(names)
        return names

    chosen = options.toolsets
    if chosen is None and is_interactive() and not options.yes:
        print("\nWhich tools does the assistant get? Each one costs it tokens at every start.")
        print(f"  default  everyday tools of {', '.join(DEFAULT_TOOLS)}")
        print(f"  all      every toolset, also {', '.join(name for name in TOOLSETS if name not in DEFAULT_TOOLS)}")
        print(f"  homelab  hosts and networks: {', '.join(HOMELAB)}")
        print("Write + to add toolsets to the default, such as +firewall,+homelab.")
        names = ask_until("Toolsets", "--toolsets", valid, default=DEFAULT)
    else:
        names = valid(chosen or DEFAULT)
    options.toolsets = ",".join(names)
    return None if names == (DEFAULT,) else names


def _toolsets_for_pve(names: Sequence[str] | None) -> list[str]:
    """The toolsets in use that need privileges in PVE."""
    try:
        used = in_use(expand(names or (DEFAULT,)))
    except KeyError as unknown:
        raise ConfigError(f"{describe_unknown(unknown.args[0])}.") from None
    return [name for name in used if name in TOOLSETS] or ["cluster"]


# -- what is written ---------------------------------------------------------------------------------------------------


def _write(
    options: argparse.Namespace,
    file: Path,
    toolsets: Sequence[str] | None,
    connection: Connection,
    secret: TokenSecret,
) -> None:
    assert isinstance(connection.credentials, Token)
    secret_file = secret.file or file.with_name(f"{options.name}.secret")
    pinned = connection.trust.fingerprint
    described = {
        "url": connection.endpoints[0],
        "token_id": connection.credentials.id,
        "token_secret": {"file": str(secret.file) if secret.file else secret_file.name},
        "fingerprint": fingerprint_text(fingerprint_bytes(pinned)) if pinned else None,
    }
    text = (
        _with_cluster(file, options.name, {**described, "access": options.access})
        if options.adds
        else toml_text({"": {"access": options.access, "toolsets": toolsets}, f"clusters.{options.name}": described})
    )
    _save(options, file, text, *((file,) if secret.file else (file, secret_file)), secret=secret)
    print(
        f"\nWritten: {file}"
        + ("" if secret.file else f", and the secret in {secret_file}")
        + " (readable only by you)."
    )


def _save(
    options: argparse.Namespace, file: Path, text: str, *replaced: Path, secret: TokenSecret | None = None
) -> None:
    """Write the configuration and, unless it is in a file of its own, the token's secret; the old files are kept."""
    try:
        for old in [path for path in replaced if path.exists()]:
            print(f"The old {old.name} was saved as {backup_of(old)}.")
        if secret is not None and secret.file is None:
            write_private(replaced[-1], secret.text + "\n")
        if options.adds:
            write_atomically(file, text, file.stat().st_mode & 0o777)
        else:
            write_private(file, text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}.") from None


def _with_cluster(file: Path, name: str, described: Mapping[str, object]) -> str:
    try:
        return with_table(text_of(file, "configuration"), ("clusters", name), described)
    except ValueError as error:
        lines = toml_text({f"clusters.{name}": described})
        raise ConfigError(f"{file} cannot be added to ({error}): add this by hand.\n{lines}") from None


def _set_up_client(options: argparse.Namespace, file: Path) -> None:
    chosen = options.client
    if chosen is None:
        if options.yes or not is_interactive():
            return
        chosen = choose("\nWhich client will use it?", "--client", (*CLIENTS, NO_CLIENT), default=NO_CLIENT)
    if chosen == NO_CLIENT:
        return
    client, started = CLIENTS[chosen], own_command(file)
    if client.file is None:
        print("\n" + client.hint.format(config=f" --config {file}"))
        return
    place = client.file(home(os.environ))
    print(f"\nEntry for {client.title} in {place}:\n\n{client.snippet(started)}\n")
    if options.write or (
        options.client is None and confirm("Write it there? Everything else in the file is preserved.")
    ):
        print("\n".join(write_entry(client, started, home(os.environ), replace=options.overwrite)))


def _offer_passphrase(options: argparse.Namespace, file: Path) -> None:
    """At the level at which a client that cannot ask its person needs an operator."""

    async def offer() -> bool:
        async with open_store(load(file=file, tolerate=True).state, clock=SystemClock()) as store:
            if await Passphrase(store).is_set():
                return True
            if options.yes or not is_interactive():
                return False
            print(
                "\nDestructive calls wait for a person. The operator's passphrase approves them where the assistant's"
            )
            print("client cannot ask. Set it now, or press Enter to do so later.")
            for _ in range(TRIES):
                try:
                    return await choose_passphrase(store, optional=True)
                except Problem as problem:
                    print(problem)
            return False

    if not asyncio.run(offer()):
        print(f"\nSet the operator's passphrase later: quorate approvals{_config_option(file)} passphrase")


def _suggest(options: argparse.Namespace, file: Path, toolsets: Sequence[str] | None) -> None:
    """Commands that work with the file as it is now."""
    used, config = _toolsets_for_pve(toolsets), _config_option(file)
    first = "call guest_list" if "guests" in used else "tools"
    print(f"\nDone. Check the setup, then try it:\n  quorate doctor{config}\n  quorate {first}{config}")
    if "inside" in used and options.access != Access.READ.value:
        print("Commands in containers also need SSH to their node; `quorate doctor` says what is missing.")


def _config_option(file: Path) -> str:
    return "" if file == usual_config_file(os.environ).absolute() else f" --config {shlex.quote(str(file))}"
