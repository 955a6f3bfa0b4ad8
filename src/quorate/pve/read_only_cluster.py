"""A read-only view of a cluster that records the reads and refuses writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from quorate.problems import Problem
from quorate.pve.cluster import Cluster

if TYPE_CHECKING:
    from quorate.pve.client import PveClient

Read = tuple[str, dict[str, Any]]
"""The path and the parameters of a read."""


class ReadOnlyCluster(Cluster):
    """The same cluster on the same connection; `reads` lists every request made through it."""

    def __init__(self, original: Cluster) -> None:
        self.__dict__.update(original.__dict__)
        self.reads: list[Read] = []
        self.reserved_vmids = set(original.reserved_vmids)
        self._client = cast("PveClient", _ReadOnlyClient(original.client, self.reads))
        self._inventory = None  # a new one, so that its read is recorded as well


class _ReadOnlyClient:
    def __init__(self, client: PveClient, reads: list[Read]) -> None:
        self._client = client
        self._reads = reads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def get(self, path: str, /, **params: Any) -> Any:
        self._reads.append((path, params))
        return await self._client.get(path, **params)

    async def get_as(self, kind: type[Any], path: str, /, **params: Any) -> Any:
        self._reads.append((path, params))
        return await self._client.get_as(kind, path, **params)

    async def request(self, method: str, path: str, params: Any = None) -> Any:
        if method != "GET":
            raise Problem(f"{method} {path} was not sent: this is only a look at what would be needed")
        self._reads.append((path, dict(params or {})))
        return await self._client.request(method, path, params)
