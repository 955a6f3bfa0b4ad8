"""Questions about a cluster's address, certificate and token, each answer checked before the next question."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.cli import doctor_cluster
from quorate.cli.doctor_endpoint import check_reachable
from quorate.cli.doctor_findings import Findings
from quorate.cli.grants import ALMIGHTY, MONITOR, grant_script
from quorate.cli.prompts import TRIES, ask, ask_secret, ask_until, choose, confirm, is_interactive
from quorate.config import ConfigError
from quorate.config.connection import TOKEN_NAME_RULE, as_fingerprint, read_endpoints
from quorate.config.sources import Rank, RawSetting, Source, text_of
from quorate.operations.privileges import describe_withheld
from quorate.pbs.client import PbsClient
from quorate.pipeline.redaction import clean_text
from quorate.problems import AuthenticationFailed, Problem
from quorate.pve.client import PveClient
from quorate.pve.cluster import Cluster
from quorate.pve.connection import PVE, Connection, Limits, Product, Secret, Token, Trust
from quorate.pve.trust import fetch_certificate, objection

if TYPE_CHECKING:
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


def reach_server(options: argparse.Namespace, product: Product = PVE) -> tuple[str, Trust]:
    """The endpoint and how its certificate is trusted. An address that was typed wrong is asked for again."""
    question = "Address of a Proxmox VE node" if product is PVE else "Address of the Proxmox Backup Server"
    for left in reversed(range(1 if options.host else TRIES)):
        text = options.host or ask(question, "--host" if product is PVE else "--pbs")
        try:
            endpoint = _endpoint(text, product)
            shown, why = asyncio.run(_inspect_certificate(endpoint, _pinned_trust(options), product))
        except (ConfigError, SetupStopped) as problem:
            if not left:
                raise
            print(f"{problem}\n")
        else:
            options.host = text
            return endpoint, _choose_trust(options, endpoint, shown, why, product)
    raise AssertionError("the last try ends it")


def _endpoint(text: str, product: Product) -> str:
    option = "--host" if product is PVE else "--pbs"
    return read_endpoints({"address": [RawSetting(option, text, Source(Rank.ARGUMENTS))]}, product)[0]


def _pinned_trust(options: argparse.Namespace) -> Trust:
    fingerprint = options.fingerprint
    return Trust(fingerprint=as_fingerprint(fingerprint, "--fingerprint")) if fingerprint else Trust()


async def _inspect_certificate(endpoint: str, trust: Trust, product: Product) -> tuple[Certificate, str | None]:
    """The certificate, and why it is not trusted."""
    findings = Findings(endpoint)
    if not await check_reachable(endpoint, findings, product):
        raise SetupStopped(describe(findings))
    try:
        shown = await fetch_certificate(endpoint)
        return shown, await objection(endpoint, trust, shown)
    except (TimeoutError, OSError):  # TLS errors are OSErrors
        port = f"Check the port ({product.name}'s is {product.port})."
        raise SetupStopped(f"{endpoint} does not speak TLS. {port}") from None


def _choose_trust(
    options: argparse.Namespace, endpoint: str, shown: Certificate, why: str | None, product: Product
) -> Trust:
    """How to verify the certificate: by the system's CAs, or by the fingerprint that a person has confirmed."""
    pinned = _pinned_trust(options)
    if why is None:
        if not pinned.fingerprint:
            print(f"\nThe certificate of {endpoint} is trusted by this system; no fingerprint is needed.")
        return pinned
    if pinned.fingerprint:
        raise SetupStopped(
            f"The certificate of {endpoint} has another fingerprint: {shown.fingerprint}. "
            f"Compare with `{product.show_certificate}` on the node; if it differs, someone may be intercepting the "
            "connection."
        )
    _show_certificate(endpoint, shown, product)
    if not is_interactive():
        raise SetupStopped(
            f"There is no terminal to confirm the fingerprint. Compare it with `{product.show_certificate}` on the "
            "node, then pass it as --fingerprint."
        )
    if not confirm("Do they match?"):
        raise SetupStopped("The certificate was not trusted.")
    options.fingerprint = shown.fingerprint
    return _pinned_trust(options)


