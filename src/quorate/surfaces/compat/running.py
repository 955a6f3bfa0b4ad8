"""One call of a tool while it runs: its arguments, and the native operations it is made of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from quorate.operations.api.answers import in_full
from quorate.operations.registry import Table
from quorate.pipeline.caller import Exchange
from quorate.pipeline.run import Pipeline, Result
from quorate.pve.cluster import Defaults
from quorate.pve.errors import BadArgument, Conflict, NotFound, TaskFailed
from quorate.pve.tasks import Upid

LONGEST_WAIT = 50.0  # of one call of task_wait
PAGE = 200  # what a native list gives at most at once
KINDS = {"vm": "qemu", "ct": "lxc"}


@dataclass(frozen=True, slots=True)
class House:
    """What the operator of such a server has set up: it knows one cluster."""

    opt_ins: Collection[str] = ()
    """Variables by which it is allowed what is dangerous."""
    defaults: Defaults = field(default_factory=Defaults)
    """What is taken when the caller does not say."""
    among_several: str | None = None
    """The name of its cluster, where Quorate runs others beside it."""
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Host of an API endpoint -> the cluster behind it; the clusters' own names are among them."""


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a change, in the words of the native answer."""

    facts: Mapping[str, Any]

    @property
    def tasks(self) -> list[str]:
        steps = self.facts.get("steps", [self.facts])
        return [step["task"] for step in steps if "task" in step]

    @property
    def task(self) -> str | None:
        """The task of the change; of several the last, which ends when all is done."""
        return self.tasks[-1] if self.tasks else None

    @property
    def was_dry_run(self) -> bool:
        return str(self.facts["result"]).startswith("dry run")

    @property
    def is_running(self) -> bool:
        return bool(self.facts["result"] == "running")

    @property
    def remarks(self) -> dict[str, Any]:
        """What the caller should know beside the task."""
        return {key: self.facts[key] for key in ("warnings", "unchanged", "note") if key in self.facts}


@dataclass(frozen=True, slots=True)
class Found:
    """A guest, as its place in the API names it."""

    vmid: int
    name: str
    type: str
    node: str
    status: str

    @property
    def path(self) -> str:
        return f"/nodes/{self.node}/{self.type}/{self.vmid}"


class Run:
    def __init__(
        self, tool: str, arguments: Mapping[str, Any], pipeline: Pipeline, exchange: Exchange, house: House
    ) -> None:
        self.tool = tool
        self.arguments = arguments
        self.opt_ins = house.opt_ins
        self.pictures: tuple[bytes, ...] = ()
        self._pipeline = pipeline
        self._exchange = exchange
        self._house = house
        self._cluster = house.among_several

    def __getitem__(self, name: str) -> Any:
        """An argument, its default, or None. A parameter that the tool does not have is a defect."""
        return self.arguments[name]

    # -- reads -----------------------------------------------------------------------------------------------------

    async def facts(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
        data = (await self._run(operation, arguments)).data
        assert isinstance(data, dict), f"{operation} answers with a list"
        return data

    async def rows(self, operation: str, /, **arguments: Any) -> list[dict[str, Any]]:
        """All rows of a native list, page by page."""
        return (await self.listing(operation, **arguments))[0]

    async def listing(self, operation: str, /, **arguments: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """All rows of a native list, and what stands beside them."""
        rows: list[dict[str, Any]] = []
        while True:
            page = await self._table(operation, {"limit": PAGE, **arguments, "offset": len(rows)})
            rows += _objects(page)
            if page.next_offset is None or not page.rows:
                return rows, page.facts

    async def some_rows(self, operation: str, /, **arguments: Any) -> list[dict[str, Any]]:
        """The rows of a native list that has no pages."""
        return _objects(await self._table(operation, arguments))

    async def _table(self, operation: str, arguments: Mapping[str, Any]) -> Table:
        page = (await self._run(operation, arguments)).data
        assert isinstance(page, Table), f"{operation} answers without a list"
        return page

    def aim_at(self, host: str | None) -> None:
        """From here on it is about the cluster behind this host; what nobody has set up here is refused."""
        if not host:
            return
        name = _hostname(host)
        if name not in self._house.endpoints:
            raise NotFound(
                f"There is no Proxmox host {host!r} in the settings",
                why=f"There are {', '.join(self._house.endpoints) or 'none'}",
                next_step="Leave it out, or name one of them",
            )
        if self._house.among_several is not None:
            self._cluster = self._house.endpoints[name]

    async def get(self, path: str, /, **params: Any) -> Any:
        """PVE's own answer to a read, all of it."""
        with in_full():
            answer = await self.facts("api_call", method="GET", path=path, params=_given(params) or None)
        return answer["data"]

    async def guest(
        self, vmid: int | None = None, name: str | None = None, *, node: str | None = None, type: str | None = None
    ) -> Found:
        """The one guest that is meant. `type` is qemu or lxc, where the tool is for one of them only."""
        if vmid is None and not name:
            raise BadArgument(f"{self.tool} needs a guest", next_step="Give vmid or name")
        found = [guest for guest in await self._guests(name, node) if (vmid is None or guest.vmid == vmid)]
        called = " ".join(str(one) for one in (vmid, name) if one) + (f" on node {node}" if node else "")
        if not found:
            raise NotFound(f"There is no guest {called}")
        if len(found) > 1:
            raise Conflict(
                f"{len(found)} guests are called {name}",
                why="; ".join(f"{guest.vmid} on {guest.node}" for guest in found),
                next_step="Give the vmid or the node",
            )
        if type is not None and found[0].type != type:
            kinds = {"qemu": "VM", "lxc": "container"}
            raise BadArgument(f"{called} is a {kinds[found[0].type]}", why=f"{self.tool} is for {kinds[type]}s only")
        return found[0]

    async def _guests(self, name: str | None, node: str | None) -> list[Found]:
        rows = await self.rows("guest_list", name=name, node=node)
        guests = [
            Found(row["vmid"], row.get("name", ""), KINDS[row["type"]], row["node"], row["status"]) for row in rows
        ]
        return [guest for guest in guests if not name or guest.name == name]

    async def node(self, given: str | None) -> str:
        """The node that is meant: the given one, the operator's default, or the only one there is."""
        if given or self._house.defaults.node:
            return given or str(self._house.defaults.node)
        names = await self.nodes()
        if len(names) == 1:
            return names[0]
        raise BadArgument(
            f"{self.tool} needs a node", why=f"There are {', '.join(names)}", next_step="Give node, or set a default"
        )

    async def nodes(self) -> list[str]:
        """Those that are online."""
        rows = await self.get("/cluster/resources", type="node")
        return sorted(row["node"] for row in rows if row.get("status") == "online")

    def storage(self, given: str | None) -> str:
        if storage := given or self._house.defaults.storage:
            return storage
        raise BadArgument(f"{self.tool} needs a storage", next_step="Give storage, or set a default")

    async def wait_for(self, upid: str, seconds: float) -> dict[str, Any]:
        """PVE's status of a task that has ended, or still runs after so many seconds."""
        while True:
            patience = min(seconds, LONGEST_WAIT)
            state = await self.facts("task_wait", task=upid, wait=patience, log_lines=0)
            seconds -= patience
            if state["status"] != "running" or seconds <= 0:
                return await self.task_status(upid)

    async def task_status(self, upid: str) -> dict[str, Any]:
        """As PVE tells it: status, exitstatus, type, id, user."""
        status: dict[str, Any] = await self.get(f"{Upid.parse(upid).path}/status")
        return status

    # -- changes ---------------------------------------------------------------------------------------------------

    async def change(self, operation: str, /, *, follow: float | None = None, **arguments: Any) -> Done:
        """Make a change and follow it: as long as usual, or for so many seconds (0: only begin it).

        The caller's `dry_run` and `plan_token` go along by themselves.
        """
        ours = {name: self.arguments.get(name) for name in ("dry_run", "plan_token")}
        result = await self._run(operation, {**ours, **arguments}, follow)
        data = result.data
        assert isinstance(data, dict)
        if result.failed:
            raise TaskFailed(str(data.get("plan", operation)), why=_why(data), facts=data)
        return Done(data)

    async def _run(self, operation: str, arguments: Mapping[str, Any], follow: float | None = None) -> Result:
        pipeline = self._pipeline if follow is None else self._pipeline.variant(wait_seconds=follow)
        of_cluster = self._cluster is not None and not pipeline.operation(operation).about_homelab
        where = {"cluster": self._cluster} if of_cluster else {}
        result = await pipeline.run(operation, {**where, **_given(arguments)}, self._exchange)
        self.pictures += result.pictures
        return result


def _hostname(text: str) -> str:
    """Of a URL, `host:port` or the name itself."""
    try:
        return urlsplit(text if "//" in text else f"//{text}").hostname or ""
    except ValueError:
        return ""


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _objects(table: Table) -> list[dict[str, Any]]:
    """Rows as objects; what a row does not have is left out, as PVE does."""
    rows = (zip(table.columns, row, strict=True) for row in table.rows)
    return [{name: value for name, value in row if value is not None} for row in rows]


def _why(data: Mapping[str, Any]) -> str:
    steps = [str(step["why"]) for step in data.get("steps", [data]) if "why" in step]
    return "; ".join([f"It ended as: {data.get('result')}", *steps, *map(str, data.get("failures", ()))])
