"""Who a request over HTTP comes from: bearer tokens, and access tokens of an issuer."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import jwt
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from starlette.authentication import AuthCredentials
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from quorate.config.http import MCP_PATH, HttpSettings
from quorate.documents import ACCEPTED, read_body, read_json
from quorate.pve.connection import Clock
from quorate.state.store import StateUnavailable
from quorate.surfaces.web.credentials import (
    SCOPES,
    Credentials,
    InsufficientScope,
    InvalidCredentials,
    VerifiedToken,
    parse_scope,
)
from quorate.surfaces.web.health import Metrics
from quorate.surfaces.web.replies import refusal, reply, too_many
from quorate.surfaces.web.requests import (
    ClientDisconnected,
    ConcurrencyLimit,
    RateLimit,
    address_key,
    own_origin,
    read_request_body,
)

WELL_KNOWN = "/.well-known/oauth-protected-resource"


def metadata_routes(settings: HttpSettings) -> list[Route]:
    """Only with an issuer: our own tokens have no authorization server.

    The SDK's routes need a fixed URL. Ours follows the Host of the request if no public_url is set, and also serves
    the path without the resource's own.
    """
    if settings.issuer is None:
        return []

    async def describe(request: Request) -> Response:
        return reply(
            200,
            {
                "resource": f"{_origin(request.scope, settings)}{MCP_PATH}",
                "authorization_servers": [settings.issuer],
                "scopes_supported": list(SCOPES),
                "bearer_methods_supported": ["header"],
                "resource_name": "Quorate",
            },
        )

    return [Route(path, describe) for path in (WELL_KNOWN, f"{WELL_KNOWN}{MCP_PATH}")]


def metadata_url(scope: Scope, settings: HttpSettings) -> str:
    return f"{_origin(scope, settings)}{WELL_KNOWN}{MCP_PATH}"


def _origin(scope: Scope, settings: HttpSettings) -> str:
    return settings.public_url or own_origin(scope)


ALGORITHMS = {"RS256": "RSA", "ES256": "EC", "EdDSA": "OKP"}
"""Asymmetric algorithms only, each with its key type, so that a public key is never used as a shared secret."""
FRESH_SECONDS = 600.0
STALE_SECONDS = 3600.0
"""How long keys are trusted while the issuer is unreachable."""
REFETCH_SECONDS = 30.0
"""Unknown key ids never cause more frequent requests to the issuer."""
ANSWER_SECONDS = 10.0
LARGEST_ANSWER = 512 * 1024
SMALLEST_RSA_BITS = 2048
UNANSWERED = (aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError, TypeError, AttributeError)
"""Errors raised when an issuer is down or its answer is invalid."""
_METADATA = ("oauth-authorization-server", "openid-configuration")


class IssuerUnreachable(Exception):
    """Tokens cannot be verified now: the issuer's keys are unavailable."""


class IssuerKeys:
    def __init__(self, issuer: str, jwks_url: str | None, clock: Clock) -> None:
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._clock = clock
        self._keys: dict[str, dict[str, Any]] = {}
        self._read_at = self._tried_at = -math.inf
        self._asking = asyncio.Lock()

    async def find(self, kid: str, algorithm: str) -> jwt.PyJWK:
        key = await self._find_key(kid)
        if key is None:
            raise InvalidCredentials("The issuer has no such key")
        return _require_usable(key, algorithm)

    async def _find_key(self, kid: str) -> dict[str, Any] | None:
        if self._should_refetch(kid):
            async with self._asking:
                if self._should_refetch(kid):
                    await self._renew()
        if self._age() > STALE_SECONDS:
            raise IssuerUnreachable("The keys of the issuer cannot be read")
        return self._keys.get(kid)

    def _should_refetch(self, kid: str) -> bool:
        old = kid not in self._keys or self._age() > FRESH_SECONDS
        return old and self._clock.monotonic() - self._tried_at >= REFETCH_SECONDS

    def _age(self) -> float:
        return self._clock.monotonic() - self._read_at

    async def _renew(self) -> None:
        self._tried_at = self._clock.monotonic()
        try:
            async with aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(ANSWER_SECONDS),
                headers=ACCEPTED,
                auto_decompress=False,
                connector=aiohttp.TCPConnector(ssl=ssl.create_default_context()),
            ) as session:
                key_set = await _json(session, self._jwks_url or await self._discover(session))
            keys = key_set["keys"]
            self._keys = {key["kid"]: key for key in keys if isinstance(key.get("kid"), str)}
        except UNANSWERED:
            return  # known keys stay valid until they are stale
        self._read_at = self._clock.monotonic()

    async def _discover(self, session: aiohttp.ClientSession) -> str:
        jwks_url: str = (await read_metadata(session, self._issuer))["jwks_uri"]
        if urlsplit(jwks_url).scheme != urlsplit(self._issuer).scheme:
            raise ValueError("the keys are served over a weaker scheme than the issuer")
        return jwks_url


