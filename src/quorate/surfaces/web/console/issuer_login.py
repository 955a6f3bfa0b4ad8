"""Logging in at the OAuth issuer: authorization code with PKCE, for a public client."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from typing import Any
from urllib.parse import urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from quorate.config.http import MCP_PATH, HttpSettings
from quorate.documents import read_json
from quorate.http_body import ACCEPTED, read_body
from quorate.http_client import aiohttp, public_connector
from quorate.problems import Refused
from quorate.surfaces.web.console.templates import HEADERS, PATH
from quorate.surfaces.web.credentials import SCOPES
from quorate.surfaces.web.issuer_keys import (
    ANSWER_SECONDS,
    LARGEST_ANSWER,
    UNANSWERED,
    IssuerUnreachable,
    read_metadata,
)
from quorate.surfaces.web.origin_check import own_origin

COOKIE = "quorate_login"
WHOLE_SECONDS = 600
"""For the person to log in there."""


class IssuerLogin:
    def __init__(self, settings: HttpSettings) -> None:
        assert settings.issuer is not None
        self._issuer = settings.issuer
        self._client_id = settings.client_id or ""
        self._public_url = settings.public_url

    async def leave(self, request: Request, where: str) -> Response:
        """To the issuer. What later proves that it is the same browser stays in a cookie."""
        state, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(48)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._callback(request),
            "scope": " ".join(("openid", *SCOPES)),
            "resource": f"{self._origin(request)}{MCP_PATH}",
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = await self._endpoint("authorization_endpoint")
        joint = "&" if urlsplit(endpoint).query else "?"
        response = RedirectResponse(f"{endpoint}{joint}{urlencode(asked)}", status_code=303, headers=HEADERS)
        kept = base64.urlsafe_b64encode(json.dumps([state, verifier, where]).encode()).decode()
        response.set_cookie(
            COOKIE,
            kept,
            max_age=WHOLE_SECONDS,
            path=f"{PATH}/issuer",
            httponly=True,
            samesite="lax",
            secure=request.scope["scheme"] == "https",
        )
        return response

    async def come_back(self, request: Request) -> tuple[str, str]:
        """The access token, and the page to continue to."""
        try:
            state, verifier, where = json.loads(base64.urlsafe_b64decode(request.cookies.get(COOKIE, "")))
        except (ValueError, TypeError):
            raise Refused("This login was not started in this browser", next_step="Start it again") from None
        if not hmac.compare_digest(request.query_params.get("state", "").encode(), str(state).encode()):
            raise Refused("This login was not started in this browser", next_step="Start it again")
        if not (code := request.query_params.get("code")):
            raise Refused("The issuer did not log you in", next_step="Try again, or use a token")
        sent = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback(request),
            "client_id": self._client_id,
            "code_verifier": str(verifier),
        }
        found = await self._ask("POST", await self._endpoint("token_endpoint"), sent)
        token = found.get("access_token") if isinstance(found, dict) else None
        if not isinstance(token, str):
            raise Refused("The issuer gave no access token", next_step="Try again, or use a token")
        return token, str(where)

    async def _endpoint(self, name: str) -> str:
        try:
            async with self._session() as session:
                found = (await read_metadata(session, self._issuer)).get(name)
        except UNANSWERED:
            raise IssuerUnreachable("The issuer cannot be reached") from None
        if not isinstance(found, str) or urlsplit(found).scheme != urlsplit(self._issuer).scheme:
            raise IssuerUnreachable(f"The issuer does not publish a usable {name}")
        return found

    async def _ask(self, method: str, url: str, form: dict[str, str]) -> Any:
        try:
            async with (
                self._session() as session,
                session.request(method, url, data=form, allow_redirects=False) as answer,
            ):
                return read_json(await read_body(answer, LARGEST_ANSWER))
        except UNANSWERED:
            raise IssuerUnreachable("The issuer cannot be reached") from None

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(ANSWER_SECONDS),
            headers=ACCEPTED,
            auto_decompress=False,
            connector=public_connector(),
        )

    def _origin(self, request: Request) -> str:
        return self._public_url or own_origin(request.scope)

    def _callback(self, request: Request) -> str:
        return f"{self._origin(request)}{PATH}/issuer/callback"
