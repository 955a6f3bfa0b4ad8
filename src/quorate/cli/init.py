"""quorate init: from nothing to a cluster that a client can use, in a few questions."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.cli.asking import TRIES, agrees, ask, choose, secret, somebody_is_there
from quorate.cli.clients import CLIENTS, own_command, write_entry
from quorate.cli.options import FAILED, OK, command
from quorate.config import Access, ConfigError
from quorate.config.folders import home, usual_config_file
from quorate.config.writing import backup_of, toml_text, with_table, write_private, write_whole

if TYPE_CHECKING:
    from quorate.checkup.findings import Findings
    from quorate.pve.certificate import Certificate
    from quorate.pve.connection import Connection, Trust

LEVELS = {
    "read": "look at everything, change nothing",
    "operate": "also start, create, change, back up",
    "admin": "also delete, cut power, manage users; a person is asked before",
}
USUAL_NAME = "home"
USUAL_TOKEN = "quorate@pve!mcp"  # noqa: S105
NO_CLIENT = "none"
_TOKEN_ID = re.compile(r"[^\s:/@!']+@[A-Za-z][\w.-]+![A-Za-z][\w.-]+", re.ASCII)


class Stopped(Exception):
    """It cannot go on; the text says why and what to do. Nothing was written."""


@dataclass(frozen=True, slots=True)
class TokenSecret:
    text: str
    file: Path | None
    """Where the person keeps it already."""


def add(commands: Any) -> None:
    init = command(commands, "init", _init, "set up a cluster and a client, step by step; asks what is not given")
    init.add_argument("--host", metavar="ADDRESS", help="a node of the cluster, such as pve1.example.com or 10.0.0.5")
    init.add_argument("--access", choices=tuple(LEVELS), help="how much may be done")
    init.add_argument("--pve", choices=("8", "9"), help="the version of Proxmox VE, for the commands to be run there")
    init.add_argument("--name", metavar="NAME", help=f"what to call the cluster (default: {USUAL_NAME})")
    init.add_argument("--fingerprint", metavar="SHA256", help="of the certificate, if you have compared it already")
    init.add_argument("--token-id", metavar="USER@REALM!NAME", help=f"the API token (default: {USUAL_TOKEN})")
    init.add_argument("--token-secret-file", metavar="FILE", type=Path, help="a file that holds its secret")
    init.add_argument("--config", metavar="FILE", type=Path, help="the file to write (default: the usual one)")
    init.add_argument("--overwrite", action="store_true", help="begin the file anew; a copy of the old is kept")
    init.add_argument("--client", choices=(*CLIENTS, NO_CLIENT), help="show how this client is set up")
    init.add_argument("--write", action="store_true", help="and write it into the client's own file")
    init.add_argument("--yes", action="store_true", help="take the usual answer where none is given, and go on")
    init.epilog = (
        "The secret of a token is never an argument: it is typed unseen, or read from a file. Where the configuration "
        "exists already, the cluster is added to it under a name of its own; all else in the file stays as it is."
    )


def _init(options: argparse.Namespace) -> int:
    file = (options.config or usual_config_file(os.environ)).expanduser().absolute()
    options.adds = file.exists() and not options.overwrite
    if options.adds:
        print(f"A cluster is added to {file}; what is there stays. Nothing is written before the end.")
    else:
        print(f"This sets up a cluster in {file}. Nothing is written before the end.")
    options.name = _name(options, _clusters_in(file) if options.adds else ())
    try:
        return _set_up(options, file)
    except Stopped as reason:
        print(f"\n{reason}\nNothing was written.")
        return FAILED


def _set_up(options: argparse.Namespace, file: Path) -> int:
    """Questions are asked outside any event loop: inside one, Ctrl-C would not reach them."""
    endpoint = _endpoint(options)
    level = _level(options)
    trust = _trusted(endpoint, options.fingerprint)
    token_id = _token_id(options)
    if options.token_secret_file is None:
        _show_commands(options, token_id, level)
    token_secret, connection = _logged_in(options, endpoint, trust, token_id)
    _check_rights(options, connection, level)
    _write(options, file, level, connection, token_secret)
    _tell_client(options, file)
    print("\nDone. `quorate doctor` checks everything; `quorate call guest_list` is a first look.")
    return OK


# -- the questions -----------------------------------------------------------------------------------------------------


def _clusters_in(file: Path) -> tuple[str, ...]:
    import tomllib

    from quorate.config.sources import text_of

    try:
        return tuple(tomllib.loads(text_of(file, "configuration")).get("clusters", ()))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is no valid TOML ({error}): correct it, or begin anew with --overwrite.") from None


def _name(options: argparse.Namespace, taken: Sequence[str]) -> str:
    name: str | None = options.name
    if name is None and options.adds:
        if not somebody_is_there():
            raise ConfigError(
                "The configuration exists already: give --name NAME to add a cluster to it, --config for another file, "
                "or --overwrite to begin it anew."
            )
        if taken:
            print(f"It has {', '.join(taken)}.")
        name = ask("Name of the new cluster", "--name", default="" if USUAL_NAME in taken else USUAL_NAME)
    name = name or USUAL_NAME
    if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name, re.ASCII):
        raise ConfigError('--name must be letters, digits, "-" and "_" only.')
    if name in taken:
        raise ConfigError(f"There is a cluster {name} already: choose another --name, or begin anew with --overwrite.")
    return name


def _endpoint(options: argparse.Namespace) -> str:
    from quorate.config.endpoints import read_endpoints
    from quorate.config.given import Given, Rank, Source

    text = options.host or ask("Address of a Proxmox VE node", "--host")
    return read_endpoints({"address": [Given("--host", text, Source(Rank.ARGUMENTS))]})[0]


def _level(options: argparse.Namespace) -> str:
    if options.access:
        return str(options.access)
    if options.yes:
        return Access.READ.value
    if somebody_is_there():
        print("\nHow much may be done?")
        for name, about in LEVELS.items():
            print(f"  {name:<8} {about}")
    return choose("Access", "--access", tuple(LEVELS), default="read")


def _token_id(options: argparse.Namespace) -> str:
    given = options.token_id or (
        USUAL_TOKEN if options.yes else ask("\nAPI token, which may not exist yet", "--token-id", default=USUAL_TOKEN)
    )
    if not _TOKEN_ID.fullmatch(given):
        raise ConfigError("The token must look like user@realm!name, such as quorate@pve!mcp.")
    return str(given)


# -- the certificate ---------------------------------------------------------------------------------------------------


def _trusted(endpoint: str, fingerprint: str | None) -> Trust:
    """How the server is trusted from now on: by the system's CAs, or by the fingerprint that a person has agreed to."""
    from quorate.config.trust import as_fingerprint
    from quorate.pve.connection import Trust

    pinned = Trust(fingerprint=as_fingerprint(fingerprint, "--fingerprint")) if fingerprint else None
    shown, why = asyncio.run(_judged(endpoint, pinned or Trust()))
    if why is None:
        if pinned is None:
            print(f"\nThe certificate of {endpoint} is trusted by this system; nothing has to be pinned.")
        return pinned or Trust()
    if pinned is not None:
        raise Stopped(
            f"The certificate of {endpoint} is not the one you named: it shows {shown.fingerprint}. "
            "Compare with `pvenode cert info` on the node; if it differs, someone may be in between."
        )
    _show_certificate(endpoint, shown)
    if not somebody_is_there():
        raise Stopped(
            "Nobody is here to compare the fingerprint. Compare it with `pvenode cert info` on the node, then give it "
            "as --fingerprint."
        )
    if not agrees("Is it the same?"):
        raise Stopped("The certificate was not trusted.")
    return Trust(fingerprint=as_fingerprint(shown.fingerprint, "fingerprint"))


