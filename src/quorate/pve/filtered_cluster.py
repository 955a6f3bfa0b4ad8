"""A cluster as a caller may see it: without what the rules hide, in lists and in single reads.

The filter is in the connection itself, so every read of every operation passes through it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import msgspec

from pve_schema.schema import Facts
from quorate.problems import Problem
from quorate.pve.cluster import Cluster
from quorate.pve.hidden_words import HiddenWords
from quorate.pve.inventory import Inventory, Resource
from quorate.pve.lookup import View
from quorate.pve.subjects import Census, Hides, subject_of
from quorate.pve.targets import GUEST, NODE, POOL, STORAGE, TargetRef, find_targets, owner
from quorate.pve.tasks import Upid
from quorate.pve.wire import address, read

if TYPE_CHECKING:
    from quorate.pve.client import PveClient

_GUEST_CONFIG = re.compile(r"/nodes/[^/]+/(?:qemu|lxc)/\d+/(?:snapshot/[^/]+/config|config|pending)")
_KINDS = {"vm": GUEST, "ct": GUEST, "qemu": GUEST, "lxc": GUEST, "vms": GUEST, "node": NODE, "nodes": NODE}


async def filter_cluster(original: Cluster, hides: Hides) -> Cluster:
    return _FilteredCluster(original, hides, await original.facts())


class _FilteredCluster(Cluster):
    """The same cluster on the same connection; caches stay with the original."""

    def __init__(self, original: Cluster, hides: Hides, facts: Facts) -> None:
        self.__dict__.update(original.__dict__)
        self._original = original
        self._filter = _FilteredClient(original, hides, facts)
        self._client = cast("PveClient", self._filter)
        self._inventory = _FilteredInventory(original, hides)

    @property
    def original(self) -> Cluster:
        return self._original

    async def version(self) -> dict[str, Any]:
        return await self._original.version()

    async def visibility(self) -> str:
        hidden = len(await self._original.inventory.guests()) - len(await self.inventory.guests())
        return f"all but {hidden} guests that the rules hide from it"

    async def blanker(self) -> Callable[[str], str]:
        return (await self._filter.blanking()).text

    async def may(self, path: str, privilege: str) -> bool:
        return await self._original.may(path, privilege)

    async def explain(self, problem: Problem) -> Problem:
        return await self._original.explain(problem)

    def forget_privileges(self) -> None:
        self._original.forget_privileges()


class _FilteredInventory(Inventory):
    def __init__(self, original: Cluster, hides: Hides) -> None:
        super().__init__(original.client, original.clock, original.may)
        self._original = original.inventory
        self._hides = hides
        self._filtered: tuple[View, View] | None = None

    async def view(self) -> View:
        """The visible rows. Where the cluster does not know a guest's name yet, its node is asked."""
        whole = await self._original.complete_view()
        if self._filtered is None or self._filtered[0] is not whole:
            self._filtered = (whole, View(self.visible(whole.rows)))
        return self._filtered[1]

    async def complete_view(self) -> View:
        return await self.view()

    async def candidates(self, ref: int | str) -> list[Resource]:
        """The visible ones. A hidden guest makes no name ambiguous and is never suggested."""
        found = await self._original.candidates(ref)
        seen = self.visible(found)
        if found and not seen:
            self._require_visible(found[0])
        return seen

    async def matching(self, ref: int | str, *, closer: bool = False) -> list[Resource]:
        return self.visible(await self._original.matching(ref, closer=closer))

    async def fresh_guests(self, node: str | None = None) -> list[Resource]:
        return self.visible(await self._original.fresh_guests(node))

    async def fresh_guest(self, vmid: int) -> Resource:
        return self._require_visible(await self._original.fresh_guest(vmid))

    async def fresh_storages(self, node: str) -> list[Resource]:
        return self.visible(await self._original.fresh_storages(node))

    async def node(self, name: str) -> Resource:
        whole = await self._original.view()
        if name in whole.nodes:
            self._require_visible(whole.nodes[name])
        return await super().node(name)

    def forget(self, changed: Iterable[int] = ()) -> None:
        self._original.forget(changed)

    @property
    def lags(self) -> bool:
        return self._original.lags

    def distrust_names(self) -> None:
        self._original.distrust_names()

    def visible(self, rows: list[Resource]) -> list[Resource]:
        return [row for row in rows if self._why_not(row) is None]

    def _require_visible(self, row: Resource) -> Resource:
        if problem := self._why_not(row):
            raise problem
        return row

    def _why_not(self, row: Resource) -> Problem | None:
        subject = subject_of(row)
        return None if subject is None else self._hides(subject)


