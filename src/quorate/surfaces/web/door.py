"""Who comes in: bearer tokens, counted failures, and at most so many requests of one caller."""

from __future__ import annotations

import logging

from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from starlette.authentication import AuthCredentials
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from quorate.config.http import HttpSettings
from quorate.pve.clock import Clock
from quorate.state.database import StateUnavailable
from quorate.surfaces.web.credentials import Credentials, Rejected, TooNarrow
from quorate.surfaces.web.issuer_keys import IssuerUnreachable
from quorate.surfaces.web.limits import Buckets, address_key
from quorate.surfaces.web.metrics import Metrics
from quorate.surfaces.web.replies import refusal, too_many
from quorate.surfaces.web.resource_metadata import metadata_url

log = logging.getLogger(__name__)


class Door:
    """Made once; `before` puts it in front of a part of the application."""

    def __init__(self, settings: HttpSettings, credentials: Credentials, metrics: Metrics, clock: Clock) -> None:
        self._settings = settings
        self._credentials = credentials
        self._metrics = metrics
        self._requests = Buckets(settings.rate_limit, clock)
        self._failures = Buckets(settings.failure_limit, clock)

    def before(self, app: ASGIApp) -> ASGIApp:
        return _Behind(self, app)

    def failed(self, scope: Scope, reason: str) -> None:
        """Count something wrong that came from this address."""
        self._metrics.refused_credentials[reason] += 1
        self._failures.take(address_key(scope.get("client")))

    def blocked(self, scope: Scope) -> Response | None:
        """Whoever was wrong too often is not even listened to for a while."""
        wait = self._failures.wait(address_key(scope.get("client")))
        if not wait:
            return None
        self._metrics.rate_limited["address"] += 1
        return too_many(wait, "Too many failed attempts from this address")

    async def refused(self, scope: Scope) -> Response | None:
        """What to answer to somebody who stays outside; None for one who may come in and is then known."""
        try:
            if not await self._credentials.needed():
                return None
            return self.blocked(scope) or await self._unknown(scope)
        except (StateUnavailable, IssuerUnreachable) as problem:
            log.error("nobody can be authenticated: %s", problem)
            return refusal(503, "temporarily_unavailable", "Tokens cannot be checked now", Retry_After="5")

    async def _unknown(self, scope: Scope) -> Response | None:
        kind, _, text = Headers(scope=scope).get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not text.strip():
            self._metrics.refused_credentials["missing"] += 1
            return self._challenge(scope, None)
        try:
            verified = await self._credentials.verify(text.strip())
        except Rejected as rejected:
            log.warning("refused credentials from %s: %s", address_key(scope.get("client")), rejected)
            self.failed(scope, rejected.error)
            return self._challenge(scope, rejected)
        if wait := self._requests.take(verified.subject or ""):
            self._metrics.rate_limited["caller"] += 1
            return too_many(wait, "Too many requests with this token")
        scope["user"], scope["auth"] = AuthenticatedUser(verified), AuthCredentials()
        return None

    def _challenge(self, scope: Scope, rejected: Rejected | None) -> Response:
        """RFC 6750: what is wrong, and RFC 9728: where it is said who gives out tokens."""
        parts = ['realm="quorate"']
        if rejected is not None:
            parts += [f'error="{rejected.error}"', f'error_description="{rejected}"']
        if isinstance(rejected, TooNarrow) or self._settings.issuer:
            parts.append('scope="quorate:read"')
        if self._settings.issuer:
            parts.append(f'resource_metadata="{metadata_url(scope, self._settings)}"')
        error, says = (rejected.error, str(rejected)) if rejected else ("unauthorized", "A bearer token is needed")
        status = rejected.status if rejected else 401
        return refusal(status, error, says, WWW_Authenticate="Bearer " + ", ".join(parts))


class _Behind:
    """A class and no function: Starlette takes a function for a handler of requests."""

    def __init__(self, door: Door, app: ASGIApp) -> None:
        self._door = door
        self._inner = AuthContextMiddleware(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = await self._door.refused(scope)
        await (refused or self._inner)(scope, receive, send)
