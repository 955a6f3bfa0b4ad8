"""The public keys of an issuer: found by discovery, cached, fetched again when a new key id appears."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import jwt

from quorate.documents import read_json
from quorate.http_body import ACCEPTED, read_body
from quorate.http_client import aiohttp, public_connector
from quorate.pve.clock import Clock
from quorate.surfaces.web.credentials import InvalidCredentials

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
                connector=public_connector(),
            ) as session:
                found = await _json(session, self._jwks_url or await self._discover(session))
            keys = found["keys"]
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
            found = await _json(session, url)
        except (aiohttp.ClientResponseError, ValueError):
            continue
        if found.get("issuer") == issuer and isinstance(found.get("jwks_uri"), str):
            return dict(found)
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
