"""A cluster and its guests: lookup, privileges, reads that follow a guest to its node, and a read-only view."""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from pve_schema.schema import Facts, facts
from quorate.command_rules import CommandRules
from quorate.hints import Advice
from quorate.problems import AgentSilent, Conflict, NotFound, PermissionMissing, Problem
from quorate.pve.connection import Clock, Connection, SystemClock
from quorate.pve.errors import PrivilegeGap
from quorate.pve.inventory import Inventory
from quorate.pve.lookup import ListedGuest, Reference, Resource, StaleName, guests_in
from quorate.pve.privileges import granting_roles
from quorate.pve.targets import GUEST, GUESTS, Census, Hides, Subject, TargetRef
from quorate.pve.tasks import OwnTasks
from quorate.pve.values import is_on
from quorate.ssh.settings import SshAccess

if TYPE_CHECKING:
    from quorate.pve.client import PveClient

PRIVILEGES_LIFE_SECONDS = 60.0
VERSION_LIFE_SECONDS = 600.0
STATUS, CONFIG = "status/current", "config"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What to use where the caller specifies nothing."""

    node: str | None = None
    storage: str | None = None
    bridge: str | None = None
    user: str | None = None
    """The login of new guests with cloud-init."""
    ssh_keys: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


Attached = TypeVar("Attached")
Neighbors = Callable[[], Awaitable[tuple[Sequence["Cluster"], Sequence["Cluster"]]]]
"""The clusters as a caller sees them; and, unfiltered, those whose machines it must not use as plain hosts."""
OtherCluster = Callable[[str], Awaitable["Cluster"]]
"""Another cluster by its name, as the caller may see it. Raises if the caller may not use it."""


class Cluster:
    def __init__(
        self,
        name: str,
        connection: Connection,
        *,
        defaults: Defaults | None = None,
        clock: Clock | None = None,
        ssh: SshAccess | None = None,
        command_rules: CommandRules | None = None,
        attachments: Iterable[object] = (),
    ) -> None:
        self.name = name
        self.defaults = defaults or Defaults()
        self.clock = clock or SystemClock()
        self.ssh = ssh or SshAccess()
        self.command_rules = command_rules or CommandRules()
        self._connection = connection
        self._client: PveClient | None = None
        self._inventory: Inventory | None = None
        self._version: dict[str, Any] | None = None
        self._version_due = 0.0
        self._privileges: dict[str, Mapping[str, int]] = {}
        self._privileges_read_at = float("-inf")
        self._reading_privileges = asyncio.Lock()
        self.reserved_vmids: set[int] = set()
        """Ids chosen by calls in progress, so that two of them never choose the same."""
        self.own_tasks = OwnTasks()
        """Tasks that our calls started, so that the task of a lost answer is not confused with another."""
        self.agent_queues: defaultdict[int, AgentQueue] = defaultdict(AgentQueue)
        """The queue of each VM's agent, by vmid."""
        self._attachments = {type(attachment): attachment for attachment in attachments}

    @property
    def connection(self) -> Connection:
        """How to reach it, with secrets, for another cluster that has to connect to it."""
        return self._connection

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(self._connection.endpoints)

    @property
    def client(self) -> PveClient:
        if self._client is None:
            from quorate.pve.client import PveClient  # aiohttp is not needed to list the tools

            self._client = PveClient(self._connection, clock=self.clock)
        return self._client

    def attach(self, attachment: object) -> None:
        self._attachments[type(attachment)] = attachment

    def attachment(self, kind: type[Attached]) -> Attached:
        """What this server keeps for the cluster, by its class: runs, background jobs, the freeze.

        These belong to layers above, which this one does not know.
        """
        attached = self._attachments[kind]
        assert isinstance(attached, kind)
        return attached

    @property
    def original(self) -> Cluster:
        """The cluster with everything in it, including what rules hide from a caller."""
        return self

    @property
    def api(self) -> Cluster:
        return self

    @property
    def is_open(self) -> bool:
        return self._client is not None

    @property
    def inventory(self) -> Inventory:
        if self._inventory is None:
            self._inventory = Inventory(self.client, self.clock, self.may)
        return self._inventory

    async def close(self) -> None:
        await self.ssh.close()  # first, because it ends commands inside guests, partly through the API
        if self._inventory is not None:
            await self._inventory.close()
        if self._client is not None:
            await self._client.close()

    def secrets(self) -> list[str]:
        """Secrets in use that must not leave."""
        return [*(self._client.secrets() if self._client is not None else ()), *self.ssh.secrets()]

    async def get(self, path: str, /, **params: Any) -> Any:
        return await self.client.get(path, **params)

    async def version(self) -> dict[str, Any]:
        """The version, read again from time to time: a cluster can be upgraded while this process runs, even by it."""
        now = self.clock.monotonic()
        if self._version is None or now >= self._version_due:
            self._version, self._version_due = await self.get("/version"), now + VERSION_LIFE_SECONDS
        return self._version

    async def facts(self) -> Facts:
        """The API facts closest to the version of this cluster."""
        return facts(str((await self.version()).get("version", "")))

    async def guest(self, ref: int | str) -> Guest:
        row = await self.inventory.guest(ref)
        reference = Reference.parse(ref)
        return Guest(self, row, called=None if reference.vmid == row.vmid else reference.key)

    async def guests(self, refs: Iterable[int | str]) -> list[Guest]:
        """The guests of these references, without duplicates."""
        guests = [await self.guest(ref) for ref in refs]
        return list({guest.vmid: guest for guest in guests}.values())

    async def lookup(self, arguments: Mapping[str, Any]) -> None:
        for ref in guests_in(arguments):
            await self.guest(ref)

    async def visible_view(
        self,
        hides: Hides | None,
        neighbors: Neighbors,  # noqa: ARG002
        login: object = None,  # noqa: ARG002 - a cluster is used with its own credentials
        *,
        local: bool = True,  # noqa: ARG002 - and no file of this machine
    ) -> Cluster:
        if hides is None:
            return self
        from quorate.pve.filtered_cluster import filter_cluster  # which imports this module

        return await filter_cluster(self, hides)

    async def visibility(self) -> str:
        return "everything"

    async def blanker(self) -> Callable[[str], str]:
        return str

    async def subjects(self, reach: Sequence[Sequence[TargetRef]], *, by_name: bool = False) -> list[list[Subject]]:
        inventory = self.inventory
        rows = await (inventory.guests_with_fresh_names(_vmids(reach)) if by_name else inventory.named_guests())
        census = Census(rows)
        return [census.subjects(things) for things in reach]

    def forget(self, changed: Iterable[int] = ()) -> None:
        self.inventory.forget(changed)

    def obstruct(self, what: str, *, why: str | None = None, next_step: str | Advice | None = None) -> None:
        """Refuse a change that the state of its target prevents at the moment; see `Rehearsal`."""
        raise Conflict(what, why=why, next_step=next_step)

    # -- privileges ----------------------------------------------------------------------------------------------------

    async def may(self, path: str, privilege: str) -> bool:
        """Whether our credentials hold `privilege` on `path`."""
        held = await self._known_privileges()
        if privilege in _privileges_at(held, path):
            return True
        # Privileges through a pool show only when PVE is asked for that exact path.
        if path not in held:
            held[path] = (await self.get("/access/permissions", path=path)).get(path, {})
        return privilege in held[path]

    async def sees_everything_in(self, area: str, privilege: str) -> bool:
        """Whether our credentials hold `privilege` on all of an area such as /vms, with everything below it."""
        held = await self._known_privileges()
        below = (held[path] for path in held if path.startswith(f"{area}/"))
        return _passes_on(held, area, privilege) and all(privilege in granted for granted in below)

    async def refusal(
        self, asked: str, path: str, privileges: list[str] | tuple[str, ...], *, any_of: bool = False
    ) -> PermissionMissing:
        """The error for credentials that lack `privileges` on `path`, with the command that grants them."""
        held = (await self.get("/access/permissions", path=path)).get(path, {})
        self.forget_privileges()  # so that the next attempt sees a new grant
        role = await self._role_to_extend(path, held) if held else None
        return PrivilegeGap(self.client.identity, path, privileges, any_of, held, role).problem(asked)

    async def explain(self, problem: Problem) -> Problem:
        if isinstance(problem, PermissionMissing) and problem.facts.get("status") == HTTPStatus.FORBIDDEN:
            self.forget_privileges()
            if path := problem.facts.get("path"):
                privileges = problem.facts["privileges"]
                with suppress(Problem):
                    asked = await self.refusal(problem.what, path, privileges, any_of=len(privileges) > 1)
                    problem.advice = asked.advice
        return problem

    async def _role_to_extend(self, path: str, held: Collection[str]) -> str | None:
        """A custom role that grants these privileges to the credentials; built-in ones cannot be extended."""
        try:
            roles, entries = await self.get("/access/roles"), await self.get("/access/acl")
        except Problem:
            return None
        own = {role["roleid"]: {*role.get("privs", "").split(",")} for role in roles if not is_on(role.get("special"))}
        granted = granting_roles(self.client.identity, path, entries)
        # Who may not read the list may still know the roles.
        alike = [role for role in own if own[role] == {*held}] if not entries else []
        return next((role for role in (*granted, *alike) if role in own), None)

    def forget_privileges(self) -> None:
        self._privileges_read_at = float("-inf")

    async def _known_privileges(self) -> dict[str, Mapping[str, int]]:
        async with self._reading_privileges:  # concurrent calls share one request
            if self.clock.monotonic() - self._privileges_read_at > PRIVILEGES_LIFE_SECONDS:
                self._privileges = dict(await self.get("/access/permissions"))
                self._privileges_read_at = self.clock.monotonic()
            return self._privileges


