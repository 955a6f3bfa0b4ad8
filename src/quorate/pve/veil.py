"""A cluster as a caller may see it: what rules hide from reading is not listed, and not told when asked for.

The veil lies on the connection itself. Whatever operation reads, and by whichever path, reads through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from quorate.pve.cluster import Cluster
from quorate.pve.errors import Problem
from quorate.pve.inventory import Inventory, Resource
from quorate.pve.reach import GUEST, NODE, POOL, STORAGE, Reached, owner, reached
from quorate.pve.schema import Facts
from quorate.pve.subjects import Census, Subject, of_row
from quorate.pve.tasks import Upid

if TYPE_CHECKING:
    from quorate.pve.client import PveClient

Hides = Callable[[Subject], Problem | None]
"""Why something is not to be seen; None if it is."""

_KINDS = {"vm": GUEST, "ct": GUEST, "qemu": GUEST, "lxc": GUEST, "vms": GUEST, "node": NODE, "nodes": NODE}


async def veiled(original: Cluster, hides: Hides) -> Cluster:
    return _VeiledCluster(original, hides, await original.facts())


class _VeiledCluster(Cluster):
    """The same cluster on the same connection; what is learned about it stays with the original."""

    def __init__(self, original: Cluster, hides: Hides, facts: Facts) -> None:
        self.__dict__.update(original.__dict__)
        self._original = original
        self._client = cast("PveClient", _VeiledClient(original, hides, facts))
        self._inventory = _VeiledInventory(original, hides)

    async def version(self) -> dict[str, Any]:
        return await self._original.version()

    async def may(self, path: str, privilege: str) -> bool:
        return await self._original.may(path, privilege)

    def forget_rights(self) -> None:
        self._original.forget_rights()


class _VeiledInventory(Inventory):
    def __init__(self, original: Cluster, hides: Hides) -> None:
        super().__init__(original.client, original.clock)
        self._original = original.inventory
        self._hides = hides

    async def rows(self) -> list[Resource]:
        return self._seen(await self._original.rows())

    async def named_guests(self) -> list[Resource]:
        return self._seen(await self._original.named_guests())

    async def guest(self, ref: int | str) -> Resource:
        return self._shown(await self._original.guest(ref))

    async def node(self, name: str) -> Resource:
        return self._shown(await self._original.node(name))

    def forget(self) -> None:
        self._original.forget()

    def _seen(self, rows: list[Resource]) -> list[Resource]:
        return [row for row in rows if self._why_not(row) is None]

    def _shown(self, row: Resource) -> Resource:
        if problem := self._why_not(row):
            raise problem
        return row

    def _why_not(self, row: Resource) -> Problem | None:
        subject = of_row(row)
        return None if subject is None else self._hides(subject)


class _VeiledClient:
    def __init__(self, original: Cluster, hides: Hides, facts: Facts) -> None:
        self._client = original.client
        self._inventory = original.inventory
        self._hides = hides
        self._facts = facts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def get(self, path: str, /, **params: Any) -> Any:
        return (await self.request("GET", path, params)).data

    async def get_as(self, kind: type[Any], path: str, /, **params: Any) -> Any:
        census = await self._admitted(path, params)
        return self._without_hidden(await self._client.get_as(kind, path, **params), census)

    async def request(self, method: str, path: str, params: Mapping[str, Any] | None = None) -> Any:
        if method != "GET":  # the plan it belongs to has passed the gate
            return await self._client.request(method, path, params)
        census = await self._admitted(path, params or {})
        answer = await self._client.request(method, path, params)
        return msgspec.structs.replace(answer, data=self._without_hidden(answer.data, census))

    async def open_console(self, path: str) -> Any:
        await self._admitted(f"{path}/config", {})
        return await self._client.open_console(path)

    async def _admitted(self, path: str, params: Mapping[str, Any]) -> Census:
        """The guests as they are; raises if the path leads to what is hidden."""
        census = Census(await self._inventory.rows())
        match = self._facts.find("GET", path)
        for subject in census.subjects(reached(match, params)) if match else ():
            if problem := self._hides(subject):
                raise problem
        return census

    def _without_hidden(self, value: Any, census: Census) -> Any:
        """The same answer without rows about what is hidden."""
        if isinstance(value, list):
            return [self._without_hidden(one, census) for one in value if not self._is_hidden(one, census)]
        if isinstance(value, dict):
            return {name: self._without_hidden(one, census) for name, one in value.items()}
        return value

    def _is_hidden(self, row: Any, census: Census) -> bool:
        return any(self._hides(subject) for subject in census.subjects(list(_mentioned(row))))


def _mentioned(row: Any) -> Iterator[Reached]:
    """What a row of an answer is about."""
    told = row.get if isinstance(row, dict) else lambda name, default=None: getattr(row, name, default)
    if isinstance(row, (str, int, float, bool)) or row is None:
        return
    for name, kind in (("vmid", GUEST), ("guest", GUEST), ("node", NODE), ("storage", STORAGE), ("poolid", POOL)):
        value = told(name)
        if value not in (None, "", 0) and (kind != GUEST or str(value).isdecimal()):
            yield Reached(kind, str(value), node=str(value) if kind == NODE else str(told("node") or ""))
    for text in (told("id"), told("sid"), told("path")):
        yield from _by_spelling(str(text or ""))
    if (volume := told("volid")) and (found := owner(str(volume))) is not None:
        yield Reached(GUEST, str(found))
    if Upid.looks_like(told("upid")):
        task = Upid.parse(str(told("upid")))
        yield Reached(NODE, task.node, node=task.node)
        if task.id.isdecimal():
            yield Reached(GUEST, task.id)


def _by_spelling(text: str) -> Iterator[Reached]:
    """`qemu/100`, `/vms/100`, `vm:100`, `service:vm:100`, `node/pve1`"""
    parts = text.strip("/").replace(":", "/").split("/")
    area, name = parts[-2:] if len(parts) > 1 else ("", "")
    kind = _KINDS.get(area)
    if kind == GUEST and name.isdecimal():
        yield Reached(GUEST, name)
    elif kind == NODE and len(parts) == 2:
        yield Reached(NODE, name, node=name)
