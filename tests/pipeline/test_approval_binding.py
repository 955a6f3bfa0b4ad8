"""What a person approved is what is done: whatever a call touches is read for the question and again before acting."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp.types import ElicitResult

from pve_simulator.nodes.disks import Disks
from pve_simulator.storage.backup_jobs import BackupJobs
from quorate.config import Approval
from quorate.config.policy import read_policy
from quorate.config.sources import Rank, Source
from quorate.state.approvals import Approvals, State
from tests.oracle.state import differences, state_of
from tests.pipeline.test_safety_table import tries
from tests.rigs.mcp_session import Rig, rig

pytestmark = pytest.mark.anyio

READING_SECONDS = 30.0
Swap = Callable[[Rig], Awaitable[None]]


ERAS = ("auto", "legacy")
"""Where the client answers by calling again, the object is found changed then, and the person is asked again."""


class Reader:
    """A person who reads for a while and types what the first question asks for; something happens by then."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.questions.append(params.message)
        if len(self.questions) > 1:
            return ElicitResult(action="decline")
        if self.meanwhile is not None:
            await self.meanwhile()
        match = re.search(r"Type (.+) to approve", params.message)
        assert match
        return ElicitResult(action="accept", content={"typed": match[1]})


Write = tuple[str, str, dict[str, Any]]


@dataclass(frozen=True)
class Attack:
    """A call that needs approval, and what is done to its object while the person reads."""

    call: tuple[str, dict[str, Any]]
    swap: tuple[Write, ...] | Swap
    before: tuple[Write, ...] = ()
    names: str = ""
    """What the question says about whom the object reaches."""


def raw(method: str, path: str, /, **params: Any) -> tuple[str, dict[str, Any]]:
    return "api_call", {"method": method, "path": path, **({"params": params} if params else {})}


async def send(quorate: Rig, *writes: Write) -> None:
    for method, path, params in writes:
        await quorate.write(method, path, params)
    await quorate.clock.advance(READING_SECONDS)


JOB: Write = ("POST", "/cluster/backup", {"id": "testjob", "schedule": "21:00", "vmid": "102", "storage": "nas"})
POOL_JOB: Write = ("POST", "/cluster/backup", {"id": "pooled", "schedule": "21:00", "pool": "lab", "storage": "nas"})
ALL_JOB: Write = ("POST", "/cluster/backup", {"id": "everyone", "schedule": "21:00", "all": 1, "storage": "nas"})
STORAGE: Write = ("POST", "/storage", {"storage": "old", "type": "dir", "path": "/mnt/old", "content": "backup"})
ROLE: Write = ("POST", "/access/roles", {"roleid": "Ops", "privs": "VM.Audit"})
RULES: tuple[Write, ...] = tuple(
    ("POST", "/cluster/firewall/rules", {"type": "in", "action": "ACCEPT", "proto": "tcp", "dport": port})
    for port in ("22", "8006", "443")
)
MAPPING: Write = ("POST", "/cluster/mapping/dir", {"id": "share", "map": ["node=pve1,path=/srv"]})


async def start_108(quorate: Rig) -> None:
    await send(quorate, ("POST", "/nodes/pve1/qemu/108/status/start", {}))


async def take_snapshot_again(quorate: Rig) -> None:
    await send(quorate, ("DELETE", "/nodes/pve1/qemu/108/snapshot/configured", {}))
    await send(quorate, ("POST", "/nodes/pve1/qemu/108/snapshot", {"snapname": "configured"}))


def backups(quorate: Rig) -> dict[str, Any]:
    return {volume.volid: volume for volume in quorate.sim.world.storages["nas"].volumes("pve1")}


async def replace_backup(quorate: Rig) -> None:
    """Another backup of the same name: a newer one, of another size."""
    volume = backups(quorate)[oldest_backup(quorate)]
    volume.ctime, volume.size = volume.ctime + 3600, volume.size + 1


def oldest_backup(quorate: Rig) -> str:
    return min(volid for volid, volume in backups(quorate).items() if volume.content == "backup")


async def protect_backup(quorate: Rig) -> None:
    for volume in backups(quorate).values():
        volume.protected = not volume.protected


async def change_disk(quorate: Rig) -> None:
    disk = free_disk(quorate)
    disk.serial = "ANOTHER-DISK"


def free_disk(quorate: Rig) -> Any:
    return next(disk for disk in quorate.sim.world.part(Disks).of("pve1").disks.values() if not disk.used)


def job_put(**params: Any) -> Write:
    return ("PUT", "/cluster/backup/testjob", params)


