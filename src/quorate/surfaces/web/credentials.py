"""What a bearer token says about a caller: our own tokens, and those of an external issuer."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from pydantic import ConfigDict

from quorate.config import Access
from quorate.pipeline.caller import Scope
from quorate.problems import Refused
from quorate.pve.connection import Clock
from quorate.state.tokens import TokenGrant, Tokens

if TYPE_CHECKING:
    from quorate.surfaces.web.authentication import Issuer

OWN_PREFIX = "qrt_"
LOOK_SECONDS = 3.0
SCOPES = tuple(f"quorate:{level.value}" for level in Access)


class InvalidCredentials(Exception):
    """The credentials are not accepted. The caller sees the text."""

    status = 401
    error = "invalid_token"


class InsufficientScope(InvalidCredentials):
    """The caller is known, but has no access here."""

    status = 403
    error = "insufficient_scope"


class VerifiedToken(AccessToken):
    """A caller as the SDK represents it, with its scope here. The token itself is not kept."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    token: str = ""
    granted: Scope


@dataclass(slots=True)
class LocalLogin:
    """The login of the person who started `quorate console`: a link that works once, for this process only."""

    ticket: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    bearer: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    def take(self, ticket: str) -> str | None:
        """Redeem the ticket, which works once."""
        if not self.ticket or not secrets.compare_digest(ticket.encode(), self.ticket.encode()):
            return None
        self.ticket = ""
        return self.bearer


class Credentials:
    def __init__(self, tokens: Tokens, issuer: Issuer | None, clock: Clock, local: LocalLogin | None = None) -> None:
        self._tokens = tokens
        self._issuer = issuer
        self._clock = clock
        self.local = local
        self._needed = issuer is not None or local is not None
        self._looked = -LOOK_SECONDS

    async def needed(self) -> bool:
        """Whether callers need a token: from the first token on, and then permanently."""
        if not self._needed and self._clock.monotonic() - self._looked >= LOOK_SECONDS:
            self._needed = bool(await self._tokens.list())
            self._looked = self._clock.monotonic()
        return self._needed

    async def verify(self, text: str) -> VerifiedToken:
        if self.local is not None and secrets.compare_digest(text.encode(), self.local.bearer.encode()):
            return VerifiedToken(client_id="quorate", scopes=[], subject="quorate console", granted=Scope())
        if text.startswith(OWN_PREFIX):
            grant = await self._tokens.verify(text)
            if grant is None:
                raise InvalidCredentials("The token is unknown, expired or revoked")
            return _verified_token(grant)
        if self._issuer is None:
            raise InvalidCredentials("This token was not issued by this server")
        return await self._issuer.verify(text)

    def identify(self) -> tuple[str, Scope]:
        """Subject and scope of the current request."""
        token = get_access_token()
        if isinstance(token, VerifiedToken):
            return token.subject or "", token.granted
        if self._needed:  # unreachable behind the Authenticator; refuse anyway
            raise Refused("Authentication is missing")
        return "", Scope()


def _verified_token(grant: TokenGrant) -> VerifiedToken:
    """The id is part of the subject, so that approvals do not pass to a later token of the same name."""
    scope = Scope(Access(grant.access), grant.toolsets, grant.clusters, grant.id)
    return VerifiedToken(client_id="quorate", scopes=[], subject=f"token {grant.name} ({grant.id})", granted=scope)


def parse_scope(words: Iterable[str]) -> Scope:
    """quorate:read, quorate:operate or quorate:admin; with quorate:toolset:X and quorate:cluster:Y only those."""
    scopes = set(words)
    levels = [level for level in Access if f"quorate:{level.value}" in scopes]
    if not levels:
        raise InsufficientScope(f"The token has none of the scopes {', '.join(SCOPES)}")
    return Scope(
        levels[-1], _scopes_with_prefix(scopes, "quorate:toolset:"), _scopes_with_prefix(scopes, "quorate:cluster:")
    )


def _scopes_with_prefix(words: set[str], prefix: str) -> frozenset[str] | None:
    return frozenset(word.removeprefix(prefix) for word in words if word.startswith(prefix)) or None
