"""An OAuth issuer on loopback: metadata, keys, and tokens that are valid or invalid in every way."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import jwt
from aiohttp import web
from cryptography.hazmat.primitives import hashes, hmac, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from quorate.config.http import HttpSettings

AUDIENCE = "https://quorate.example.com/mcp"
_MAKERS: dict[str, Callable[[int], Any]] = {
    "RS256": lambda size: rsa.generate_private_key(public_exponent=65537, key_size=size),
    "ES256": lambda _: ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": lambda _: ed25519.Ed25519PrivateKey.generate(),
}


@dataclass
class FakeIssuer:
    url: str = ""
    private: dict[str, Any] = field(default_factory=dict)
    """Keys by kid."""
    published: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    silent: bool = False
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    """Issued authorization codes, and the request for each."""
    grants: dict[str, Any] = field(default_factory=dict)
    """Claims of the tokens that people get when they log in."""

    def add_key(self, kid: str, algorithm: str, size: int = 2048, **changes: Any) -> None:
        self.private[kid] = _MAKERS[algorithm](size)
        public = jwt.get_algorithm_by_name(algorithm).to_jwk(self.private[kid].public_key(), as_dict=True)
        self.published.append({**public, "kid": kid, "use": "sig", **changes})

    def settings(self, **changes: Any) -> HttpSettings:
        return HttpSettings(issuer=self.url, audience=(AUDIENCE,), **changes)

    def token(self, kid: str = "one", algorithm: str = "ES256", header: Any = None, **claims: Any) -> str:
        """A valid token, except for the given claims; a claim that is None is omitted."""
        now = int(time.time())
        all_claims = {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "exp": now + 300, "iat": now, **claims}
        all_claims.setdefault("scope", "quorate:read")
        return jwt.encode(
            {name: value for name, value in all_claims.items() if value is not None},
            self.private[kid],
            algorithm,
            headers={"kid": kid, **(header or {})},
        )


def unsigned(token: str, **header: Any) -> str:
    """The same claims under another header, without a signature."""
    return ".".join((_encoded(header), token.split(".")[1], ""))


def signed_with_public_key(issuer: FakeIssuer, kid: str) -> str:
    """The algorithm confusion attack: the public key used as the secret of an HMAC."""
    claims = issuer.token(kid, "RS256").split(".")[1]
    secret = (
        issuer.private[kid]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    signed = f"{_encoded({'alg': 'HS256', 'kid': kid, 'typ': 'JWT'})}.{claims}"
    code = hmac.HMAC(secret, hashes.SHA256())
    code.update(signed.encode())
    return f"{signed}.{base64.urlsafe_b64encode(code.finalize()).decode().rstrip('=')}"


def _encoded(facts: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(facts).encode()).decode().rstrip("=")


def _logged_in(issuer: FakeIssuer, asked: dict[str, str]) -> web.Response:
    """Log the person in and redirect back with a code."""
    code = f"code-{len(issuer.codes)}"
    issuer.codes[code] = asked
    back = f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"
    return web.Response(status=303, headers={"Location": back})


def _token(issuer: FakeIssuer, form: dict[str, str]) -> web.Response:
    """Exchange a code: it works once, for the client and browser that requested it."""
    asked = issuer.codes.pop(form.get("code", ""), None)
    digest = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest()).decode()
    if (
        asked is None
        or digest.rstrip("=") != asked["code_challenge"]
        or form["redirect_uri"] != asked["redirect_uri"]
        or form["client_id"] != asked["client_id"]
    ):
        return web.json_response({"error": "invalid_grant"}, status=400)
    return web.json_response({"access_token": issuer.token(**issuer.grants), "token_type": "Bearer"})


@asynccontextmanager
async def issuing(path: str = "") -> AsyncIterator[FakeIssuer]:
    issuer = FakeIssuer()

    async def answer(request: web.Request) -> web.Response:
        issuer.asked.append(request.path)
        if issuer.silent:
            return web.Response(status=500)
        if request.path == "/keys":
            return web.json_response({"keys": issuer.published})
        if request.path == "/authorize":
            return _logged_in(issuer, dict(request.query))
        if request.path == "/token":
            return _token(issuer, dict(await request.post()))  # type: ignore[arg-type]
        if request.path == f"/.well-known/oauth-authorization-server{path}":
            keys = issuer.url.removesuffix(path) + "/keys"
            origin = issuer.url.removesuffix(path)
            ends = {"authorization_endpoint": f"{origin}/authorize", "token_endpoint": f"{origin}/token"}
            return web.json_response({"issuer": issuer.url, "jwks_uri": keys, **ends} | issuer.metadata)
        return web.Response(status=404)

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    issuer.url = f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
    try:
        yield issuer
    finally:
        await runner.cleanup()
