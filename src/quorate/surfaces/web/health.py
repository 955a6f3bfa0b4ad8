"""Is the process alive, and should it be sent calls? Neither answer says anything that is worth protecting."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quorate import __version__
from quorate.state.database import StateUnavailable
from quorate.state.store import Store
from quorate.surfaces.web.departure import Departure
from quorate.surfaces.web.replies import reply

HEALTH_PATHS = ("/healthz", "/readyz")


def health_routes(store: Store, departure: Departure) -> list[Route]:
    async def alive(_: Request) -> Response:
        return reply(200, {"status": "alive", "version": __version__})

    async def ready(_: Request) -> Response:
        """Clusters are not asked: one that is down is told by the calls to it, and the others go on."""
        if departure.leaving:
            return reply(503, {"status": "leaving"})
        try:
            await store.ready()
        except StateUnavailable:
            return reply(503, {"status": "not ready", "why": "the state store cannot be reached"})
        return reply(200, {"status": "ready"})

    return [Route("/healthz", alive), Route("/readyz", ready)]