async def _judged(endpoint: str, trust: Trust) -> tuple[Certificate, str | None]:
    """What the server shows, and why it is not trusted."""
    from quorate.checkup.findings import Findings
    from quorate.checkup.network import check_reachable
    from quorate.pve.certificate import objection, shown_by

    way = Findings(endpoint)
    if not await check_reachable(endpoint, way):
        raise Stopped(_said(way))
    try:
        shown = await shown_by(endpoint)
        return shown, await objection(endpoint, trust, shown)
    except (TimeoutError, OSError):  # of which TLS errors are a kind
        raise Stopped(f"{endpoint} does not speak TLS. Check the port (PVE's is 8006).") from None


def _show_certificate(endpoint: str, shown: Certificate) -> None:
    from datetime import UTC, datetime

    from quorate.pipeline.sanitise import clean_text

    print(f"\n{endpoint} shows a certificate that this system does not know, as PVE does unless told otherwise:")
    print(f"  subject  {clean_text(shown.subject)}")
    print(f"  issuer   {clean_text(shown.issuer)}")
    print(f"  valid    {shown.begins:%Y-%m-%d} to {shown.ends:%Y-%m-%d}")
    print(f"  SHA-256  {shown.fingerprint}")
    if shown.ends < datetime.now(UTC):
        print("  WARNING: IT HAS EXPIRED; better renew it first: `pvecm updatecerts --force` on the node.")
    print("Compare the SHA-256 fingerprint with what the node itself says: pvenode cert info")


