"""Asking PVE as another token: the privileges that PVE reports to it, and whether PVE answers its reads.

Only reads are sent. Whether PVE would take a write follows from the privileges.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quorate.hints import Advice
from quorate.homelab.secrets import BOUND, Secrets
from quorate.problems import AuthenticationFailed, BadArgument, PermissionMissing, Problem
from quorate.pve.cluster import Cluster
from quorate.pve.connection import Token

if TYPE_CHECKING:
    from quorate.pve.client import PveClient

_SECRET_OF_A_TOKEN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)


@dataclass(slots=True)
class TokenTrial:
    """A connection to the cluster with the token's own credentials."""

    client: PveClient
    reads: int = 0

    async def privileges(self, **params: str) -> Any:
        self.reads += 1
        return await self.client.get("/access/permissions", **params)

    async def refusal(self, path: str, params: Mapping[str, Any]) -> PermissionMissing | None:
        """Why PVE refuses a read to the token; None if it does not, even if the read fails for another reason."""
        self.reads += 1
        try:
            await self.client.get(path, **params)
        except PermissionMissing as problem:
            return problem
        except Problem:
            return None
        return None


@asynccontextmanager
async def as_token(pve: Cluster, who: str, reference: str) -> AsyncIterator[TokenTrial]:
    """Connect as the token whose secret is at the reference."""
    if "!" not in who:
        raise BadArgument(f"{who} is not a token", next_step="Give a token as user@realm!token, or leave secret out")
    _refuse_unbound(pve.name, reference)
    secret = await pve.attachment(Secrets).fetch(reference)
    if not _SECRET_OF_A_TOKEN.fullmatch(secret.reveal()):  # a host's password must not be sent to PVE
        raise BadArgument(
            f"{reference} does not hold the secret of an API token",
            why="That is a UUID",
            next_step=Advice("Store what PVE showed when the token was created, with `quorate secrets`"),
        )
    from quorate.pve.client import PveClient  # aiohttp is not needed to list the tools

    client = PveClient(replace(pve.connection, credentials=Token(who, secret)), clock=pve.clock)
    try:
        yield await _log_in(client, who, reference)
    finally:
        await client.close()


def _refuse_unbound(cluster: str, reference: str) -> None:
    """A stored secret may be of anything. Its name says whose it is, so that it goes to no other machine."""
    kind, _, name = reference.partition(":")
    if f"{kind}:" not in BOUND or re.search(rf"(?<![^\W_]){re.escape(cluster)}(?![^\W_])", name, re.I):
        return
    raise BadArgument(
        f"That stored secret is not named as one of the cluster {cluster}",
        why="Any stored secret could be sent there otherwise",
        next_step=f"Store the token's secret as {cluster}-NAME",
    )


async def _log_in(client: PveClient, who: str, reference: str) -> TokenTrial:
    trial = TokenTrial(client)
    try:
        await trial.privileges(path="/")
    except AuthenticationFailed as problem:
        raise BadArgument(
            f"PVE does not accept {who} with the secret at {reference}",
            why=problem.what,
            next_step="Check the token's name, expiry and secret",
        ) from None
    return trial
