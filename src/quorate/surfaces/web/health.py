"""Liveness and readiness. Neither answer holds anything worth protecting."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quorate import __version__
from quorate.state.freeze import Freeze
from quorate.state.store import StateUnavailable, Store
from quorate.surfaces.web.graceful_shutdown import GracefulShutdown
from quorate.surfaces.web.replies import reply

HEALTH_PATHS = ("/healthz", "/readyz")
STORE_TIMEOUT = 1.0


def health_routes(store: Store, shutdown: GracefulShutdown) -> list[Route]:
    freeze = Freeze(store)

    async def changes() -> str:
        """Reason and author are for authenticated callers; a slow store must not look like a dead process."""
        try:
            async with asyncio.timeout(STORE_TIMEOUT):
                return "allowed" if await freeze.state() is None else "frozen"
        except (StateUnavailable, TimeoutError):
            return "not known, so none are made"

    async def alive(_: Request) -> Response:
        return reply(200, {"status": "alive", "version": __version__, "changes": await changes()})

    async def ready(_: Request) -> Response:
        """Clusters are not asked: calls to one that is down fail on their own, and the others work."""
        if shutdown.leaving:
            return reply(503, {"status": "leaving"})
        try:
            await store.ready()
        except StateUnavailable:
            return reply(503, {"status": "not ready", "why": "the state store cannot be reached"})
        return reply(200, {"status": "ready", "changes": await changes()})

    return [Route("/healthz", alive), Route("/readyz", ready)]