# -- the token ---------------------------------------------------------------------------------------------------------


def _show_commands(options: argparse.Namespace, token_id: str, level: str) -> None:
    from quorate.cli.granting import MONITOR, NO_EXTRA_RIGHTS, grant_commands
    from quorate.operations.registry import TOOLSETS

    major = options.pve or ("9" if options.yes else choose("Version of Proxmox VE", "--pve", ("8", "9"), default="9"))
    print(f"\nA token with no more than access {level} needs is made so, on a node, as root:\n")
    for line in grant_commands(token_id, level, int(major), list(TOOLSETS)):
        print(f"  {line}")
    print(f"\n{NO_EXTRA_RIGHTS}")
    if major == "8":
        print(MONITOR)
    print("The last command shows the token's secret, once.")


def _logged_in(
    options: argparse.Namespace, endpoint: str, trust: Trust, token_id: str
) -> tuple[TokenSecret, Connection]:
    """The secret that works, after at most three tries where it is typed."""
    from quorate.problems import AuthenticationFailed, Problem
    from quorate.pve.connection import Connection, Limits, Secret, Token

    for left in reversed(range(1 if options.token_secret_file else TRIES)):
        given = _secret(options, token_id)
        limits = Limits(request_seconds=10, total_seconds=20)
        connection = Connection((endpoint,), Token(token_id, Secret(given.text)), trust, limits)
        try:
            version = asyncio.run(_version(connection))
        except AuthenticationFailed as problem:
            if not left:
                raise Stopped(str(problem)) from None
            print(f"{problem.what} Try again.")
            continue
        except Problem as problem:
            raise Stopped(str(problem)) from None
        print(f"\n{token_id} is accepted; the cluster runs PVE {version}.")
        return given, connection
    raise AssertionError("the last try ends it")


def _secret(options: argparse.Namespace, token_id: str) -> TokenSecret:
    file = options.token_secret_file
    if file is None:
        text = secret(f"\nSecret of {token_id} (is not shown)", "--token-secret-file")
    else:
        from quorate.config.sources import text_of

        file = file.expanduser().absolute()
        text = text_of(file, "file of the secret,").strip()
    if not text or not text.isprintable():
        raise ConfigError("That is no secret of a token: it is one line, as `pveum user token add` shows it.")
    return TokenSecret(text, file)


async def _version(connection: Connection) -> str:
    from quorate.pipeline.sanitise import clean_text
    from quorate.pve.client import PveClient

    client = PveClient(connection)
    try:
        return clean_text(str((await client.get("/version")).get("version", "of an unknown version")))
    finally:
        await client.close()


