"""What a bearer token says about a caller: our own tokens, and those of an external issuer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from pydantic import ConfigDict

from quorate.config import Access
from quorate.pipeline.caller import Scope
from quorate.pve.clock import Clock
from quorate.pve.errors import Refused
from quorate.state.tokens import TokenGrant, Tokens

if TYPE_CHECKING:
    from quorate.surfaces.web.issuer import Issuer

OWN_PREFIX = "qrt_"
LOOK_SECONDS = 3.0
SCOPES = tuple(f"quorate:{level.value}" for level in Access)


class Rejected(Exception):
    """These credentials are not accepted. The text is told to the caller."""

    status = 401
    error = "invalid_token"


class TooNarrow(Rejected):
    """Who it is is certain, but nothing here is allowed to them."""

    status = 403
    error = "insufficient_scope"


class Verified(AccessToken):
    """A caller as the SDK knows it, and what it may do here. The token's own text is not kept."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    token: str = ""
    granted: Scope


class Credentials:
    def __init__(self, tokens: Tokens, issuer: Issuer | None, clock: Clock) -> None:
        self._tokens = tokens
        self._issuer = issuer
        self._clock = clock
        self._needed = issuer is not None
        self._looked = -LOOK_SECONDS

    async def needed(self) -> bool:
        """Whether every caller has to show a token: from the first token on, and then for good."""
        if not self._needed and self._clock.monotonic() - self._looked >= LOOK_SECONDS:
            self._needed = bool(await self._tokens.list())
            self._looked = self._clock.monotonic()
        return self._needed

    async def verify(self, text: str) -> Verified:
        if text.startswith(OWN_PREFIX):
            grant = await self._tokens.verify(text)
            if grant is None:
                raise Rejected("The token is unknown, expired or revoked")
            return _verified(grant)
        if self._issuer is None:
            raise Rejected("This is no token of this server")
        return await self._issuer.verify(text)

    def identify(self) -> tuple[str, Scope]:
        """Subject and scope of the request that is being served."""
        token = get_access_token()
        if isinstance(token, Verified):
            return token.subject or "", token.granted
        if self._needed:  # the door stands before this; were it ever passed, nothing is allowed here either
            raise Refused("Authentication is missing")
        return "", Scope()


def _verified(grant: TokenGrant) -> Verified:
    """The id is part of the subject: what was approved for a token is not for a later one of the same name."""
    scope = Scope(Access(grant.access), grant.toolsets, grant.clusters)
    return Verified(client_id="quorate", scopes=[], subject=f"token {grant.name} ({grant.id})", granted=scope)


def scope_of(words: Iterable[str]) -> Scope:
    """quorate:read, quorate:operate or quorate:admin; with quorate:toolset:X and quorate:cluster:Y only those."""
    said = set(words)
    levels = [level for level in Access if f"quorate:{level.value}" in said]
    if not levels:
        raise TooNarrow(f"The token has none of the scopes {', '.join(SCOPES)}")
    return Scope(levels[-1], _named(said, "quorate:toolset:"), _named(said, "quorate:cluster:"))


def _named(said: set[str], prefix: str) -> frozenset[str] | None:
    return frozenset(word.removeprefix(prefix) for word in said if word.startswith(prefix)) or None
