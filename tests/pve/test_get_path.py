"""A read passes through few functions on its way to the network."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import quorate
from quorate.pve.cluster import Cluster
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

PACKAGE = str(Path(quorate.__file__).parent)
MOST = 3


async def test_a_get_passes_through_at_most_three_functions_before_aiohttp(tmp_path, monkeypatch):
    paths: list[list[str]] = []
    send = aiohttp.ClientSession._request

    async def record_callers(session: aiohttp.ClientSession, *arguments: Any, **options: Any) -> aiohttp.ClientResponse:
        frames = [frame for frame in inspect.stack() if frame.filename.startswith(PACKAGE)]
        names = [frame.function for frame in frames]
        reads = [number for number, frame in enumerate(frames) if frame.frame.f_code is Cluster.get.__code__]
        if reads:
            paths.append(names[: reads[0]])
        return await send(session, *arguments, **options)

    monkeypatch.setattr(aiohttp.ClientSession, "_request", record_callers)
    async with rig(tmp_path) as served:
        await served.facts("guest_get", guest=104)
    assert paths
    assert max(map(len, paths)) <= MOST, max(paths, key=len)
