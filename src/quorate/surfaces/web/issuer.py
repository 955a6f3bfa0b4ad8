"""Tokens of an external issuer (JWT): believed only if signed by a key of its own, for us, and now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jwt

from quorate.config.http import HttpSettings
from quorate.pve.clock import Clock
from quorate.surfaces.web.credentials import InvalidCredentials, VerifiedToken, parse_scope
from quorate.surfaces.web.issuer_keys import ALGORITHMS, IssuerKeys

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
    found: list[str] = []
    for name in ("scope", "scp"):
        value = claims.get(name)
        if isinstance(value, str):
            found += value.split()
        elif isinstance(value, list):
            found += [one for one in value if isinstance(one, str)]
    return found