ATTACKS: dict[str, Attack] = {
    "a job that prunes gets every guest": Attack(
        ("backup_job_set", {"job": "testjob", "keep": "last=1"}),
        (job_put(all=1, remove=0, delete="vmid"),), (JOB,), "backup job testjob: vm 102 docker01",
    ),
    "the same by raw calls": Attack(
        raw("PUT", "/cluster/backup/testjob", **{"prune-backups": "keep-last=1"}),
        (job_put(vmid="102,203", remove=0),), (JOB,), "backup job testjob: vm 102 docker01",
    ),
    "a job is retargeted before its deletion": Attack(
        ("backup_job_delete", {"job": "testjob"}), (job_put(vmid="203"),), (JOB,), "backup job testjob: vm 102 docker01"
    ),
    "a job is made again under its name": Attack(
        ("backup_job_delete", {"job": "testjob"}),
        (("DELETE", "/cluster/backup/testjob", {}), ("POST", "/cluster/backup", {**JOB[2], "schedule": "03:00"})),
        (JOB,),
    ),
    "a guest joins the pool of a job": Attack(
        raw("PUT", "/cluster/backup/pooled", **{"prune-backups": "keep-last=1"}),
        (("PUT", "/pools", {"poolid": "lab", "vms": "107"}),), (POOL_JOB,), "backup job pooled: vm 104 k3s-server",
    ),
    "a guest comes into a job of all": Attack(
        raw("PUT", "/cluster/backup/everyone", **{"prune-backups": "keep-last=1"}),
        (("POST", "/nodes/pve1/qemu", {"vmid": 700, "name": "late"}),), (ALL_JOB,), "vm 107 win11",
    ),
    "the storage of a job keeps fewer backups": Attack(
        raw("PUT", "/cluster/backup/testjob", remove=1, vmid="102,203"),
        (("PUT", "/storage/nas", {"prune-backups": "keep-last=1"}),), (JOB,),
        "backup job testjob, after the change: vm 102 docker01, ct 203 postgres",
    ),
    "a storage is replaced by another of its name": Attack(
        raw("DELETE", "/storage/old"),
        (("DELETE", "/storage/old", {}), ("POST", "/storage", {**STORAGE[2], "path": "/mnt/precious"})),
        (STORAGE,), "storage old: no volumes",
    ),
    "a storage is switched off before its retention changes": Attack(
        raw("PUT", "/storage/nas", **{"prune-backups": "keep-last=1"}), (("PUT", "/storage/nas", {"nodes": "pve1"}),),
        names="storage nas: ",
    ),
    "a stopped guest runs when it is rolled back": Attack(
        ("snapshot_rollback", {"guest": 108, "snapshot": "configured"}), start_108,
        names="vm 108 test-vm, stopped on pve1",
    ),
    "a snapshot is taken again under its name": Attack(
        ("snapshot_delete", {"guest": 108, "snapshot": "configured"}), take_snapshot_again
    ),
    "a guest is started before its deletion": Attack(raw("DELETE", "/nodes/pve1/qemu/108"), start_108),
    "a guest that becomes a template is started": Attack(
        raw("POST", "/nodes/pve2/qemu/107/template"), (("POST", "/nodes/pve2/qemu/107/status/start", {}),)
    ),
    "a guest starts on a node that is stopped": Attack(raw("POST", "/nodes/pve1/stopall"), start_108),
    "a guest starts on a node that shuts down": Attack(
        raw("POST", "/nodes/pve1/status", command="shutdown"), start_108
    ),
    "a role gets more privileges": Attack(
        raw("PUT", "/access/acl", path="/vms/108", roles="Ops", users="bob@pve"),
        (("PUT", "/access/roles/Ops", {"privs": "VM.Audit,VM.Allocate"}),), (ROLE,), "role Ops with VM.Audit",
    ),
    "a group gets a member": Attack(
        raw("PUT", "/access/acl", path="/vms/108", roles="PVEVMAdmin", groups="family"),
        (("PUT", "/access/users/bob@pve", {"groups": "family", "append": 1}),), (), "group family: ",
    ),
    "a role is granted to someone else": Attack(
        raw("PUT", "/access/roles/Ops", privs="VM.Audit,VM.Allocate"),
        (("PUT", "/access/acl", {"path": "/", "roles": "Ops", "users": "bob@pve"}),),
        (ROLE, ("PUT", "/access/acl", {"path": "/vms/108", "roles": "Ops", "users": "carol@pve"})),
        "role Ops: carol@pve on /vms/108",
    ),
    "a guest joins the pool of a grant": Attack(
        raw("PUT", "/access/acl", path="/pool/lab", roles="PVEVMAdmin", users="bob@pve"),
        (("PUT", "/pools", {"poolid": "lab", "vms": "107"}),),
    ),
    "a user gets a token before it is deleted": Attack(
        raw("DELETE", "/access/users/bob@pve"), (("POST", "/access/users/bob@pve/token/new", {}),),
        names="user bob@pve with PVEAuditor on /",
    ),
    "a token is used for more before it is renewed": Attack(
        raw("PUT", "/access/users/alice@pve/token/ci", privsep=0),
        (("PUT", "/access/acl", {"path": "/", "roles": "PVEAdmin", "users": "alice@pve"}),),
    ),
    "a pool has another member": Attack(
        raw("PUT", "/pools", poolid="lab", vms="108", delete=1), (("PUT", "/pools", {"poolid": "lab", "vms": "107"}),),
        names="pool lab: vm 104 k3s-server",
    ),
    "the rule at a position is another one": Attack(
        raw("DELETE", "/cluster/firewall/rules/0"), (("PUT", "/cluster/firewall/rules/0", {"moveto": 3}),), RULES
    ),
    "another network waits to be applied": Attack(
        raw("PUT", "/cluster/sdn"), (("POST", "/cluster/sdn/zones", {"zone": "later", "type": "simple"}),),
        (("POST", "/cluster/sdn/zones", {"zone": "lab", "type": "simple"}),),
    ),
    "another subnet waits to be applied": Attack(
        raw("PUT", "/cluster/sdn"),
        (("POST", "/cluster/sdn/vnets/net0/subnets", {"subnet": "10.9.0.0/24", "type": "subnet"}),),
        (
            ("POST", "/cluster/sdn/zones", {"zone": "lab", "type": "simple"}),
            ("POST", "/cluster/sdn/vnets", {"vnet": "net0", "zone": "lab"}),
        ),
    ),
    "another interface waits to be applied": Attack(
        raw("PUT", "/nodes/pve1/network"), (("POST", "/nodes/pve1/network", {"iface": "vmbr8", "type": "bridge"}),),
        (("POST", "/nodes/pve1/network", {"iface": "vmbr7", "type": "bridge"}),),
    ),
    "a mapping leads elsewhere": Attack(
        raw("DELETE", "/cluster/mapping/dir/share"),
        (("PUT", "/cluster/mapping/dir/share", {"map": ["node=pve1,path=/root"]}),), (MAPPING,),
    ),
    "backups are protected or no longer": Attack(
        raw("DELETE", "/nodes/pve1/storage/nas/prunebackups", **{"prune-backups": "keep-last=1"}), protect_backup
    ),
}  # fmt: skip


