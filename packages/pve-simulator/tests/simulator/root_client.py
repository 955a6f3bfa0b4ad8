"""A root client for arbitrary requests, with a clock that advances only where needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from pve_simulator.access.directory import ROOT, Token
from pve_simulator.api_client import Api, simulated_api
from pve_simulator.clock import ManualClock
from pve_simulator.world import World

_STUCK_SECONDS = 0.3  # real seconds after which a request is assumed to wait for simulated time
_LONGEST_TASK = 3600.0
_PASSWORD = "a-password"
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_JSON = {"Content-Type": "application/json"}


@dataclass(slots=True)
class Reply:
    """One answer; `body` is its JSON, or the text if it is not JSON."""

    status: int
    reason: str
    body: Any

    @property
    def data(self) -> Any:
        return self.body.get("data") if isinstance(self.body, dict) else None


class RootClient:
    """A client with all privileges: root by ticket, or root's token on request."""

    def __init__(self, root: Api, token: Api) -> None:
        self._root = root
        self._token = token

    @property
    def world(self) -> World:
        return self._root.cluster.world

    @property
    def clock(self) -> ManualClock:
        return self._root.clock

    def restore_access(self) -> None:
        """Undo what a request has done to root and to the nodes, so that the next one is accepted."""
        _restore_root(self._root)
        for node in self.world.nodes.values():
            node.online = True

    async def ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None = None,
        *,
        by_token: bool = False,
        as_json: bool = False,
    ) -> Reply:
        """Send one request; simulated time passes only if the answer waits for it."""
        api = self._token if by_token else self._root
        if as_json:
            sending = _send_json(api, method, path, json.dumps(params))
        else:
            sending = _send(api, method, path, urlencode(params or {}, doseq=True))
        request = asyncio.ensure_future(sending)
        step = 1.0
        while not (await asyncio.wait({request}, timeout=_STUCK_SECONDS))[0]:
            assert step < _LONGEST_TASK, f"no answer to {method} {path} {params}"
            await self.clock.advance(step)
            step *= 4
        return request.result()

    async def finish_tasks(self) -> None:
        """Let time pass until no task is running."""
        waited = 0.0
        while self.world.tasks.active() and waited < _LONGEST_TASK:
            await self.clock.advance(1.0)
            waited += 1.0


async def _send(api: Api, method: str, path: str, params: str) -> Reply:
    url = quote(path, safe="/")
    if method in ("POST", "PUT"):
        reply = await api.request(method, url, data=params, headers=_FORM)
    else:
        reply = await api.request(method, f"{url}?{params}" if params else url)
    return Reply(reply.status, reply.reason, _decoded(reply.text))


async def _send_json(api: Api, method: str, path: str, body: str) -> Reply:
    reply = await api.request(method, quote(path, safe="/"), data=body, headers=_JSON)
    return Reply(reply.status, reply.reason, _decoded(reply.text))


def _decoded(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except json.JSONDecodeError:
        return text


def _restore_root(api: Api) -> None:
    access = api.cluster.world.access
    root = access.users[ROOT]
    root.password, root.enable, root.expire = _PASSWORD, True, 0
    root.tokens["simulator"] = Token(api.cluster.token_secret, privsep=False)
    access.invalidate_cache()


@asynccontextmanager
async def root_client(**options: Any) -> AsyncIterator[RootClient]:
    """A cluster with a driven clock, and a root client."""
    async with simulated_api(**options) as token:
        _restore_root(token)
        yield RootClient(await token.as_user(ROOT, _PASSWORD), token)
