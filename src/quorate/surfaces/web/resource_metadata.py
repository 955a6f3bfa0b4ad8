"""RFC 9728: what this server is called, and who issues tokens for it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from quorate.config.http import MCP_PATH, HttpSettings
from quorate.surfaces.web.credentials import SCOPES
from quorate.surfaces.web.origin_check import own_origin
from quorate.surfaces.web.replies import reply

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
