"""Many guests at once through one server: nothing is lost, nothing is there twice."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from mcp import Client

from pve_simulator.builder import Builder
from pve_simulator.clock import RealClock
from pve_simulator.simulator import SimulatedCluster
from quorate.app import build, simulated_cluster
from quorate.config import Access, Approval, Settings
from tests.rigs.mcp_session import Rig
from tests.rigs.simulator import volumes

pytestmark = pytest.mark.anyio

MANY = (15, pytest.param(200, marks=pytest.mark.thorough))
NODES = 8
SPEED = 4.0
"""Time runs freely here: moved by many callers at once it would run away from all of them."""


class SimulatedTime:
    """The product on the simulator's own clock."""

    def __init__(self, clock):
        self._clock = clock

    def monotonic(self):
        return self._clock.now()

    time = monotonic

    async def sleep(self, seconds):
        await self._clock.sleep(seconds)


@asynccontextmanager
async def running_rig(tmp_path):
    clock = RealClock(SPEED)
    async with SimulatedCluster(nodes=NODES, guests=NODES, clock=clock, auth_delay=0.0) as sim:
        for node in sim.world.nodes:
            template(sim, node)
        audit_file = tmp_path / "audit.jsonl"
        settings = Settings(
            clusters=(simulated_cluster(sim),),
            access=Access.ADMIN,
            approval=Approval.NONE,
            audit_file=audit_file,
            state=str(tmp_path / "state.sqlite"),
            toolsets=("all",),
        )
        app = build(settings, clock=SimulatedTime(clock))
        try:
            async with Client(app.server()) as client:
                yield Rig(sim, app, client, audit_file)
        finally:
            await app.close()


def template(sim, node):
    Builder(sim.world).file("local", node, "vztmpl/debian-13-standard_13.1-2_amd64.tar.zst", "vztmpl", "tzst", 1024**2)


async def finished(quorate, tool, **arguments):
    """The answer, once the work is over: what outlasts the wait is followed on, as an agent would."""
    facts = await quorate.facts(tool, **arguments)
    while facts["result"] == "running":
        ended = await quorate.facts("task_wait", task=facts["task"])
        if ended["status"] != "running":
            assert ended["status"] == "ok", ended
            break
    return facts


async def listed(quorate):
    """Every page of the list, as one caller sees it."""
    rows, offset = [], 0
    while offset is not None:
        facts = await quorate.facts("guest_list", limit=200, offset=offset)
        rows += [dict(zip(facts["columns"], row, strict=True)) for row in facts["rows"]]
        offset = facts.get("next_offset")
    return rows


def creation(number):
    if number % 2:
        return "container_create", {"template": "debian-13-standard", "hostname": f"many-{number}", "rootfs": "1G"}
    return "vm_create", {"name": f"many-{number}", "disks": ["1G"]}


def writes(quorate, mark):
    return Counter(method for method, _ in quorate.requests_since(mark) if method != "GET")


@pytest.mark.thorough
@pytest.mark.parametrize("many", MANY)
async def test_many_guests_are_created_listed_cloned_and_deleted_without_loss(tmp_path, many):
    async with running_rig(tmp_path) as quorate:
        world = quorate.sim.world
        first = set(world.guests)

        guests = await asyncio.gather(
            *(finished(quorate, tool, **arguments) for tool, arguments in map(creation, range(many)))
        )
        assert writes(quorate, 0) == {"POST": many}
        names = {facts["vmid"]: f"many-{number}" for number, facts in enumerate(guests)}
        assert len(names) == many
        assert {vmid: guest.name for vmid, guest in world.guests.items() if vmid not in first} == names
        before_cloning = volumes(world)

        await quorate.sim.clock.sleep(10)  # PVE shows the names of new guests only after a while
        quorate.app.cluster.inventory.forget()
        pages = await asyncio.gather(*(listed(quorate) for _ in range(50)))
        for page in pages:
            assert sorted(row["vmid"] for row in page) == sorted(world.guests)
            assert {row["vmid"]: row["name"] for row in page}.items() >= names.items()

        mark = len(quorate.sim.requests)
        copies = await asyncio.gather(
            *(finished(quorate, "guest_clone", guest=vmid, name=f"copy-of-{vmid}") for vmid in names)
        )
        assert writes(quorate, mark) == {"POST": many}
        clones = {facts["vmid"]: f"copy-of-{vmid}" for vmid, facts in zip(names, copies, strict=True)}
        assert len(clones) == many
        assert {vmid: world.guests[vmid].name for vmid in clones} == clones
        assert len(volumes(world) - before_cloning) == many

        mark = len(quorate.sim.requests)
        await asyncio.gather(*(finished(quorate, "guest_delete", guest=vmid) for vmid in clones))
        assert writes(quorate, mark) == {"DELETE": many}
        assert set(world.guests) == first | set(names)
        assert volumes(world) == before_cloning

        changes = Counter(entry["tool"] for entry in quorate.audit())
        assert (changes["guest_clone"], changes["guest_delete"]) == (many, many)
        assert changes["vm_create"] + changes["container_create"] == many