def _privileges_at(held: Mapping[str, Mapping[str, int]], path: str) -> set[str]:
    """What the closest known path at or above `path` grants; from above only what propagates."""
    if path in held:
        return set(held[path])
    at = path
    while at != "/":
        at = at.rpartition("/")[0] or "/"
        if at in held:
            return {privilege for privilege, propagates in held[at].items() if propagates}
    return set()


def _passes_on(held: Mapping[str, Mapping[str, int]], area: str, privilege: str) -> bool:
    """Whether an area passes a privilege on to everything below it."""
    if area in held:
        return bool(held[area].get(privilege))
    return privilege in _privileges_at(held, area)


def _vmids(reach: Sequence[Sequence[TargetRef]]) -> set[int] | None:
    """The guests that are reached by their vmid; None if some are reached as all of a node, a pool or the cluster."""
    things = [thing for each in reach for thing in each]
    if any(thing.kind == GUESTS for thing in things):
        return None
    return {int(thing.id) for thing in things if thing.kind == GUEST and thing.id.isdecimal()}


class Guest:
    """A VM or container where it is now.

    `row` is from the lookup and may be seconds old; reading `status/current` updates it. `called` is the name in the
    lookup: a read that shows another name raises Renamed.
    """

    def __init__(self, cluster: Cluster, row: Resource, called: str | None = None) -> None:
        self.cluster = cluster
        self.row = row
        self._called = called

    @property
    def vmid(self) -> int:
        return self.row.vmid

    @property
    def is_vm(self) -> bool:
        return self.row.type == "qemu"

    @property
    def label(self) -> str:
        return f"{self.row.kind} {self.vmid}" + (f" {self.row.name}" if self.row.name else "")

    def path(self, sub: str = "") -> str:
        return f"/nodes/{self.row.node}/{self.row.type}/{self.vmid}" + (f"/{sub}" if sub else "")

    async def get(self, sub: str, /, **params: Any) -> Any:
        """A read of this guest, repeated on its new node if it was migrated in the meantime."""
        answer = await self._get_from_current_node(sub, params)
        if self._called is not None and sub in (STATUS, CONFIG):
            called, self._called = self._called, None
            await self._refuse_renamed(called, sub, answer)
        return answer

    async def status(self) -> str:
        """running or stopped, from its node, because the cluster's view lags by seconds."""
        return str((await self.get(STATUS)).get("status", self.row.status))

    async def running_tasks(self) -> list[dict[str, Any]] | None:
        """The guest's tasks in progress; None if these credentials may not see them."""
        try:
            rows = await self.cluster.get(f"/nodes/{self.row.node}/tasks", vmid=self.vmid, source="active")
        except Problem:
            return None
        return [row for row in rows or [] if "endtime" not in row]

    async def _get_from_current_node(self, sub: str, params: Mapping[str, Any]) -> Any:
        asked = self.row
        try:
            answer = await self._get(sub, params)
        except NotFound:
            self.cluster.inventory.forget()
            self.row = await self.cluster.inventory.guest(self.vmid)
            if (self.row.node, self.row.type) == (asked.node, asked.type):
                raise
            answer = await self._get(sub, params)
        if sub == STATUS and isinstance(answer, dict):
            listed = {"vmid": self.vmid, **{key: value for key, value in answer.items() if value is not None}}
            self.row = msgspec.convert(listed, ListedGuest, strict=False).refresh(self.row)
        return answer

    async def _refuse_renamed(self, called: str, sub: str, answer: Mapping[str, Any]) -> None:
        if sub == CONFIG:
            if answer.get("name" if self.is_vm else "hostname") == called:
                return
            answer = await self._get_from_current_node(STATUS, {})  # the name is pending, or it has changed
        if answer.get("name", called) != called:
            self.cluster.inventory.distrust_names()
            raise StaleName(
                f"{self.vmid} was called {called!r} and is called {answer['name']!r} now",
                next_step="Call again, or give the vmid",
            )

    async def tell_agent(self, sub: str, params: Mapping[str, Any]) -> Any:
        """A write to the agent of this VM, sent once."""
        async with self._turn("agent/"):
            return (await self.cluster.client.request("POST", self.path(f"agent/{sub}"), params)).data

    async def _get(self, sub: str, params: Mapping[str, Any]) -> Any:
        async with self._turn(sub):
            return await self.cluster.get(self.path(sub), **params)

    def _turn(self, sub: str) -> AbstractAsyncContextManager[None]:
        return self.cluster.agent_queues[self.vmid].turn() if sub.startswith("agent/") else nullcontext()

    def __str__(self) -> str:
        return self.label


