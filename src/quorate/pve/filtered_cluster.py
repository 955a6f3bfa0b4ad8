"""A cluster as a caller sees it: without the guests, nodes, storages and pools that rules hide.

Rows about hidden objects are left out. In everything else, such as the lines of a log, the comment of a rule, a list of
members or the text of an error, words that would reveal a hidden guest are blanked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import msgspec

from pve_schema.schema import Facts
from quorate.problems import Problem
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Inventory, Resource
from quorate.pve.lookup import View
from quorate.pve.targets import (
    GUEST,
    NODE,
    POOL,
    STORAGE,
    Census,
    Hides,
    Subject,
    TargetRef,
    find_targets,
    owner,
    subject_of,
)
from quorate.pve.tasks import Upid
from quorate.pve.wire import address, read

if TYPE_CHECKING:
    from quorate.pve.client import PveClient

BLANK = "(hidden)"
_Tree = dict[str, "_Tree"]
"""The letters that may follow."""
_END = ""
_DEEPEST = 30
"""Letters of a word that get a branch each; names are longer, and expressions must not be nested without end."""
_LIST = re.compile(r"(?:(?:vm|ct):)?\d+(?:\s*[,;\s]\s*(?:(?:vm|ct):)?\d+)*")
_VZDUMP = re.compile(r"\bvzdump(?: \d+)+")
_ITEM = re.compile(r"(?:(?:vm|ct):)?(?P<vmid>\d+)")
# What precedes the id of a guest: `VM 100`, `vm:100`, `qemu/100`, `vm-100-disk-0`, `tap100i0`, a field of a UPID.
_BEFORE = (
    r"\b(?:vms?|cts?|vmid|guests?|qemu|lxc|container|openvz|resource)['\"]?\s*[ :/=#-]\s*['\"]?"
    r"|\b(?:vm|base|subvol|basevol|vzdump-qemu|vzdump-lxc|vzdump-openvz|snap_vm)-"
    r"|\b(?:tap|veth|fwbr|fwpr|fwln)"
)
_GUEST_CONFIG = re.compile(r"/nodes/[^/]+/(?:qemu|lxc)/\d+/(?:snapshot/[^/]+/config|config|pending)")
_KINDS = {"vm": GUEST, "ct": GUEST, "qemu": GUEST, "lxc": GUEST, "vms": GUEST, "node": NODE, "nodes": NODE}


class HiddenWords:
    """Blanks out the guests that are hidden from one call."""

    def __init__(self, hidden: Collection[Subject] = (), seen: Collection[Subject] = ()) -> None:
        """Names and tags that a visible guest has as well stay."""
        self._ids = frozenset(guest.id for guest in hidden)
        self._names = frozenset(guest.name for guest in hidden if guest.name) - {guest.name for guest in seen}
        tags_in_use = {tag for guest in seen for tag in guest.tags}
        self.tags = frozenset(tag for guest in hidden for tag in guest.tags) - tags_in_use
        """Tags of hidden guests only. They are often plain words, so they are removed from lists of tags only."""

    def __bool__(self) -> bool:
        return bool(self._ids)

    def text(self, text: str) -> str:
        """The text without hidden members of a list, and with a blank for every other mention."""
        if not self:
            return text
        if _LIST.fullmatch(text) and any(vmid in text for vmid in self._ids):
            return self._members(text)
        if "vzdump" in text:
            text = _VZDUMP.sub(lambda match: self._arguments(match[0]), text)
        return _pattern(self._ids, self._names).sub(BLANK, text)

    def mentions(self, text: str) -> bool:
        return self.text(text) != text

    def _arguments(self, line: str) -> str:
        return " ".join(BLANK if word in self._ids else word for word in line.split(" "))

    def _members(self, text: str) -> str:
        kept = [item for item in re.split(r"[,;\s]+", text) if item and not self._is_hidden(item)]
        return ",".join(kept)

    def _is_hidden(self, item: str) -> bool:
        match = _ITEM.fullmatch(item)
        return match is not None and match["vmid"] in self._ids


@lru_cache(maxsize=16)  # calls come and go, and hide the same guests
def _pattern(ids: frozenset[str], names: frozenset[str]) -> re.Pattern[str]:
    number = _any_of(ids)
    words = [
        rf"(?:{_BEFORE}){number}(?![0-9])(?:-(?:disk|cloudinit|state)-?[\w.-]*)?",
        rf"(?<=:){number}(?=:)|\b{number}(?=@)|(?<=/){number}(?=[./]|$)",  # of tasks, `100@local` too; of a path
        rf"^{number}(?= )",  # the beginning of a line in the firewall's log
    ]
    if names:
        words.append(rf"(?:(?<![\w.-]){number} )?(?<![\w-]){_any_of(names)}(?![\w-])")
    return re.compile("|".join(words), re.I | re.M)


def _any_of(words: Iterable[str]) -> str:
    """An expression for any of the words, the longest first. As a tree, because thousands one by one take seconds."""
    root: _Tree = {}
    for word in (word.lower() if word.isascii() else word for word in words):
        node = root
        for letters in (*word[:_DEEPEST], word[_DEEPEST:]):
            node = node.setdefault(letters, {}) if letters else node
        node[_END] = {}
    return _expression(root)


def _expression(node: _Tree) -> str:
    branches = []
    for letters in sorted(node.keys() - {_END}, key=lambda branch: (-len(branch), branch)):
        text, below = letters, node[letters]
        while len(below) == 1 and _END not in below:
            ((further, below),) = below.items()
            text += further
        branches.append(re.escape(text) + (_expression(below) if below.keys() != {_END} else ""))
    return f"(?:{'|'.join(branches)}){'?' if _END in node else ''}"


async def filter_cluster(original: Cluster, hides: Hides) -> Cluster:
    return _FilteredCluster(original, hides, await original.facts())


class _FilteredCluster(Cluster):
    """A filtered view on the original's connection; caches stay with the original."""

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
        matching = await self._original.candidates(ref)
        seen = self.visible(matching)
        if matching and not seen:
            self._require_visible(matching[0])
        return seen

    @property
    def latest_read(self) -> int:
        return self._original.latest_read

    async def matching(self, ref: int | str, *, newer_than: int | None = None) -> list[Resource]:
        return self.visible(await self._original.matching(ref, newer_than=newer_than))

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
            hidden = [guest for guest in guests if self._hides(guest)]
            self._blanking = HiddenWords(hidden, [guest for guest in guests if guest not in hidden])
            self._counted = view
        return self._blanking

    def _without_hidden(self, value: Any, census: Census, words: HiddenWords) -> Any:
        """The answer without rows, members and words about hidden guests."""
        if isinstance(value, str):
            return words.text(value) if words else value
        if isinstance(value, list):
            return [
                self._without_hidden(item, census, words) for item in value if not self._is_hidden(item, census, words)
            ]
        if isinstance(value, dict):
            kept = ((name, part) for name, part in value.items() if not self._blanking.mentions(str(name)))
            return {name: self._without_hidden(part, census, words) for name, part in kept}
        if isinstance(value, msgspec.Struct) and words:
            parts = {name: getattr(value, name) for name in value.__struct_fields__}
            blanked = {name: self._without_hidden(part, census, words) for name, part in parts.items()}
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
    if (volume := field("volid")) and (vmid := owner(str(volume))) is not None:
        yield TargetRef(GUEST, str(vmid))
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
