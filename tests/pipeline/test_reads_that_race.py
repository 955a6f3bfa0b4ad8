"""What vanishes while an answer is made: between the list that names it and the read of its details."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pve_simulator.world import World
from tests.generators.population import populate
from tests.rigs.mcp_session import Rig, rig, text_of

pytestmark = pytest.mark.anyio

READS: list[tuple[str, dict[str, Any]]] = [
    ("cluster_health", {}),
    ("capacity_plan", {"cores": 2, "memory": "4G", "disk": "20G"}),
    ("guest_list", {"find": "192.168.10.0/24"}),
    ("guest_list", {"find": "vmbr0", "columns": ["onboot", "protection"]}),
    ("inventory_export", {}),
    ("backup_coverage", {}),
    ("backup_list", {}),
    ("volume_list", {}),
    ("template_list", {}),
    ("network_list", {}),
    ("replication_list", {}),
    ("node_list", {}),
    ("storage_list", {}),
    ("task_list", {}),
]
VANISHING: dict[str, Callable[[World], object]] = {
    "/nodes/*/qemu/104/*": lambda world: world.guests.pop(104),
    "/nodes/*/lxc/206/*": lambda world: world.guests.pop(206),
    "/nodes/*/storage/nas/*": lambda world: world.storages.pop("nas"),
    "/nodes/pve3/*": lambda world: setattr(world.nodes["pve3"], "online", False),
}


class Racing(list[tuple[str, str]]):
    """The simulator's list of requests: the first one for the details of an object comes just after its end."""

    def __init__(self, world: World, path: str) -> None:
        super().__init__()
        self._world, self._path = world, path
        self.has_vanished = False

    def append(self, request: tuple[str, str]) -> None:
        super().append(request)
        if not self.has_vanished and fnmatch.fnmatch(request[1], self._path):
            self.has_vanished = True
            VANISHING[self._path](self._world)


def race(quorate: Rig, path: str) -> Racing:
    racing = Racing(quorate.sim.world, path)
    quorate.sim.requests = quorate.sim.server.requests = racing
    return racing


@pytest.mark.parametrize("path", VANISHING)
async def test_what_vanishes_between_the_list_and_its_details_does_not_fail_the_whole_answer(
    tmp_path: Path, path: str
) -> None:
    raced = 0
    for number, (tool, arguments) in enumerate(READS):
        (tmp_path / str(number)).mkdir()
        async with rig(tmp_path / str(number), in_memory=True) as quorate:
            await populate(quorate)
            racing = race(quorate, path)
            answer = await quorate.call(tool, **arguments)
            assert not answer.is_error, f"{tool} {arguments}: {text_of(answer)}"
            raced += racing.has_vanished
    assert raced >= 3


async def test_a_node_that_vanishes_is_named_where_its_part_is_missing(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        race(quorate, "/nodes/pve3/*")
        answer = await quorate.facts("network_list")
        (unread,) = answer["not_read"]
        assert unread.startswith("pve3: ")
        assert {row[0] for row in answer["rows"]} == {"pve1", "pve2"}


QEMU_IMG = "qemu-img: Could not open '/mnt/pve/nas/images/104/vm-104-disk-0.qcow2': No such file or directory"


async def test_a_list_that_a_deletion_interrupted_is_read_once_more(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        before = await quorate.rows("volume_list", storage="nas")
        quorate.sim.faults.add(f"500:{QEMU_IMG}:GET:/nodes/*/storage/nas/content;count=1")
        assert await quorate.rows("volume_list", storage="nas") == before


async def test_a_list_that_is_interrupted_again_is_not_called_a_missing_object(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        quorate.sim.faults.add(f"500:{QEMU_IMG}:GET:/nodes/pve1/storage/nas/content")
        read = {"method": "GET", "path": "/nodes/pve1/storage/nas/content"}
        refusal = await quorate.refusal("api_call", **read)
        assert refusal.startswith("PVE could not list /nodes/pve1/storage/nas/content")
        assert "did not find" not in refusal
        asked = [path for method, path in quorate.sim.requests if path == read["path"]]
        assert len(asked) == 2
