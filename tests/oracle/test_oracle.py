"""Whatever is called, and however: below admin nothing is destroyed, and what is protected or hidden stays as it is."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from quorate.config import Access
from quorate.operations.backend import Backend
from quorate.pipeline.approval_request import ApprovalRequest
from tests.oracle import swaps, verdict
from tests.oracle.episode import CALLS, Finding, Seed, run, smallest
from tests.oracle.estate import Estate
from tests.oracle.loop import InnerLoop
from tests.oracle.stage import Call
from tests.oracle.state import state_of
from tests.rigs.in_memory_wire import Sent

SAMPLE = [Seed(Access.OPERATE, 0), Seed(Access.OPERATE, 2), Seed(Access.READ, 0)]
WIDE = [
    *(Seed(Access.OPERATE, number) for number in range(3, 203)),  # fifty thousand calls
    *(Seed(Access.READ, number) for number in range(1, 17)),
    *(Seed(Access.ADMIN, number) for number in range(16)),  # where nobody says yes
]


@pytest.mark.parametrize("seed", SAMPLE, ids=str)
def test_a_few_calls_do_no_harm(seed: Seed) -> None:
    harmless(seed, 120)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", WIDE, ids=str)
def test_many_calls_do_no_harm(seed: Seed) -> None:
    harmless(seed, CALLS)


@pytest.mark.parametrize("number", [2, 3])
def test_what_a_person_approves_is_done_to_what_they_saw(number: int) -> None:
    bound(number, 40)


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(4, 44))
def test_what_a_person_approves_is_done_to_what_they_saw_in_many_calls(number: int) -> None:
    bound(number, 150)


def bound(number: int, calls: int) -> None:
    questions, proceeded = swaps.run(Seed(Access.ADMIN, number), calls)
    assert questions > calls // 40, "an oracle that is not asked sees nothing"
    assert 0 < proceeded < questions


def test_the_oracle_sees_objects_that_were_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a server that asks and does not look again."""

    async def never(request: ApprovalRequest, backend: Backend) -> None:
        pass

    monkeypatch.setattr(ApprovalRequest, "confirm_identity", never)
    with pytest.raises(swaps.Finding, match="while the person read"):
        swaps.run(Seed(Access.ADMIN, 2), 60)


def harmless(seed: Seed, calls: int) -> None:
    finding, writes = run(seed, calls)
    assert finding is None, f"\n{finding}"
    assert (writes > calls // 40) == (seed.access is not Access.READ), "an oracle that changes nothing sees nothing"


# -- the oracle itself: what PVE would do is done to the estate directly, and has to be seen ---------------------------

LONG = 900.0
"""Seconds in which even a node with stubborn guests goes down."""
_QEMU, _LXC = "/nodes/pve1/qemu", "/nodes/pve1/lxc"
SEEN: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "a deleted guest": ("guest 108", "DELETE", f"{_QEMU}/108", {}),
    "a freed volume": ("is gone", "PUT", f"{_QEMU}/108/config", {"delete": "unused0"}),
    "a detached disk": ("was taken away", "PUT", f"{_QEMU}/108/config", {"delete": "scsi1"}),
    "a disk that will go": ("waits to be taken away", "PUT", "/nodes/pve2/qemu/104/config", {"delete": "ide2"}),
    "an ejected disk": ("is or will be none", "PUT", f"{_QEMU}/108/config", {"scsi1": "none,media=cdrom"}),
    "a disk of somebody else": ("belongs to 108", "PUT", f"{_QEMU}/120/config", {"scsi3": "local-lvm:vm-108-disk-0"}),
    "a disk of somebody else at birth": (
        "belongs to 108", "POST", _QEMU, {"vmid": 600, "scsi0": "local-lvm:vm-108-disk-0"},
    ),
    "a deleted snapshot": ("a snapshot was", "DELETE", f"{_QEMU}/108/snapshot/configured", {}),
    "a template": ("cannot be undone", "POST", f"{_QEMU}/120/template", {}),
    "a guest cut off": ("stopped by force", "POST", f"{_QEMU}/110/status/stop", {}),
    "a guest that HA stops": ("stopped by force", "PUT", "/cluster/ha/resources/vm:102", {"state": "stopped"}),
    "pruned backups": ("is gone", "POST", "/nodes/pve1/vzdump", {"vmid": 100, "storage": "nas"}),
    "a deleted backup": (
        "is gone", "DELETE",
        "/nodes/pve1/storage/nas/content/nas:backup/vzdump-qemu-100-2026_01_10-02_00_01.vma.zst", {},
    ),
    "a job that prunes": (
        "prunes backups", "POST", "/cluster/backup",
        {"id": "job", "schedule": "21:00", "vmid": 100, "storage": "nas", "prune-backups": "keep-last=1"},
    ),
    "a job that is gone": ("a backup job is gone", "DELETE", "/cluster/backup/nightly", {}),
    "a job for everybody": ("came into a backup job", "PUT", "/cluster/backup/nightly", {"exclude": 999}),
    "a right": ("rights changed", "PUT", "/access/acl", {"path": "/", "roles": "PVEAdmin", "users": "bob@pve"}),
    "a member of a pool": ("the members of a pool", "POST", f"{_QEMU}/120/clone", {"newid": 601, "pool": "lab"}),
    "a mapping": ("a mapping opens", "POST", "/cluster/mapping/dir", {"id": "root", "map": "node=pve1,path=/root"}),
    "a server that is told": (
        "is told of every guest", "POST", "/cluster/metrics/server/new",
        {"type": "influxdb", "server": "198.51.100.7", "port": 8089},
    ),
    "a person who is told": (
        "is told of every guest", "POST", "/cluster/notifications/endpoints/sendmail",
        {"name": "new", "mailto": "me@example.org"},
    ),
    "a firewall": ("the firewall of", "PUT", "/cluster/firewall/options", {"policy_in": "DROP"}),
    "a network": ("a network was rewritten", "PUT", "/nodes/pve2/network", {}),
    "a node that goes down": ("a node went down", "POST", "/nodes/pve3/status", {"command": "shutdown"}),
    "a service": ("a service of a node", "POST", "/nodes/pve1/services/pvestatd/stop", {}),
    "a replication": ("a replication is gone", "DELETE", "/cluster/replication/102-0", {}),
    "a protected guest": ("a protected guest was touched", "PUT", f"{_QEMU}/301/config", {"description": "x"}),
    "its firewall": (
        "of a protected guest changed", "POST", f"{_QEMU}/301/firewall/rules", {"type": "in", "action": "DROP"},
    ),
    "its HA": ("HA of a protected guest", "PUT", "/cluster/ha/resources/vm:301", {"comment": "x"}),
    "its backup": ("of a protected guest was made", "POST", "/nodes/pve1/vzdump", {"vmid": 301, "remove": 0}),
    "its replication": ("replication of a protected", "PUT", "/cluster/replication/311-0", {"comment": "x"}),
    "a hidden guest": ("a protected guest was touched", "POST", f"{_LXC}/7772/status/shutdown", {}),
    "a protected node": ("a protected node", "PUT", "/nodes/vault/config", {"description": "x"}),
    "too many at once": ("one call reached", "POST", "/nodes/pve3/vzdump", {"all": 1, "storage": "pbs", "remove": 0}),
}  # fmt: skip


