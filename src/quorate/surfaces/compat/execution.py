"""Arguments as callers send them: other spellings, unknown names, numbers as text, arguments without effect."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec

from quorate.operations.arguments import decode
from quorate.operations.registry import Table
from quorate.pipeline.caller import Exchange
from quorate.pipeline.pipeline import Pipeline, Result
from quorate.problems import (
    AuthenticationFailed,
    BadArgument,
    Conflict,
    GuestNotFound,
    NodeOffline,
    NoQuorum,
    NotFound,
    OutcomeUnknown,
    Problem,
    TaskFailed,
    TimedOut,
    Unreachable,
    UntrustedCertificate,
)
from quorate.pve.cluster import Defaults
from quorate.pve.inventory import Inventory
from quorate.pve.lookup import Resource
from quorate.pve.tasks import Upid
from quorate.secret import Secret
from quorate.state.journal import Outcome
from quorate.suggestions import suggest
from quorate.surfaces.compat.declaration import Tool

if TYPE_CHECKING:
    from quorate.homelab.homelab import Homelab
    from quorate.homelab.machines import Login
    from quorate.surfaces.compat.advice import AdviceTranslator


def decode_arguments(
    tool: Tool, received: Mapping[str, Any], opt_ins: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """All arguments of the tool by name, and remarks about those that were ignored. Raises Problem."""
    arguments, remarks = normalize_names(tool, received)
    unconfirmed = {name: False for name in tool.gate.arguments if arguments.get(name) is None}
    decoded = decode(tool, _loosen_types(tool, {**arguments, **unconfirmed}))
    if missing := next((name for name in tool.needs if not decoded[name]), None):
        raise BadArgument(f"{tool.name} needs the argument {missing!r}")
    if objection := tool.gate.objection(tool.name, decoded, opt_ins):
        raise objection
    return decoded, remarks


def normalize_names(tool: Tool, received: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments under the names that the tool reads, and remarks about the others.

    A tool that only reads ignores an unknown name, as those servers do. A change is refused instead, by the strict
    decoding: the name may be a typo of one that matters.
    """
    arguments, remarks = dict(received), []
    for parameter in tool.accepted:
        if isinstance(text := arguments.get(parameter.name), str) and parameter.type.startswith(("array", "object")):
            arguments[parameter.name] = _parse_json(text)
        for other in parameter.also:
            value = arguments.pop(other, None)
            if value is None:
                continue
            if arguments.get(parameter.name) is None:
                arguments[parameter.name] = value
            elif arguments[parameter.name] != value:
                remarks.append(f"{other} was ignored: {parameter.name} was given as well and wins.")
        if parameter.ignored and arguments.get(parameter.name) is not None:
            remarks.append(f"{parameter.name} was ignored: {parameter.ignored}.")
    if not tool.changes:
        known = [parameter.name for parameter in tool.accepted]
        for name in [name for name in arguments if name not in known]:
            del arguments[name]
            remarks.append(f"{name!r} was ignored: {_suggestion(tool, name)}")
    return arguments, remarks


