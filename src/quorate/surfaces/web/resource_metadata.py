"""RFC 9728: what this server is called, and who gives out tokens for it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from quorate.config.http import MCP_PATH, HttpSettings
from quorate.surfaces.web.credentials import SCOPES
from quorate.surfaces.web.guard import own_origin
from quorate.surfaces.web.replies import reply

WELL_KNOWN = "/.well-known/oauth-protected-resource"


def metadata_routes(settings: HttpSettings) -> list[Route]:
    """Only with an issuer: a client that holds a token of ours has nobody to be sent to."""
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