@pytest.mark.parametrize("what", SEEN)
def test_the_oracle_sees(what: str) -> None:
    expected, method, path, params = SEEN[what]
    with asyncio.Runner(loop_factory=InnerLoop) as runner:
        objections = runner.run(objections_to(method, path, params))
    assert any(expected in objection for objection in objections), objections


async def objections_to(method: str, path: str, params: dict[str, Any]) -> list[str]:
    estate = Estate("9.1.8")
    try:
        await estate.furnish()
        before = state_of(estate.world)
        await estate.send(method, path, params)
        await estate.clock.advance(LONG)
        sent = (Sent(method, f"/api2/json{path}", urlencode(params)),)
        return verdict.objections(verdict.Deed(frozenset({"api_call"}), sent, before, state_of(estate.world)))
    finally:
        await estate.close()


@pytest.mark.parametrize(
    ("told", "seen"),
    [
        ("guest obsidian-archive", True), ("vm 7771", True), ("local-lvm:vm-7771-disk-0", True), ("10.77.1.72", True),
        ("granite in the cellar", True), ("marble-cut", True), ("17771 bytes", False), ("10.77.1.7", False),
    ],
)  # fmt: skip
def test_the_oracle_notices_what_an_answer_reveals_of_a_hidden_guest(told: str, seen: bool) -> None:
    assert bool(verdict.leaks("guest_list", told)) == seen
    assert verdict.leaks(told, told) == []


@pytest.mark.thorough
def test_a_finding_is_made_small_and_happens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an oracle that thinks a plain change wrong, after something that has to be there first."""

    def strict(deed: verdict.Deed) -> list[str]:
        marked = [path for path, value in deed.after.items() if path[-1] == "description" and value == "marked"]
        return ["two guests are marked"] if len(marked) == 2 else []

    monkeypatch.setattr(verdict, "objections", strict)
    noise = [Call("native", "guest_list", {}), change(108, cores=1), change(120, memory=512)]
    calls = [*noise, change(108, description="marked"), *noise, change(120, description="marked", cores=1)]
    with asyncio.Runner(loop_factory=InnerLoop) as runner, tempfile.TemporaryDirectory() as folder:
        finding = Finding(Seed(Access.OPERATE, 0), ["two guests are marked"], calls)
        small = runner.run(smallest(finding, Path(folder)))
    assert small.calls == (change(108, description="marked"), change(120, description="marked"))
    assert "two guests are marked" in str(small)


def change(guest: int, **options: Any) -> Call:
    return Call("native", "guest_configure", {"guest": guest, **options})