@tries(
    "a job, storage or mapping is changed or replaced under its name while the person reads the question",
    "a guest joins the pool, job or node that a question is about",
    "a role gets privileges, or a group a member, while a grant is being approved",
    "a stopped guest is started before it is rolled back or deleted",
    "networks or firewall rules are added between the question and the answer",
)
@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("what", ATTACKS)
async def test_nothing_is_done_to_an_object_that_the_person_did_not_see(tmp_path: Path, what: str, mode: str) -> None:
    await attack(tmp_path, ATTACKS[what], mode)


async def attack(tmp_path: Path, attempt: Attack, mode: str = "legacy") -> None:
    reader = Reader()
    async with rig(tmp_path, approval=Approval.ASK, mode=mode, elicitation=reader, in_memory=True) as quorate:
        await send(quorate, *attempt.before)
        world, swapped = quorate.sim.world, []

        async def swap() -> None:
            await (send(quorate, *attempt.swap) if isinstance(attempt.swap, tuple) else attempt.swap(quorate))
            await quorate.clock.advance(READING_SECONDS)
            swapped.append(state_of(world))

        tool, arguments = attempt.call
        reader.meanwhile = swap
        refusal = await quorate.refusal(tool, **arguments)
        if mode == "legacy":
            assert "has changed in the meantime" in refusal, refusal
        await quorate.clock.advance(READING_SECONDS)
        assert differences(swapped[0], state_of(world)) == []
        assert attempt.names in reader.questions[0]
        assert quorate.audit()[-1]["outcome"] in ("refused", "asked")  # asked again in the newer era, and not answered


UNTOUCHED = [what for what, attempt in ATTACKS.items() if what not in ("a guest is started before its deletion",)]