class _FilteredClient:
    def __init__(self, original: Cluster, hides: Hides, facts: Facts) -> None:
        self._cluster = original
        self._client = original.client
        self._inventory = original.inventory
        self._hides = hides
        self._facts = facts
        self._blanking = HiddenWords()
        self._counted: View | None = None
        """The view that it was built from."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def get(self, path: str, /, **params: Any) -> Any:
        return (await self.request("GET", path, params)).data

    async def get_as(self, kind: type[Any], path: str, /, **params: Any) -> Any:
        path, census = await self._authorize_path(path, params)
        with self._blanked_problems():
            answer = await self._client.get_as(kind, path, **params)
        return self._without_hidden(answer, census, _words(path, self._blanking))

    async def request(self, method: str, path: str, params: Mapping[str, Any] | None = None) -> Any:
        if method != "GET":  # its plan is authorized
            return await self._client.request(method, path, params)
        path, census = await self._authorize_path(path, params or {})
        with self._blanked_problems():
            answer = await self._client.request(method, path, params)
        visible = self._without_hidden(answer.data, census, _words(path, self._blanking))
        return msgspec.structs.replace(answer, data=visible)

    async def open_console(self, path: str) -> Any:
        await self._authorize_path(f"{path}/config", {})
        return await self._client.open_console(path)

    async def _authorize_path(self, path: str, params: Mapping[str, Any]) -> tuple[str, Census]:
        """The path with the node's real name, and the current guests. Raises if the path leads to something hidden."""
        path = await address(self._cluster, path)
        census = Census((await self._inventory.complete_view()).guests)
        await self.blanking()
        request = read(self._facts, "GET", path, params)
        for subject in census.subjects(find_targets(request)) if request else ():
            if problem := self._hides(subject):
                raise problem
        return path, census

    async def blanking(self) -> HiddenWords:
        """Blanks out the guests that are hidden now."""
        view = await self._inventory.complete_view()
        if view is not self._counted:
            guests = Census(view.guests).guests
            hidden = [one for one in guests if self._hides(one)]
            self._blanking, self._counted = HiddenWords(hidden, [one for one in guests if one not in hidden]), view
        return self._blanking

    def _without_hidden(self, value: Any, census: Census, words: HiddenWords) -> Any:
        """The answer without rows, members and words about hidden guests."""
        if isinstance(value, str):
            return words.text(value) if words else value
        if isinstance(value, list):
            return [
                self._without_hidden(one, census, words) for one in value if not self._is_hidden(one, census, words)
            ]
        if isinstance(value, dict):
            kept = ((name, one) for name, one in value.items() if not self._blanking.mentions(str(name)))
            return {name: self._without_hidden(one, census, words) for name, one in kept}
        if isinstance(value, msgspec.Struct) and words:
            parts = {name: getattr(value, name) for name in value.__struct_fields__}
            blanked = {name: self._without_hidden(one, census, words) for name, one in parts.items()}
            return value if blanked == parts else msgspec.structs.replace(value, **blanked)
        return value

    @contextmanager
    def _blanked_problems(self) -> Iterator[None]:
        try:
            yield
        except Problem as problem:
            if self._blanking:
                problem.transform(lambda part: self._blanking.text(part) if isinstance(part, str) else part)
            raise

    def _is_hidden(self, row: Any, census: Census, words: HiddenWords) -> bool:
        if isinstance(row, str):
            return row in words.tags
        return any(self._hides(subject) for subject in census.subjects(list(_targets_in(row))))


def _words(path: str, blanking: HiddenWords) -> HiddenWords:
    """The configuration of a visible guest is not blanked, because changes send parts of it back."""
    return HiddenWords() if _GUEST_CONFIG.fullmatch(path) else blanking


def _targets_in(row: Any) -> Iterator[TargetRef]:
    """The targets that a row of an answer mentions."""
    field = row.get if isinstance(row, dict) else lambda name, default=None: getattr(row, name, default)
    if isinstance(row, (str, int, float, bool)) or row is None:
        return
    for name, kind in (("vmid", GUEST), ("guest", GUEST), ("node", NODE), ("storage", STORAGE), ("poolid", POOL)):
        value = field(name)
        if value not in (None, "", 0) and (kind != GUEST or str(value).isdecimal()):
            yield TargetRef(kind, str(value), node=str(value) if kind == NODE else str(field("node") or ""))
    for text in (field("id"), field("sid"), field("path")):
        yield from _targets_in_text(str(text or ""))
    if field("type") in ("qemu", "lxc") and str(field("id")).isdecimal():
        yield TargetRef(GUEST, str(field("id")))
    if (volume := field("volid")) and (found := owner(str(volume))) is not None:
        yield TargetRef(GUEST, str(found))
    if Upid.looks_like(field("upid")):
        task = Upid.parse(str(field("upid")))
        yield TargetRef(NODE, task.node, node=task.node)
        if task.vmid:
            yield TargetRef(GUEST, task.vmid)


def _targets_in_text(text: str) -> Iterator[TargetRef]:
    """`qemu/100`, `/vms/100`, `vm:100`, `service:vm:100`, `node/pve1`"""
    parts = text.strip("/").replace(":", "/").split("/")
    area, name = parts[-2:] if len(parts) > 1 else ("", "")
    kind = _KINDS.get(area)
    if kind == GUEST and name.isdecimal():
        yield TargetRef(GUEST, name)
    elif kind == NODE and len(parts) == 2:
        yield TargetRef(NODE, name, node=name)