def _check_rights(options: argparse.Namespace, connection: Connection, level: str) -> None:
    found = asyncio.run(_rights(options.name, connection, level))
    if all(one.state == "ok" for one in found):
        print(f"It has all privileges that access {level} needs.")
        return
    print(_said(found))
    if not options.yes and not agrees("Some tools will be refused by PVE until that is granted."):
        raise Stopped("Grant the privileges and run this again, or give --yes to go on without them.")


async def _rights(name: str, connection: Connection, level: str) -> Findings:
    from quorate.checkup.cluster import check_privileges
    from quorate.checkup.findings import Findings
    from quorate.operations.registry import TOOLSETS
    from quorate.pve.cluster import Cluster

    found = Findings(name)
    cluster = Cluster(name, connection)
    try:
        await check_privileges(cluster, level, list(TOOLSETS), found)
    finally:
        await cluster.close()
    return found


def _said(found: Findings) -> str:
    from quorate.pipeline.sanitise import clean_text

    lines = []
    for one in found:
        if one.state in ("fail", "warn"):
            lines += [one.says if one.check == "privileges" else f"{one.check}: {one.says}", f"  -> {one.do}"]
            lines += [f"     {line}" for line in one.commands]
    return clean_text("\n".join(lines))


# -- what is written ---------------------------------------------------------------------------------------------------


def _write(options: argparse.Namespace, file: Path, level: str, connection: Connection, given: TokenSecret) -> None:
    from quorate.pve.connection import Token
    from quorate.pve.trust import fingerprint_bytes, fingerprint_text

    assert isinstance(connection.credentials, Token)
    secret_file = given.file or file.with_name(f"{options.name}.secret")
    pinned = connection.trust.fingerprint
    described = {
        "url": connection.endpoints[0],
        "token_id": connection.credentials.id,
        "token_secret": {"file": str(given.file) if given.file else secret_file.name},
        "fingerprint": fingerprint_text(fingerprint_bytes(pinned)) if pinned else None,
    }
    text = (
        _added_to(file, options.name, {**described, "access": level})
        if options.adds
        else toml_text({"": {"access": level}, f"clusters.{options.name}": described})
    )
    try:
        for old in [one for one in (file, secret_file) if one.exists() and one != given.file]:
            print(f"The old {old.name} is kept as {backup_of(old)}.")
        if given.file is None:
            write_private(secret_file, given.text + "\n")
        if options.adds:
            write_whole(file, text, file.stat().st_mode & 0o777)
        else:
            write_private(file, text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}.") from None
    print(
        f"\nWritten: {file}" + ("" if given.file else f", and the secret in {secret_file}") + " (for your eyes only)."
    )


def _added_to(file: Path, name: str, described: Mapping[str, object]) -> str:
    from quorate.config.sources import text_of

    try:
        return with_table(text_of(file, "configuration"), ("clusters", name), described)
    except ValueError as error:
        lines = toml_text({f"clusters.{name}": described})
        raise ConfigError(f"{file} cannot be added to ({error}): add this by hand.\n{lines}") from None


def _tell_client(options: argparse.Namespace, file: Path) -> None:
    chosen = options.client
    if chosen is None:
        if options.yes or not somebody_is_there():
            return
        chosen = choose("\nWhich client shall use it?", "--client", (*CLIENTS, NO_CLIENT), default=NO_CLIENT)
    if chosen == NO_CLIENT:
        return
    client, started = CLIENTS[chosen], own_command(file)
    if client.file is None:
        print("\n" + client.hint.format(config=f" --config {file}"))
        return
    place = client.file(home(os.environ))
    print(f"\n{client.title} takes this in {place}:\n\n{client.snippet(started)}\n")
    if options.write or (options.client is None and agrees("It can be written there; all else stays as it is.")):
        print("\n".join(write_entry(client, started, home(os.environ), replace=options.overwrite)))