@pytest.mark.parametrize("what", UNTOUCHED)
async def test_what_nobody_touched_is_done(tmp_path: Path, what: str) -> None:
    """Time passes and others work on other things while the person reads."""
    attempt, reader = ATTACKS[what], Reader()
    async with rig(tmp_path, approval=Approval.ASK, elicitation=reader, in_memory=True) as quorate:
        await send(quorate, *attempt.before)

        async def others_work() -> None:
            await send(
                quorate,
                ("PUT", "/nodes/pve2/qemu/103/config", {"description": "busy"}),
                ("POST", "/cluster/backup", {"id": "unrelated", "schedule": "04:00", "vmid": "103", "storage": "pbs"}),
                ("PUT", "/storage/pbs", {"prune-backups": "keep-last=9"}),
            )

        reader.meanwhile = others_work
        tool, arguments = attempt.call
        answer = await quorate.facts(tool, **arguments)
        assert answer["result"] in ("done", "running", "warnings"), answer
        assert len(reader.questions) == 1


@tries("a snapshot, backup or disk is replaced by another of the same name")
async def test_a_backup_that_was_replaced_is_not_deleted(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as probe:
        volid = oldest_backup(probe)
    unprotect = ("PUT", f"/nodes/pve1/storage/nas/content/{volid}", {"protected": 0})
    await attack(tmp_path, Attack(("volume_delete", {"volume": volid, "node": "pve1"}), replace_backup, (unprotect,)))


async def test_a_backup_that_was_replaced_is_not_restored_over_a_guest(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as probe:
        archive = next(volid for volid in sorted(backups(probe)) if "vzdump-qemu" in volid)
    (tmp_path / "attack").mkdir()
    restore = raw("POST", "/nodes/pve1/qemu", vmid=108, archive=archive, force=1)

    async def swap(quorate: Rig) -> None:
        volume = backups(quorate)[archive]
        volume.ctime, volume.size = volume.ctime + 3600, volume.size + 1

    await attack(tmp_path / "attack", Attack(restore, swap))


async def test_another_disk_under_the_same_name_is_not_overwritten(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as probe:
        devpath = free_disk(probe).devpath
    (tmp_path / "attack").mkdir()
    overwrite = raw("POST", "/nodes/pve1/disks/lvm", device=devpath, name="fresh")
    await attack(tmp_path / "attack", Attack(overwrite, change_disk))


async def test_a_call_that_waits_for_an_operator_is_bound_as_well(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.ASK, in_memory=True) as quorate:
        await send(quorate, JOB)
        await quorate.refusal("backup_job_set", job="testjob", keep="last=1", wait=0)
        approvals = Approvals(quorate.app.store)
        for row in await approvals.list():
            await approvals.answer(row.id, True, "the operator")
        await send(quorate, job_put(all=1, remove=0, delete="vmid"))
        assert "waits for an operator" in await quorate.refusal("backup_job_set", job="testjob", keep="last=1", wait=0)
        (row,) = await approvals.list()
        assert any("backup job testjob: vm 100 router" in str(remark) for remark in row.remarks)
        assert "prune-backups" not in quorate.sim.world.part(BackupJobs).all()["testjob"]


async def test_a_plan_token_is_bound_as_well(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.TOKEN, in_memory=True) as quorate:
        await send(quorate, JOB)
        token = (await quorate.facts("backup_job_delete", job="testjob", dry_run=True))["plan_token"]
        await send(quorate, job_put(vmid="203"))
        assert "changed since" in await quorate.refusal("backup_job_delete", job="testjob", plan_token=token)
        assert "testjob" in quorate.sim.world.part(BackupJobs).all()


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("snapshot_create", {"guest": 108}),
        ("guest_bulk", {"action": "snapshot", "guests": [108, 203]}),
        ("guest_configure", {"guest": 108, "cores": 3, "safely": True}),
        ("backup_job_set", {"schedule": "02:00", "storage": "nas", "guest": [108]}),
    ],
)
async def test_an_approval_is_valid_for_a_plan_whose_names_come_from_the_time(
    tmp_path: Path, tool: str, arguments: dict[str, Any]
) -> None:
    async with rig(tmp_path, approval=Approval.ASK, in_memory=True, approve_changes=True) as quorate:
        await quorate.refusal(tool, **arguments, wait=0)
        approvals = Approvals(quorate.app.store)
        (row,) = await approvals.list()
        await approvals.answer(row.id, True, "the operator")
        await quorate.clock.advance(61)
        assert f"approved {row.id}" in (await quorate.facts(tool, **arguments))["approval"]
        answered = await approvals.get(row.id)
        assert answered is not None
        assert answered.state is State.USED


async def test_a_name_of_the_callers_own_is_bound(tmp_path: Path) -> None:
    async with rig(tmp_path, approval=Approval.TOKEN, in_memory=True, approve_changes=True) as quorate:
        first = {"guest": 108, "snapshot": "auto-20260101-000000"}
        token = (await quorate.facts("snapshot_create", **first, dry_run=True))["plan_token"]
        other = {"guest": 108, "snapshot": "auto-20260101-000001"}
        assert "other arguments" in await quorate.refusal("snapshot_create", **other, plan_token=token)
        token = (await quorate.facts("snapshot_create", guest=108, dry_run=True))["plan_token"]
        await quorate.clock.advance(61)
        await quorate.facts("snapshot_create", guest=108, plan_token=token)


class Listener(list[tuple[str, str]]):
    """The requests of a simulated cluster, which calls back before some of them are answered."""

    def __init__(self, path: str, happens: Callable[[], None]) -> None:
        super().__init__()
        self._path = path
        self._happens = happens

    def append(self, request: tuple[str, str]) -> None:
        super().append(request)
        if request == ("GET", self._path):
            self._happens()


@pytest.mark.parametrize("number", [2, 3, 4])
async def test_without_approval_the_object_that_was_judged_is_the_one_acted_on(tmp_path: Path, number: int) -> None:
    """Whichever read of the plan's own is the last one before the change."""
    async with rig(tmp_path) as quorate:
        jobs = quorate.sim.world.part(BackupJobs)
        jobs.add("testjob", {"schedule": "21:00", "vmid": "102", "storage": "nas"})
        reads = 0

        def change() -> None:
            nonlocal reads
            reads += 1
            if reads == number:
                jobs.all()["testjob"]["vmid"] = "203"

        quorate.sim.server.requests = Listener("/cluster/backup/testjob", change)
        answer = await quorate.call("api_call", method="DELETE", path="/cluster/backup/testjob")
        assert reads >= number
        assert answer.is_error
        assert "testjob" in jobs.all()


@tries("the object cannot be read when it matters")
@pytest.mark.parametrize("fault", ["500:cannot read", "403"])
async def test_what_cannot_be_read_again_counts_as_changed(tmp_path: Path, fault: str) -> None:
    reader = Reader()
    async with rig(tmp_path, approval=Approval.ASK, elicitation=reader) as quorate:
        jobs = quorate.sim.world.part(BackupJobs)
        jobs.add("testjob", {"schedule": "21:00", "vmid": "102", "storage": "nas"})

        async def break_it() -> None:
            quorate.sim.faults.add(f"{fault}:GET:/cluster/backup/testjob")

        reader.meanwhile = break_it
        refusal = await quorate.refusal("api_call", method="DELETE", path="/cluster/backup/testjob")
        assert "cannot be verified" in refusal
        assert "testjob" in jobs.all()


async def test_nobody_is_asked_about_what_cannot_be_read(tmp_path: Path) -> None:
    reader = Reader()
    async with rig(tmp_path, approval=Approval.ASK, elicitation=reader) as quorate:
        jobs = quorate.sim.world.part(BackupJobs)
        jobs.add("testjob", {"schedule": "21:00", "vmid": "102", "storage": "nas"})
        quorate.sim.faults.add("500:cannot read:GET:/cluster/backup/testjob")
        refusal = await quorate.refusal("api_call", method="DELETE", path="/cluster/backup/testjob")
        assert "cannot be verified" in refusal
        assert "cannot read" in refusal
        assert reader.questions == []
        assert "testjob" in jobs.all()


async def test_a_plain_change_costs_no_reads_of_this(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        await quorate.facts("guest_list")
        mark = len(quorate.sim.requests)
        path = "/nodes/pve1/qemu/108/config"
        await quorate.facts("api_call", method="PUT", path=path, params={"description": "x"})
        reads = [path for method, path in quorate.requests_since(mark) if method == "GET"]
        assert len([path for path in reads if path.endswith("/status/current")]) == 0
        assert len(reads) <= 4, reads


async def test_hidden_guests_stay_hidden_in_the_question(tmp_path: Path) -> None:
    rules = '[[rules]]\nname = "secret"\ndeny = "read"\nvmids = ["203"]\n'
    policy = read_policy(tomllib.loads(rules), Source(Rank.TOML))
    reader = Reader()
    async with rig(tmp_path, approval=Approval.ASK, elicitation=reader, more={"policy": policy}) as quorate:
        await quorate.call("api_call", method="DELETE", path="/storage/nas")
        assert all("postgres" not in question and "203" not in question for question in reader.questions)
        assert reader.questions