def _loosen_types(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Many clients send null for an optional argument they leave out, and 100 is as good a vmid as "100"."""
    optional = {parameter.name for parameter in tool.parameters if not parameter.required}
    texts = {parameter.name for parameter in tool.parameters if parameter.type == "string"}
    return {
        key: str(value) if key in texts and type(value) in (int, float) else value
        for key, value in arguments.items()
        if not (value is None and key in optional)
    }


def _parse_json(text: str) -> Any:
    """A list or an object that a client has sent as JSON text; anything else stays as it is and is refused later."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (list, dict)) else text


def _suggestion(tool: Tool, name: str) -> str:
    hint = suggest(name, tool.spellings, "", cutoff=0.6)
    if hint:
        return f"{tool.name} has no such argument. {hint}"
    return f"{tool.name} takes {', '.join(tool.spellings) or 'no arguments'}."


LONGEST_WAIT = 50.0  # seconds of one task_wait
_NOT_OF_GUESTS = ("shared",)  # a field that only storages have
PAGE = 200  # rows of one page of a native list
USUAL_STORAGE = "local-lvm"


SILENT = (AuthenticationFailed, NodeOffline, NoQuorum, OutcomeUnknown, TimedOut, Unreachable, UntrustedCertificate)
"""Problems after which the cluster is not asked again: that would double the wait."""


@dataclass(frozen=True, slots=True)
class CompatSettings:
    """What the operator has configured for such a server, which knows a single cluster."""

    opt_ins: Collection[str] = ()
    """Variables that allow what is dangerous."""
    defaults: Defaults = field(default_factory=Defaults)
    """Used where the caller does not say."""
    cluster: str | None = None
    """The name of its cluster, if there are several."""
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Host of an API endpoint, or name of a cluster -> the cluster."""
    container_password: Secret | None = None
    """Root's password in new containers, if the tool has no such argument."""
    memory: dict[str, Any] = field(default_factory=dict)
    """Facts that calls have found and later calls reuse."""


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The native answer to a change."""

    facts: Mapping[str, Any]
    outcome: Outcome | None

    @property
    def tasks(self) -> list[str]:
        steps = self.facts.get("steps", [self.facts])
        return [step["task"] for step in steps if "task" in step]

    @property
    def task(self) -> str | None:
        """The task of the change; if there are several, the last, which ends when all is done."""
        return self.tasks[-1] if self.tasks else None

    @property
    def was_dry_run(self) -> bool:
        return self.outcome is Outcome.DRY_RUN

    @property
    def is_running(self) -> bool:
        return self.outcome is Outcome.RUNNING

    @property
    def remarks(self) -> dict[str, Any]:
        """What the caller should know in addition to the task."""
        return {key: self.facts[key] for key in ("warnings", "unchanged", "note") if key in self.facts}


@dataclass(frozen=True, slots=True)
class LocatedGuest:
    """A guest with its path in the API."""

    vmid: int
    name: str
    type: str
    node: str
    status: str

    @property
    def path(self) -> str:
        return f"/nodes/{self.node}/{self.type}/{self.vmid}"


class ToolCall:
    def __init__(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        pipeline: Pipeline,
        exchange: Exchange,
        settings: CompatSettings,
        translator: AdviceTranslator,
    ) -> None:
        self.tool = tool.name
        self.arguments = arguments
        self.opt_ins = settings.opt_ins
        self.memory = settings.memory
        self.container_password = settings.container_password.reveal() if settings.container_password else None
        self.pictures: tuple[bytes, ...] = ()
        self.remarks: list[str] = []
        """What the caller should know in addition to the answer."""
        self.subject: Resource | None = None
        """The guest that the call is about, once it is known."""
        self._declared = tool
        self._translator = translator
        self._pipeline = pipeline
        self._exchange = exchange
        self._settings = settings
        self._cluster = settings.cluster

    def __getitem__(self, name: str) -> Any:
        """An argument, its default, or None. Asking for a parameter that the tool lacks is a defect."""
        return self.arguments[name]

    # -- reads -----------------------------------------------------------------------------------------------------

    async def facts(self, operation: str, /, **arguments: Any) -> dict[str, Any]:
        data = (await self._run(operation, arguments)).data
        assert isinstance(data, dict), f"{operation} answers with a list"
        return self._translate(data)

    async def rows(self, operation: str, /, **arguments: Any) -> list[dict[str, Any]]:
        """All rows of a native list, page by page."""
        return (await self.listing(operation, **arguments))[0]

    async def listing(self, operation: str, /, **arguments: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """All rows of a native list, and its other facts."""
        rows: list[dict[str, Any]] = []
        while True:
            page = await self._table(operation, {"limit": PAGE, **arguments, "offset": len(rows)})
            rows += self._objects(page)
            if page.next_offset is None or not page.rows:
                return rows, self._translate(page.facts)

    async def some_rows(self, operation: str, /, **arguments: Any) -> list[dict[str, Any]]:
        """The rows of a native list that has no pages."""
        return self._objects(await self._table(operation, arguments))

    async def _table(self, operation: str, arguments: Mapping[str, Any]) -> Table:
        page = (await self._run(operation, arguments)).data
        assert isinstance(page, Table), f"{operation} answers without a list"
        return page

    def aim_at(self, host: str | None) -> None:
        """Use the cluster behind this host from here on; one that is not configured is refused."""
        if not host:
            return
        name = _hostname(host)
        if name not in self._settings.endpoints:
            raise NotFound(
                f"No Proxmox host {host!r} is configured",
                why=f"Configured: {', '.join(self._settings.endpoints) or 'none'}",
                next_step="Leave it out, or name one of them",
            )
        if self._settings.cluster is not None:
            self._cluster = self._settings.endpoints[name]

    async def get(self, path: str, /, **params: Any) -> Any:
        """PVE's own answer to a read, all of it."""
        asked = {"method": "GET", "path": path, "params": _without_none(params) or None}
        answer = (await self._run("api_call", asked, replace(self._exchange, in_full=True))).data
        assert isinstance(answer, dict)
        return self._translate(answer)["data"]

    @contextmanager
    def lending(self, login: Login) -> Iterator[None]:
        """In this context, operations that take no login use this one."""
        own = self._exchange
        self._exchange = replace(own, login=login)
        try:
            yield
        finally:
            self._exchange = own

    async def guest(
        self,
        vmid: int | None = None,
        name: str | None = None,
        *,
        node: str | None = None,
        type: str | None = None,
        fresh: bool = False,
    ) -> LocatedGuest:
        """Find one guest. `type` is qemu or lxc if the tool is for one of them only.

        The lookup is that of the native tools; by name, it asks the nodes. `fresh`: the status decides something, so
        it is read from the node.
        """
        if vmid is None and not name:
            raise BadArgument(f"{self.tool} needs a guest", next_step="Give vmid or name")
        async with self._inventory() as inventory:
            if vmid is None:
                inventory.distrust_names()
            candidates = await inventory.candidates(str(name) if vmid is None else vmid)
            rows = [
                await inventory.fresh_guest(row.vmid) if fresh else row
                for row in candidates
                if vmid in (None, row.vmid) and (not name or row.name == name) and node in (None, row.node)
            ]
            called = " ".join(str(part) for part in (vmid, name) if part) + (f" on node {node}" if node else "")
            if not rows:
                actual = next((row.name for row in candidates if row.vmid == vmid), "")
                if name and actual not in ("", name):
                    raise GuestNotFound(
                        f"Guest {vmid} is {actual}, not {name}",
                        next_step="Give only one of vmid and name, or the two of the same guest",
                    )
                absence = await inventory.absence(str(name) if vmid is None else vmid)
                raise GuestNotFound(f"There is no guest {called}", why=absence.why, next_step=absence.advice)
        if len(rows) > 1:
            raise Conflict(
                f"{len(rows)} guests are named {name}",
                why="; ".join(f"{row.vmid} on {row.node}" for row in rows),
                next_step="Give the vmid or the node",
            )
        row = rows[0]
        if type is not None and row.type != type:
            kinds = {"qemu": "VM", "lxc": "container"}
            raise BadArgument(f"{called} is a {kinds[row.type]}", why=f"{self.tool} is for {kinds[type]}s only")
        self.subject = row
        name = self._pipeline.sanitize(row.name)
        return LocatedGuest(row.vmid, name, row.type, row.node, "template" if row.template else row.status)

    async def resource(self, vmid: int) -> dict[str, Any]:
        """One guest's row of PVE's resource list, without reading the whole list."""
        async with self._inventory() as inventory:
            row = self._pipeline.sanitize(msgspec.to_builtins(await inventory.guest(vmid)))
        return {name: value for name, value in row.items() if value != "" and name not in _NOT_OF_GUESTS}

    async def guests(self, *, fresh: bool = False) -> list[dict[str, Any]]:
        """The guests of PVE's resource list, brought up to date."""
        return await self.up_to_date(await self.get("/cluster/resources", type="vm"), fresh=fresh)

    async def up_to_date(self, rows: list[dict[str, Any]], *, fresh: bool = False) -> list[dict[str, Any]]:
        """Rows of PVE's resource list, corrected by the nodes where the list lags.

        `fresh`: names or states decide something, so all nodes are asked.
        """
        async with self._inventory() as inventory:
            if not fresh and not inventory.lags and all("name" in row for row in rows if "vmid" in row):
                return rows
            known = {row.vmid: row for row in await (inventory.fresh_guests() if fresh else inventory.named_guests())}
        updated: list[dict[str, Any]] = [_up_to_date(row, known.get(row.get("vmid", 0))) for row in rows]
        return self._pipeline.sanitize(updated)  # type: ignore[no-any-return]

    def _inventory(self) -> AbstractAsyncContextManager[Inventory]:
        return self._pipeline.inventory(self._cluster, self._exchange.caller)

    async def node(self, name: str | None) -> str:
        """The given node, else the operator's default, else the only node there is."""
        if name or self._settings.defaults.node:
            return name or str(self._settings.defaults.node)
        names = await self.nodes()
        if len(names) == 1:
            return names[0]
        raise BadArgument(
            f"{self.tool} needs a node", why=f"Available: {', '.join(names)}", next_step="Give node, or set a default"
        )

    async def nodes(self) -> list[str]:
        """The nodes that are online."""
        async with self._inventory() as inventory:
            return sorted((await inventory.view()).online)

    @property
    def default_storage(self) -> str | None:
        """The storage that the operator configured."""
        return self._settings.defaults.storage

    async def usual_storage(self, name: str | None, node: str | None, content: str) -> str | None:
        """For new disks: the given storage, the operator's default, or the one those servers assume, if it exists."""
        if name or self.default_storage:
            return name or self.default_storage
        async with self._inventory() as inventory:
            rows = (await inventory.view()).of_type("storage")
        usual = [row for row in rows if row.storage == USUAL_STORAGE and node in (None, row.node)]
        return USUAL_STORAGE if any(row.holds(content) for row in usual) else None

    def storage(self, name: str | None) -> str:
        if storage := name or self._settings.defaults.storage:
            return storage
        raise BadArgument(f"{self.tool} needs a storage", next_step="Give storage, or set a default")

    async def wait_for(self, upid: str, seconds: float) -> dict[str, Any]:
        """PVE's status of a task once it has ended or the time is up."""
        while True:
            patience = min(seconds, LONGEST_WAIT)
            state = await self.facts("task_wait", task=upid, wait=patience, log_lines=0)
            seconds -= patience
            if state["status"] != "running" or seconds <= 0:
                return await self.task_status(upid)

    async def task_status(self, upid: str) -> dict[str, Any]:
        """As PVE reports it: status, exitstatus, type, id, user."""
        status: dict[str, Any] = await self.get(f"{Upid.parse(upid).path}/status")
        return status

    # -- changes ---------------------------------------------------------------------------------------------------

    async def change(self, operation: str, /, *, follow: float | None = None, **arguments: Any) -> ChangeResult:
        """Make a change and follow it for `follow` seconds (0: only start it), or as long as usual.

        The caller's `dry_run` and `plan_token` are passed on.
        """
        ours = {name: self.arguments.get(name) for name in ("dry_run", "plan_token")}
        exchange = self._exchange if follow is None else replace(self._exchange, wait_seconds=follow)
        result = await self._run(operation, {**ours, **arguments}, exchange)
        data = result.data
        assert isinstance(data, dict)
        facts = self._translate(data)
        if result.failed:
            raise TaskFailed(str(facts.get("plan", operation)), why=_why(facts), facts=facts)
        return ChangeResult(facts, result.outcome)

    async def _run(self, operation: str, arguments: Mapping[str, Any], exchange: Exchange | None = None) -> Result:
        about_homelab = self._pipeline.operation(operation).about_homelab
        if about_homelab and isinstance(host := arguments.get("host"), str):
            await self._require_one(host)
        of_cluster = self._cluster is not None and not about_homelab
        where = {"cluster": self._cluster} if of_cluster else {}
        native_arguments = {**where, **_without_none(arguments)}
        try:
            result = await self._pipeline.run(operation, native_arguments, exchange or self._exchange)
        except Problem as problem:
            if problem.advice and problem.advice.tools and not isinstance(problem, SILENT):
                await self._find_subject(arguments.get("guest"))
            raise
        self.pictures += result.pictures
        return result

    async def _find_subject(self, vmid: Any) -> None:
        """Find the guest, so that advice names its node, and no tool for the other type."""
        if self.subject is None and isinstance(vmid, int):
            with suppress(Problem):
                async with self._inventory() as inventory:
                    self.subject = (await inventory.view()).by_vmid.get(vmid)

    def _objects(self, table: Table) -> list[dict[str, Any]]:
        """Rows as objects without their empty cells, as PVE writes them."""
        rows = (zip(table.columns, row, strict=True) for row in table.rows)
        return [self._translate({name: value for name, value in row if value is not None}) for row in rows]

    def _translate(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        return self._translator.translate(facts, self._declared, self.subject)

    async def _require_one(self, host: str) -> None:
        """The tools of other systems name one host; a label or `all` would make them act on several."""
        from quorate.homelab.selection import expand_all  # only for tools about hosts

        site = self._pipeline.sites.home
        several = site is not None and (await expand_all(cast("Homelab", site.backend), host))[1]
        if "," in host or several:
            raise BadArgument(f"{self.tool} takes one host", next_step="Name a single host, not a label, a list or all")


def _hostname(text: str) -> str:
    """The host name in a URL, in `host:port`, or on its own."""
    try:
        return urlsplit(text if "//" in text else f"//{text}").hostname or ""
    except ValueError:
        return ""


def _without_none(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _up_to_date(row: dict[str, Any], known: Resource | None) -> dict[str, Any]:
    if known is None or known.is_unreported:
        return row
    reported = {
        key: getattr(known, key) for key in ("name", "status", "template", "maxcpu", "maxmem", "maxdisk", "uptime")
    }
    return {**row, **reported}


def _why(data: Mapping[str, Any]) -> str:
    steps = [str(step["why"]) for step in data.get("steps", [data]) if "why" in step]
    return "; ".join([f"It ended as: {data.get('result')}", *steps, *map(str, data.get("failures", ()))])