def _show_certificate(endpoint: str, shown: Certificate, product: Product) -> None:
    print(f"\nThis system does not trust the certificate of {endpoint}, which is normal for {product.name}:")
    print(f"  subject  {clean_text(shown.subject)}")
    print(f"  issuer   {clean_text(shown.issuer)}")
    print(f"  valid    {shown.begins:%Y-%m-%d} to {shown.ends:%Y-%m-%d}")
    print(f"  SHA-256  {shown.fingerprint}")
    if shown.ends < datetime.now(UTC):
        print(f"  WARNING: IT HAS EXPIRED. Renew it first with `{product.renew_certificate}` on the node.")
    print(f"Compare the SHA-256 fingerprint with the output of this command on the node: {product.show_certificate}")


# -- the token ---------------------------------------------------------------------------------------------------------


def choose_token(options: argparse.Namespace, level: str, toolsets: Sequence[str]) -> str:
    """The token's id, after showing how to create it, unless its secret is already in a file."""
    if options.token_id or options.yes:
        token_id = as_token_id(options.token_id or USUAL_TOKEN)
    else:
        token_id = ask_until("\nAPI token (need not exist yet)", "--token-id", as_token_id, default=USUAL_TOKEN)
    options.token_id = token_id
    if options.token_secret_file is None:
        _show_script(options, token_id, level, toolsets)
    return token_id


def as_token_id(text: str) -> str:
    if not _TOKEN_ID.fullmatch(text):
        raise ConfigError(f"The token must look like user@realm!name, such as {USUAL_TOKEN}. {TOKEN_NAME_RULE}")
    return text


def _show_script(options: argparse.Namespace, token_id: str, level: str, toolsets: Sequence[str]) -> None:
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


def log_in(
    options: argparse.Namespace, endpoint: str, trust: Trust, token_id: str, product: Product = PVE
) -> tuple[TokenSecret, Connection]:
    """The secret that works; a typed one has three tries."""
    for left in reversed(range(1 if options.token_secret_file else TRIES)):
        secret = _secret(options, token_id)
        limits = Limits(request_seconds=10, total_seconds=20)
        connection = Connection((endpoint,), Token(token_id, Secret(secret.text)), trust, limits, product)
        try:
            version = asyncio.run(_version(connection))
        except AuthenticationFailed as problem:
            if not left:
                raise SetupStopped(str(problem)) from None
            print(f"{problem.what} Try again.")
            continue
        except Problem as problem:
            raise SetupStopped(str(problem)) from None
        where = "cluster" if product is PVE else "server"
        print(f"\n{token_id} is accepted; the {where} runs {product.name} {version}.")
        return secret, connection
    raise AssertionError("the last try ends it")


def _secret(options: argparse.Namespace, token_id: str) -> TokenSecret:
    file = options.token_secret_file
    if file is None:
        text = ask_secret(f"\nSecret of {token_id} (not shown)", "--token-secret-file")
    else:
        file = file.expanduser().absolute()
        text = text_of(file, "file of the secret,").strip()
    if not text or not text.isprintable():
        raise ConfigError("That is not a token secret: it is one line, shown once when the token is created.")
    return TokenSecret(text, file)


async def _version(connection: Connection) -> str:
    client = PveClient(connection) if connection.product is PVE else PbsClient(connection)
    try:
        return clean_text(str((await client.get("/version")).get("version", "of an unknown version")))
    finally:
        await client.close()


def check_privileges(options: argparse.Namespace, connection: Connection, level: str, toolsets: Sequence[str]) -> None:
    missing = asyncio.run(_find_missing(options.name, connection, level, toolsets))
    if all(finding.state == "ok" for finding in missing):
        print(f"The token has all privileges that access {level} needs.")
        return
    print(describe(missing))
    if not options.yes and not confirm("PVE will refuse some tools until these are granted."):
        raise SetupStopped("Grant the privileges and run this again, or pass --yes to continue without them.")


async def _find_missing(name: str, connection: Connection, level: str, toolsets: Sequence[str]) -> Findings:
    findings = Findings(name)
    cluster = Cluster(name, connection)
    try:
        await doctor_cluster.check_privileges(cluster, level, toolsets, findings)
    finally:
        await cluster.close()
    return findings


def describe(findings: Findings) -> str:
    lines = []
    for finding in findings:
        if finding.state in ("fail", "warn"):
            lines += [
                finding.says if finding.check == "privileges" else f"{finding.check}: {finding.says}",
                f"  -> {finding.do}",
            ]
            lines += [f"     {line}" for line in finding.commands]
    return clean_text("\n".join(lines))
