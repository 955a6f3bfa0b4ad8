"""Authentication of requests: bearer tokens, a limit on failures, and limits on the requests of one caller."""

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
from quorate.state.store import StateUnavailable
from quorate.surfaces.web.credentials import Credentials, InsufficientScope, InvalidCredentials
from quorate.surfaces.web.issuer_keys import IssuerUnreachable
from quorate.surfaces.web.limits import ConcurrencyLimit, RateLimit, address_key
from quorate.surfaces.web.metrics import Metrics
from quorate.surfaces.web.replies import refusal, too_many
from quorate.surfaces.web.request_body import ClientDisconnected, read_request_body
from quorate.surfaces.web.resource_metadata import metadata_url

log = logging.getLogger(__name__)


class Authenticator:
    """Created once; `protect` puts it in front of a part of the application."""

    def __init__(self, settings: HttpSettings, credentials: Credentials, metrics: Metrics, clock: Clock) -> None:
        self._settings = settings
        self._credentials = credentials
        self._metrics = metrics
        self._requests = RateLimit(settings.rate_limit, clock)
        self._failures = RateLimit(settings.failure_limit, clock)
        self._open_requests = ConcurrencyLimit(settings.caller_limit)

    def protect(self, app: ASGIApp) -> ASGIApp:
        return _AuthenticatedApp(self, app)

    def count_failure(self, scope: Scope, reason: str) -> Response | None:
        """Count a failed attempt from this address; the response to it if there were too many.

        Only attempts that fail are refused: whatever else comes from the same address must not keep a valid token out.
        """
        self._metrics.refused_credentials.labels(reason).inc()
        wait = self._failures.take(address_key(scope.get("client")))
        if not wait:
            return None
        self._metrics.rate_limited.labels("address").inc()
        return too_many(wait, "Too many failed attempts from this address")

    async def authenticate(self, scope: Scope) -> Response | None:
        """The response that refuses the request; None if the caller is known or needs no token."""
        try:
            if not await self._credentials.needed():
                return None
            return await self._refuse_unknown(scope)
        except (StateUnavailable, IssuerUnreachable) as problem:
            log.error("authentication is unavailable: %s", problem)
            return refusal(503, "temporarily_unavailable", "Tokens cannot be checked now", Retry_After="5")

    async def admit(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an authenticated request, unless the caller has too many open."""
        caller = scope["user"].access_token.subject if "user" in scope else address_key(scope.get("client"))
        if not self._open_requests.take(caller or ""):
            self._metrics.rate_limited.labels("at once").inc()
            most = self._settings.caller_limit
            response = too_many(1, f"This caller already has {most} open requests, which is the limit")
            await response(scope, receive, send)
            return
        try:
            body = await read_request_body(scope, receive, self._settings.body_limit, self._settings.body_seconds)
            await (body(scope, receive, send) if isinstance(body, Response) else app(scope, body, send))
        except ClientDisconnected:
            return  # nobody is left to answer
        finally:
            self._open_requests.release(caller or "")

    async def _refuse_unknown(self, scope: Scope) -> Response | None:
        kind, _, text = Headers(scope=scope).get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not text.strip():
            self._metrics.refused_credentials.labels("missing").inc()
            return self._challenge(scope, None)
        try:
            return await self.identify(scope, text.strip())
        except InvalidCredentials as rejected:
            if refused := self.count_failure(scope, rejected.error):
                return refused
            log.warning("refused credentials from %s: %s", address_key(scope.get("client")), rejected)
            return self._challenge(scope, rejected)

    async def identify(self, scope: Scope, bearer: str) -> Response | None:
        """Say whose request it is; the response that refuses it if the token is used too often.

        Raises InvalidCredentials if it is not valid.
        """
        verified = await self._credentials.verify(bearer)
        if wait := self._requests.take(verified.subject or ""):
            self._metrics.rate_limited.labels("caller").inc()
            return too_many(wait, "Too many requests with this token")
        scope["user"], scope["auth"] = AuthenticatedUser(verified), AuthCredentials()
        return None

    def _challenge(self, scope: Scope, rejected: InvalidCredentials | None) -> Response:
        """RFC 6750: what is wrong; RFC 9728: where to find out who issues tokens."""
        parts = ['realm="quorate"']
        if rejected is not None:
            parts += [f'error="{rejected.error}"', f'error_description="{rejected}"']
        if isinstance(rejected, InsufficientScope) or self._settings.issuer:
            parts.append('scope="quorate:read"')
        if self._settings.issuer:
            parts.append(f'resource_metadata="{metadata_url(scope, self._settings)}"')
        error, says = (rejected.error, str(rejected)) if rejected else ("unauthorized", "A bearer token is required")
        status = rejected.status if rejected else 401
        return refusal(status, error, says, WWW_Authenticate="Bearer " + ", ".join(parts))


class _AuthenticatedApp:
    """A class, because Starlette takes a function for a request handler."""

    def __init__(self, authenticator: Authenticator, app: ASGIApp) -> None:
        self._authenticator = authenticator
        self._inner = AuthContextMiddleware(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = await self._authenticator.authenticate(scope)
        await (
            refused(scope, receive, send) if refused else self._authenticator.admit(self._inner, scope, receive, send)
        )
