"""The public keys of an issuer: found by discovery, kept for a while, looked up again when a new one appears."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import jwt
import msgspec

from quorate.pve.clock import Clock
from quorate.surfaces.web.credentials import Rejected

ALGORITHMS = {"RS256": "RSA", "ES256": "EC", "EdDSA": "OKP"}
"""Asymmetric ones only, each with the one type of key it goes with: a public key never serves as a shared secret."""
FRESH_SECONDS = 600.0
STALE_SECONDS = 3600.0
"""How long keys are believed while the issuer cannot be asked."""
REFETCH_SECONDS = 30.0
"""However many unknown keys callers name, the issuer is asked no more often."""
ANSWER_SECONDS = 10.0
LARGEST_ANSWER = 512 * 1024
SMALLEST_RSA_BITS = 2048
_METADATA = ("oauth-authorization-server", "openid-configuration")


class IssuerUnreachable(Exception):
    """Nobody can be believed now, because the issuer's keys cannot be read."""


class IssuerKeys:
    def __init__(self, issuer: str, jwks_url: str | None, clock: Clock) -> None:
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._clock = clock
        self._keys: dict[str, dict[str, Any]] = {}
        self._read_at = self._tried_at = -math.inf
        self._asking = asyncio.Lock()

    async def find(self, kid: str, algorithm: str) -> jwt.PyJWK:
        key = await self._named(kid)
        if key is None:
            raise Rejected("The issuer has no such key")
        return _usable(key, algorithm)

    async def _named(self, kid: str) -> dict[str, Any] | None:
        if self._wanting(kid):
            async with self._asking:
                if self._wanting(kid):
                    await self._renew()
        if self._age() > STALE_SECONDS:
            raise IssuerUnreachable("The keys of the issuer cannot be read")
        return self._keys.get(kid)

    def _wanting(self, kid: str) -> bool:
        old = kid not in self._keys or self._age() > FRESH_SECONDS
        return old and self._clock.monotonic() - self._tried_at >= REFETCH_SECONDS

    def _age(self) -> float:
        return self._clock.monotonic() - self._read_at

    async def _renew(self) -> None:
        self._tried_at = self._clock.monotonic()
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(ANSWER_SECONDS)) as session:
                found = await _json(session, self._jwks_url or await self._discovered(session))
            keys = found["keys"]
            self._keys = {key["kid"]: key for key in keys if isinstance(key.get("kid"), str)}
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError, TypeError, AttributeError):
            return  # what is known goes on being believed until it is stale
        self._read_at = self._clock.monotonic()

    async def _discovered(self, session: aiohttp.ClientSession) -> str:
        for url in _metadata_urls(self._issuer):
            try:
                found = await _json(session, url)
            except (aiohttp.ClientResponseError, ValueError):
                continue
            if found.get("issuer") == self._issuer and isinstance(found.get("jwks_uri"), str):
                jwks_url: str = found["jwks_uri"]
                if urlsplit(jwks_url).scheme != urlsplit(self._issuer).scheme:
                    raise ValueError("the keys are not where the issuer is safe")
                return jwks_url
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
        body = b""
        async for piece in answer.content.iter_chunked(64 * 1024):
            body += piece
            if len(body) > LARGEST_ANSWER:
                raise ValueError(f"{url} answered too much")
        return msgspec.json.decode(body)


def _usable(key: dict[str, Any], algorithm: str) -> jwt.PyJWK:
    """The key, if it is one for signing with this very algorithm."""
    fits = key.get("kty") == ALGORITHMS[algorithm] and key.get("alg", algorithm) == algorithm
    if not fits or key.get("use", "sig") != "sig" or (algorithm == "ES256" and key.get("crv") != "P-256"):
        raise Rejected("The issuer's key does not go with the token's algorithm")
    try:
        usable = jwt.PyJWK.from_dict({name: value for name, value in key.items() if name != "d"}, algorithm)
    except jwt.PyJWTError:
        raise Rejected("The issuer's key cannot be used") from None
    if algorithm == "RS256" and usable.key.key_size < SMALLEST_RSA_BITS:
        raise Rejected("The issuer's key is too short")
    return usable
