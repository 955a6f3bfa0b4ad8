"""Questions about a cluster's address, certificate and token, each answer checked before the next question."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.cli.prompts import TRIES, ask, ask_secret, ask_until, choose, confirm, is_interactive
from quorate.config import ConfigError
from quorate.config.credentials import TOKEN_NAME_RULE

if TYPE_CHECKING:
    from quorate.doctor import Findings
    from quorate.pve.connection import Connection, Trust
    from quorate.pve.trust import Certificate

USUAL_TOKEN = "quorate@pve!mcp"  # noqa: S105
_TOKEN_ID = re.compile(r"[^\s:/@!']+@[A-Za-z][\w.-]+![A-Za-z][\w.-]+", re.ASCII)


class SetupStopped(Exception):
    """Setup cannot continue; the text says why and what to do. Nothing was written."""


@dataclass(frozen=True, slots=True)
class TokenSecret:
    text: str
    file: Path | None
    """The user's own file, if it is kept in one."""


# -- the address and its certificate -----------------------------------------------------------------------------------


def reach_node(options: argparse.Namespace) -> tuple[str, Trust]:
    """The endpoint and how its certificate is trusted. An address that was typed wrong is asked for again."""
    for left in reversed(range(1 if options.host else TRIES)):
        text = options.host or ask("Address of a Proxmox VE node", "--host")
        try:
            endpoint = _endpoint(text)
            shown, why = asyncio.run(_inspect_certificate(endpoint, _pinned_trust(options)))
        except (ConfigError, SetupStopped) as problem:
            if not left:
                raise
            print(f"{problem}\n")
        else:
            options.host = text
            return endpoint, _choose_trust(options, endpoint, shown, why)
    raise AssertionError("the last try ends it")


def _endpoint(text: str) -> str:
    from quorate.config.endpoints import read_endpoints
    from quorate.config.raw import Rank, RawSetting, Source

    return read_endpoints({"address": [RawSetting("--host", text, Source(Rank.ARGUMENTS))]})[0]


def _pinned_trust(options: argparse.Namespace) -> Trust:
    from quorate.config.trust import as_fingerprint
    from quorate.pve.connection import Trust

    given = options.fingerprint
    return Trust(fingerprint=as_fingerprint(given, "--fingerprint")) if given else Trust()


async def _inspect_certificate(endpoint: str, trust: Trust) -> tuple[Certificate, str | None]:
    """The certificate, and why it is not trusted."""
    from quorate.doctor import Findings
    from quorate.doctor.network import check_reachable
    from quorate.pve.trust import fetch_certificate, objection

    findings = Findings(endpoint)
    if not await check_reachable(endpoint, findings):
        raise SetupStopped(describe(findings))
    try:
        shown = await fetch_certificate(endpoint)
        return shown, await objection(endpoint, trust, shown)
    except (TimeoutError, OSError):  # TLS errors are OSErrors
        raise SetupStopped(f"{endpoint} does not speak TLS. Check the port (PVE's is 8006).") from None


def _choose_trust(options: argparse.Namespace, endpoint: str, shown: Certificate, why: str | None) -> Trust:
    """How to verify the certificate: by the system's CAs, or by the fingerprint that a person has confirmed."""
    pinned = _pinned_trust(options)
    if why is None:
        if not pinned.fingerprint:
            print(f"\nThe certificate of {endpoint} is trusted by this system; no fingerprint is needed.")
        return pinned
    if pinned.fingerprint:
        raise SetupStopped(
            f"The certificate of {endpoint} has another fingerprint: {shown.fingerprint}. "
            "Compare with `pvenode cert info` on the node; if it differs, someone may be intercepting the connection."
        )
    _show_certificate(endpoint, shown)
    if not is_interactive():
        raise SetupStopped(
            "There is no terminal to confirm the fingerprint. Compare it with `pvenode cert info` on the node, then "
            "pass it as --fingerprint."
        )
    if not confirm("Do they match?"):
        raise SetupStopped("The certificate was not trusted.")
    options.fingerprint = shown.fingerprint
    return _pinned_trust(options)


def _show_certificate(endpoint: str, shown: Certificate) -> None:
    from datetime import UTC, datetime

    from quorate.pipeline.sanitization import clean_text

    print(f"\nThis system does not trust the certificate of {endpoint}, which is normal for PVE:")
    print(f"  subject  {clean_text(shown.subject)}")
    print(f"  issuer   {clean_text(shown.issuer)}")
    print(f"  valid    {shown.begins:%Y-%m-%d} to {shown.ends:%Y-%m-%d}")
    print(f"  SHA-256  {shown.fingerprint}")
    if shown.ends < datetime.now(UTC):
        print("  WARNING: IT HAS EXPIRED. Renew it first with `pvecm updatecerts --force` on the node.")
    print("Compare the SHA-256 fingerprint with the output of this command on the node: pvenode cert info")