async def read_metadata(session: aiohttp.ClientSession, issuer: str) -> dict[str, Any]:
    """What the issuer publishes about itself. Raises one of UNANSWERED."""
    for url in _metadata_urls(issuer):
        try:
            metadata = await _json(session, url)
        except (aiohttp.ClientResponseError, ValueError):
            continue
        if metadata.get("issuer") == issuer and isinstance(metadata.get("jwks_uri"), str):
            return dict(metadata)
    raise LookupError("no metadata of the issuer")


def _metadata_urls(issuer: str) -> Iterator[str]:
    """Before the issuer's path (RFC 8414), and after it as OpenID Connect has it."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    for name in _METADATA:
        yield f"{origin}/.well-known/{name}{path}"
    if path:
        yield f"{origin}{path}/.well-known/openid-configuration"


async def _json(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url, allow_redirects=False, raise_for_status=True) as answer:
        if answer.status != 200:
            raise ValueError(f"{url} answered {answer.status}")
        return read_json(await read_body(answer, LARGEST_ANSWER))


def _require_usable(key: dict[str, Any], algorithm: str) -> jwt.PyJWK:
    """The key, if it is a signing key for this algorithm."""
    fits = key.get("kty") == ALGORITHMS[algorithm] and key.get("alg", algorithm) == algorithm
    if not fits or key.get("use", "sig") != "sig" or (algorithm == "ES256" and key.get("crv") != "P-256"):
        raise InvalidCredentials("The issuer's key does not match the token's algorithm")
    try:
        usable = jwt.PyJWK.from_dict({name: value for name, value in key.items() if name != "d"}, algorithm)
    except jwt.PyJWTError:
        raise InvalidCredentials("The issuer's key cannot be used") from None
    if algorithm == "RS256" and usable.key.key_size < SMALLEST_RSA_BITS:
        raise InvalidCredentials("The issuer's key is too short")
    return usable


LEEWAY_SECONDS = 30
LONGEST_SUBJECT = 255
TYPES = ("jwt", "at+jwt", "application/at+jwt")
_WHY = {
    jwt.ExpiredSignatureError: "The token has expired",
    jwt.ImmatureSignatureError: "The token is not valid yet",
    jwt.InvalidAudienceError: "The token was not made for this server",
    jwt.InvalidIssuerError: "The token comes from another issuer",
    jwt.InvalidSignatureError: "The token's signature is wrong",
    jwt.MissingRequiredClaimError: "The token lacks one of exp, iss, aud and sub",
}


class Issuer:
    def __init__(self, settings: HttpSettings, clock: Clock) -> None:
        assert settings.issuer is not None
        self._name = settings.issuer
        self._audience = list(settings.audience)
        self._keys = IssuerKeys(settings.issuer, settings.jwks_url, clock)

    async def verify(self, text: str) -> VerifiedToken:
        header = _header(text)
        key = await self._keys.find(header["kid"], header["alg"])
        try:
            claims = jwt.decode(
                text,
                key,
                algorithms=[header["alg"]],
                audience=self._audience,
                issuer=self._name,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except Exception as error:  # noqa: BLE001 - whatever a stranger's token upsets, it is not valid
            why = next((says for kind, says in _WHY.items() if isinstance(error, kind)), "The token is not valid")
            raise InvalidCredentials(why) from None
        try:
            return self._verified_token(claims)
        except (TypeError, ValueError, OverflowError):
            raise InvalidCredentials("The token's claims cannot be used") from None

    def _verified_token(self, claims: Mapping[str, Any]) -> VerifiedToken:
        subject = str(claims["sub"])
        if not subject.isprintable() or not 0 < len(subject) <= LONGEST_SUBJECT:
            raise InvalidCredentials("The token's subject cannot be used")
        granted = parse_scope(_words(claims))
        client = claims.get("client_id") or claims.get("azp") or ""
        return VerifiedToken(
            client_id=str(client)[:LONGEST_SUBJECT],
            scopes=[],
            expires_at=int(claims["exp"]) + LEEWAY_SECONDS,
            subject=f"{subject} of {self._name}",
            claims={"iss": self._name},
            granted=granted,
        )


def _header(text: str) -> dict[str, str]:
    """The part that says how it is signed. It comes from the caller, so it may choose only among what we allow."""
    try:
        header = jwt.get_unverified_header(text)
    except (jwt.PyJWTError, TypeError, ValueError, AttributeError, RecursionError):
        raise InvalidCredentials("This is neither a token of this server nor a JWT") from None
    if not isinstance(header.get("alg"), str) or header["alg"] not in ALGORITHMS:
        raise InvalidCredentials(f"The token must be signed with one of {', '.join(ALGORITHMS)}")
    if not isinstance(header.get("kid"), str) or "crit" in header:
        raise InvalidCredentials("The token does not name its key, or asks for an extension")
    if str(header.get("typ", "JWT")).lower() not in TYPES:
        raise InvalidCredentials("This is a JWT, but not an access token")
    return header


def _words(claims: Mapping[str, Any]) -> list[str]:
    """`scope` is one text with blanks, `scp` (of some issuers) a list or such a text."""
    words: list[str] = []
    for name in ("scope", "scp"):
        value = claims.get(name)
        if isinstance(value, str):
            words += value.split()
        elif isinstance(value, list):
            words += [word for word in value if isinstance(word, str)]
    return words


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