class AgentQueue:
    """One request at a time to the agent of a VM.

    QEMU makes a request wait until the one before it is answered. PVE pings the agent before each request, and after
    three seconds of waiting it says that the agent is not running, although it is only busy with others.
    """

    def __init__(self) -> None:
        self._free = asyncio.Lock()
        self._silence: AgentSilent | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait in line. If the agent turns out to be silent, everyone in line gets that error without asking again."""
        before = self._silence
        async with self._free:
            if self._silence is not None and self._silence is not before:
                raise copy.copy(self._silence)
            try:
                yield
            except AgentSilent as problem:
                self._silence = problem
                raise


CheckRead = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Raises PermissionMissing for the path and the parameters of a read that must not be made."""


class Rehearsal(Cluster):
    """A view of a cluster in which a change is planned for its privileges only: it refuses writes, and the reads that
    `check` refuses; what prevents the change at the moment is noted instead of raised."""

    def __init__(self, original: Cluster, check: CheckRead) -> None:
        self.__dict__.update(original.__dict__)
        self.obstacles: list[str] = []
        self.reserved_vmids = set(original.reserved_vmids)
        self._client = cast("PveClient", _ReadOnlyClient(original.client, check))
        self._inventory = None  # a new one, so that its read is checked as well

    def obstruct(self, what: str, *, why: str | None = None, next_step: str | Advice | None = None) -> None:  # noqa: ARG002
        self.obstacles.append(what)


class _ReadOnlyClient:
    def __init__(self, client: PveClient, check: CheckRead) -> None:
        self._client = client
        self._check = check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def get(self, path: str, /, **params: Any) -> Any:
        await self._check(path, params)
        return await self._client.get(path, **params)

    async def get_as(self, kind: type[Any], path: str, /, **params: Any) -> Any:
        await self._check(path, params)
        return await self._client.get_as(kind, path, **params)

    async def request(self, method: str, path: str, params: Any = None) -> Any:
        if method != "GET":
            raise Problem(f"{method} {path} was not sent: this is only a look at what would be needed")
        await self._check(path, dict(params or {}))
        return await self._client.request(method, path, params)