# -- the token ---------------------------------------------------------------------------------------------------------


def choose_token(options: argparse.Namespace, level: str, toolsets: Sequence[str]) -> str:
    """The token's id, after showing how to create it, unless its secret is already in a file."""
    if options.token_id or options.yes:
        token_id = _token_id(options.token_id or USUAL_TOKEN)
    else:
        token_id = ask_until("\nAPI token (need not exist yet)", "--token-id", _token_id, default=USUAL_TOKEN)
    options.token_id = token_id
    if options.token_secret_file is None:
        _show_script(options, token_id, level, toolsets)
    return token_id


def _token_id(text: str) -> str:
    if not _TOKEN_ID.fullmatch(text):
        raise ConfigError(f"The token must look like user@realm!name, such as {USUAL_TOKEN}. {TOKEN_NAME_RULE}")
    return text


def _show_script(options: argparse.Namespace, token_id: str, level: str, toolsets: Sequence[str]) -> None:
    from quorate.cli.grants import ALMIGHTY, MONITOR, grant_script
    from quorate.operations.access.permission_needs import describe_withheld

    if token_id.startswith(f"{ALMIGHTY}!"):
        print(f"\nA token of {ALMIGHTY} has every privilege. A separate user is safer: {USUAL_TOKEN}.")
        print("To create one anyway, run this as root on a node:\n")
        print(grant_script(token_id, level, 9, toolsets))
        return
    if options.pve is None:
        options.pve = "9" if options.yes else choose("Version of Proxmox VE", "--pve", ("8", "9"), default="9")
    print(f"\nThis script creates the token with exactly the privileges that access {level} needs for these tools.")
    print("Paste all of it into a root shell on a node:\n")
    print(grant_script(token_id, level, int(options.pve), toolsets))
    print(
        "\nIts last line shows the token's secret once. If the user is new, it has no password and exists only for the"
    )
    print("token; if it existed before, the token also has its other privileges.")
    for what in describe_withheld(level, toolsets):
        print(f"Not granted, because it would also allow changes: {what}.")
    if options.pve == "8" and "guests" in toolsets:
        print(MONITOR)


def log_in(options: argparse.Namespace, endpoint: str, trust: Trust, token_id: str) -> tuple[TokenSecret, Connection]:
    """The secret that works; a typed one has three tries."""
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
                raise SetupStopped(str(problem)) from None
            print(f"{problem.what} Try again.")
            continue
        except Problem as problem:
            raise SetupStopped(str(problem)) from None
        print(f"\n{token_id} is accepted; the cluster runs PVE {version}.")
        return given, connection
    raise AssertionError("the last try ends it")


def _secret(options: argparse.Namespace, token_id: str) -> TokenSecret:
    file = options.token_secret_file
    if file is None:
        text = ask_secret(f"\nSecret of {token_id} (not shown)", "--token-secret-file")
    else:
        from quorate.config.sources import text_of

        file = file.expanduser().absolute()
        text = text_of(file, "file of the secret,").strip()
    if not text or not text.isprintable():
        raise ConfigError("That is not a token secret: it is one line, as shown by `pveum user token add`.")
    return TokenSecret(text, file)


async def _version(connection: Connection) -> str:
    from quorate.pipeline.sanitization import clean_text
    from quorate.pve.client import PveClient

    client = PveClient(connection)
    try:
        return clean_text(str((await client.get("/version")).get("version", "of an unknown version")))
    finally:
        await client.close()


def check_privileges(options: argparse.Namespace, connection: Connection, level: str, toolsets: Sequence[str]) -> None:
    found = asyncio.run(_find_missing(options.name, connection, level, toolsets))
    if all(one.state == "ok" for one in found):
        print(f"The token has all privileges that access {level} needs.")
        return
    print(describe(found))
    if not options.yes and not confirm("PVE will refuse some tools until these are granted."):
        raise SetupStopped("Grant the privileges and run this again, or pass --yes to continue without them.")


async def _find_missing(name: str, connection: Connection, level: str, toolsets: Sequence[str]) -> Findings:
    from quorate.doctor import Findings
    from quorate.doctor.cluster import check_privileges
    from quorate.pve.cluster import Cluster

    found = Findings(name)
    cluster = Cluster(name, connection)
    try:
        await check_privileges(cluster, level, toolsets, found)
    finally:
        await cluster.close()
    return found


def describe(found: Findings) -> str:
    from quorate.pipeline.sanitization import clean_text

    lines = []
    for one in found:
        if one.state in ("fail", "warn"):
            lines += [one.says if one.check == "privileges" else f"{one.check}: {one.says}", f"  -> {one.do}"]
            lines += [f"     {line}" for line in one.commands]
    return clean_text("\n".join(lines))
