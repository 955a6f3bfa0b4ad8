"""One cluster, as the operations see it: guests, nodes, tasks and rights, by the names people use."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quorate.command_rules import CommandRules
from quorate.pve.agent_line import AgentLine
from quorate.pve.clock import Clock, SystemClock
from quorate.pve.connection import Connection
from quorate.pve.errors import NotConfigured, NotFound, PermissionMissing, permission_missing
from quorate.pve.inventory import Inventory, Resource
from quorate.pve.schema import Facts, facts
from quorate.pve.tasks import OwnTasks
from quorate.ssh.access import SshAccess

if TYPE_CHECKING:
    from quorate.pve.client import PveClient

RIGHTS_LIFE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Defaults:
    """What to take when the caller does not say."""

    node: str | None = None
    storage: str | None = None
    bridge: str | None = None


class Cluster:
    def __init__(
        self,
        name: str,
        connection: Connection | None,
        *,
        defaults: Defaults | None = None,
        clock: Clock | None = None,
        ssh: SshAccess | None = None,
        command_rules: CommandRules | None = None,
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
        self._rights: dict[str, Mapping[str, int]] = {}
        self._rights_read_at = float("-inf")
        self._reading_rights = asyncio.Lock()
        self.reserved_vmids: set[int] = set()
        """Ids that calls under way have chosen, so that two of them never choose the same."""
        self.own_tasks = OwnTasks()
        """Tasks that our calls have started, so that the task of a lost answer is not mistaken for another's."""
        self.agent_lines: defaultdict[int, AgentLine] = defaultdict(AgentLine)
        """By vmid."""
        self.background: dict[str, Any] = {}
        """Commands that go on inside guests, by handle: `quorate.inside.jobs` keeps them here."""

    @property
    def client(self) -> PveClient:
        if self._connection is None:
            raise NotConfigured(f"{self.name} has no Proxmox VE API")
        if self._client is None:
            from quorate.pve.client import PveClient  # aiohttp is not needed to list the tools

            self._client = PveClient(self._connection, clock=self.clock)
        return self._client

    @property
    def is_open(self) -> bool:
        return self._client is not None

    @property
    def inventory(self) -> Inventory:
        if self._inventory is None:
            self._inventory = Inventory(self.client, self.clock)
        return self._inventory

    async def close(self) -> None:
        await self.ssh.close()  # first: what still runs inside guests is ended, also through the API
        if self._inventory is not None:
            await self._inventory.close()
        if self._client is not None:
            await self._client.close()

    def secrets(self) -> list[str]:
        """What must not leave, as far as it is in use."""
        return [*(self._client.secrets() if self._client is not None else ()), *self.ssh.secrets()]

    async def get(self, path: str, /, **params: Any) -> Any:
        return await self.client.get(path, **params)

    async def version(self) -> dict[str, Any]:
        if self._version is None:
            self._version = await self.get("/version")
        return self._version

    async def facts(self) -> Facts:
        """The API table nearest to the version this cluster runs."""
        return facts(str((await self.version()).get("version", "")))

    async def guest(self, ref: int | str) -> Guest:
        return Guest(self, await self.inventory.guest(ref))

    async def guests(self, refs: Iterable[int | str]) -> list[Guest]:
        """The guests that are meant, each once."""
        found = [await self.guest(ref) for ref in refs]
        return list({guest.vmid: guest for guest in found}.values())

    # -- rights ----------------------------------------------------------------------------------------------------

    async def may(self, path: str, privilege: str) -> bool:
        """Whether our credentials hold `privilege` on `path`."""
        rights = await self._known_rights()
        if privilege in _granted(rights, path):
            return True
        # Pool membership and the like show only when PVE is asked for that very path.
        if path not in rights:
            rights[path] = (await self.get("/access/permissions", path=path)).get(path, {})
        return privilege in rights[path]

    async def refusal(
        self, asked: str, path: str, privileges: list[str] | tuple[str, ...], *, any_of: bool = False
    ) -> PermissionMissing:
        """What to tell when our credentials lack `privileges` on `path`: which, and the command that grants them."""
        held = (await self.get("/access/permissions", path=path)).get(path, {})
        self.forget_rights()  # so that a grant made now is seen at the next try
        return permission_missing(asked, self.client.identity, path, privileges, any_of=any_of, held=held)

    def forget_rights(self) -> None:
        self._rights_read_at = float("-inf")

    async def _known_rights(self) -> dict[str, Mapping[str, int]]:
        async with self._reading_rights:  # calls that come together ask once
            if self.clock.monotonic() - self._rights_read_at > RIGHTS_LIFE_SECONDS:
                self._rights = dict(await self.get("/access/permissions"))
                self._rights_read_at = self.clock.monotonic()
            return self._rights


def _granted(rights: Mapping[str, Mapping[str, int]], path: str) -> set[str]:
    """What the nearest known path at or above `path` grants there; from above only what propagates."""
    if path in rights:
        return set(rights[path])
    at = path
    while at != "/":
        at = at.rpartition("/")[0] or "/"
        if at in rights:
            return {privilege for privilege, propagates in rights[at].items() if propagates}
    return set()


class Guest:
    """A VM or container where it is now."""

    def __init__(self, cluster: Cluster, row: Resource) -> None:
        self._cluster = cluster
        self.row = row

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
        """A read of this guest; if it was migrated meanwhile, from the node where it is now."""
        asked = self.row.node
        try:
            return await self._get(sub, params)
        except NotFound:
            self._cluster.inventory.forget()
            moved = await self._cluster.inventory.guest(self.vmid)
            if moved.node == asked:
                raise
            self.row = moved
            return await self._get(sub, params)

    async def tell_agent(self, sub: str, params: Mapping[str, Any]) -> Any:
        """A write to the agent of this VM, sent once."""
        async with self._turn("agent/"):
            return (await self._cluster.client.request("POST", self.path(f"agent/{sub}"), params)).data

    async def _get(self, sub: str, params: Mapping[str, Any]) -> Any:
        async with self._turn(sub):
            return await self._cluster.get(self.path(sub), **params)

    def _turn(self, sub: str) -> AbstractAsyncContextManager[None]:
        return self._cluster.agent_lines[self.vmid].turn() if sub.startswith("agent/") else nullcontext()

    def __str__(self) -> str:
        return self.label
