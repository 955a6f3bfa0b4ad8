"""A person who approves everything, while something else changes what the question is about.

Whatever happens in the meantime: a call that proceeds acts on objects that are as they were when the person read about
them. Like the verdict, this knows nothing of the product: it reads the states of the world and what was sent.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

from pve_simulator.access.directory import ROOT
from pve_simulator.storage.backup_jobs import BackupJobs
from quorate.config import Access
from quorate.pipeline.caller import Exchange, Question, Reply, ReplyKind
from tests.oracle.episode import Seed
from tests.oracle.loop import InnerLoop
from tests.oracle.script import Script
from tests.oracle.stage import Call, Stage, stage
from tests.oracle.state import Path as StatePath
from tests.oracle.state import State, differences, state_of
from tests.oracle.verdict import guests_of_job
from tests.rigs.in_memory_wire import Sent

READING_SECONDS: Final = 20.0
SETTLING_SECONDS: Final = 10.0
_SHARE_OF_SWAPS: Final = 0.75
_SHARE_OF_ANY_CALL: Final = 0.4
Write = tuple[str, str, dict[str, Any]]

_GUEST: Final = re.compile(r"/nodes/(?P<node>[^/\s]+)/(?P<type>qemu|lxc)/(?P<vmid>\d+)")
_MANY: Final = re.compile(r"/nodes/[^/]+/(?:(?:start|stop|suspend|migrate)all|status)|/cluster/bulk-action/")
_GUEST_PARTS: Final = ("config", "pending", "pending_delete", "snapshots", "running", "node")
_DEPTHS: Final = {"guests": 2, "ha": 2, "nodes": 2, "sdn": 1}
"""Of the path of an object; 3 for the others."""


class Person:
    """Reads, lets something happen, and types what is asked for."""

    def __init__(self, here: Stage, chance: Random) -> None:
        self._here = here
        self._chance = chance
        self.swap: Write | None = None
        self.seen: State = {}
        self.answered: State = {}
        self.sent_before = 0
        self.questions = 0

    async def answer(self, question: Question) -> Reply:
        estate = self._here.estate
        self.questions += 1
        self.seen, self.swap = state_of(estate.world), None
        if self._chance.random() < _SHARE_OF_SWAPS and (possible := [*self._swaps(question.text)]):
            swap = self._chance.choice(possible)
            with suppress(AssertionError):  # PVE refuses some
                await estate.send(*swap)
                self.swap = swap
        await estate.clock.advance(READING_SECONDS)
        self.answered, self.sent_before = state_of(estate.world), len(self._here.wire.sent)
        return Reply(ReplyKind.TYPED, question.word)

    def _swaps(self, text: str) -> Iterator[Write]:
        """Writes to what the steps of a question name, most of which need no approval."""
        world, pick = self._here.estate.world, self._chance.choice
        guests = [guest for guest in world.guests.values() if guest.node in text or str(guest.vmid) in text]
        named = [
            f"/nodes/{match['node']}/{match['type']}/{match['vmid']}"
            for match in _GUEST.finditer(text)
            if int(match["vmid"]) in world.guests
        ]
        for path in named or [f"/nodes/{guest.node}/{guest.kind}/{guest.vmid}" for guest in guests[:6]]:
            yield "PUT", f"{path}/config", {"description": f"note {self._chance.random()}"}
            yield "PUT", f"{path}/config", {"tags": f"t{self._chance.randrange(99)}"}
            yield "POST", f"{path}/status/{pick(('start', 'stop'))}", {}
            yield "POST", f"{path}/snapshot", {"snapname": f"s{self._chance.randrange(9999)}"}
        for job in re.findall(r"/cluster/backup/([\w.-]+)", text):
            vmid = pick([*world.guests])
            yield "PUT", f"/cluster/backup/{job}", {"all": 1, "remove": 0, "delete": "vmid,pool"}
            yield "PUT", f"/cluster/backup/{job}", {"vmid": vmid, "remove": 0, "delete": "all,exclude,pool"}
            yield "PUT", f"/cluster/backup/{job}", {"comment": f"c{self._chance.random()}"}
        for storage in [name for name in world.storages if name in text]:
            yield "PUT", f"/storage/{storage}", {"nodes": pick([*world.nodes])}
            yield "PUT", f"/storage/{storage}", {"prune-backups": f"keep-last={self._chance.randrange(1, 9)}"}
        for pool in [name for name in world.access.pools if name in text]:
            yield "PUT", "/pools", {"poolid": pool, "vms": pick([*world.guests]), "allow-move": 1}
            yield "PUT", "/pools", {"poolid": pool, "comment": f"c{self._chance.random()}"}
        for role in [name for name in world.access.custom_roles if name in text]:
            yield "PUT", f"/access/roles/{role}", {"privs": pick(("VM.Audit", "VM.Allocate", "VM.Console"))}
        for user in [name for name in world.access.users if name in text]:
            yield "PUT", f"/access/users/{user}", {"comment": f"c{self._chance.random()}"}
            yield "POST", f"/access/users/{user}/token/t{self._chance.randrange(999)}", {}
        if "/cluster/firewall" in text:
            yield "POST", "/cluster/firewall/rules", {"type": "in", "action": "DROP", "comment": "new", "pos": 0}
        if "/cluster/sdn" in text:
            yield "POST", "/cluster/sdn/zones", {"zone": f"z{self._chance.randrange(9999)}", "type": "simple"}
        for node in re.findall(r"/nodes/([\w-]+)/network", text):
            yield (
                "POST",
                f"/nodes/{node}/network",
                {"iface": f"vmbr{self._chance.randrange(10, 999)}", "type": "bridge"},
            )

    def objections(self) -> list[str]:
        """Of the last call: what it changed although the person had seen something else."""
        sent = [request for request in self._here.wire.sent[self.sent_before :] if request.method != "GET"]
        if not sent:
            return []
        after = state_of(self._here.estate.world)
        moved = {
            _object(difference.path): difference
            for difference in differences(self.seen, self.answered)
            if _counts(difference.path)
        }
        changed = {
            _object(difference.path) for difference in differences(self.answered, after) if _counts(difference.path)
        }
        objections = [
            f"{moved[key]} while the person read" for key in changed & moved.keys() if _is_addressed(key, sent)
        ]
        for job in {key[2] for key in changed if key[:2] == ("jobs", "jobs")}:
            if f"/cluster/backup/{job}" in " ".join(request.target for request in sent):
                before, now = guests_of_job(self.seen, job), guests_of_job(self.answered, job)
                objections += [f"job {job} had the guests {before} and has {now}"] if before != now else []
        return objections


def _object(path: StatePath) -> StatePath:
    if path[0] == "storages" and len(path) > 5 and path[2] == "places":
        return path[:6]
    return path[: _DEPTHS.get(path[0], 3)]


def _counts(path: StatePath) -> bool:
    """What changes automatically in a guest that runs does not."""
    return path[0] != "guests" or path[2] in _GUEST_PARTS


def _is_addressed(key: StatePath, sent: list[Sent]) -> bool:
    """Whether the writes name the object: a deletion also removes a guest from jobs that nobody was asked about."""
    text = " ".join(str(request) for request in sent)
    if key[0] == "guests":
        return (
            any(_MANY.search(request.target) for request in sent)
            or re.search(rf"/(?:qemu|lxc)/{key[1]}\b", text) is not None
        )
    return key[-1] in text


def _grave_call(here: Stage, chance: Random) -> Call:
    """One that a person is asked about, on something that exists."""
    world, pick = here.estate.world, chance.choice
    guest = pick([*world.guests.values()])
    path = f"/nodes/{guest.node}/{guest.kind}/{guest.vmid}"
    jobs, pools = [*world.part(BackupJobs).all()] or ["nightly"], [*world.access.pools]
    users = [name for name in world.access.users if name != ROOT]
    keep = {"prune-backups": f"keep-last={chance.randrange(1, 9)}"}
    grant = {"path": pick(("/", f"/vms/{guest.vmid}", f"/pool/{pick(pools)}")), "roles": pick(("PVEVMUser", "Ops"))}
    raw: list[Write] = [
        ("DELETE", path, {}),
        ("POST", f"{path}/status/stop", {}),
        ("POST", f"{path}/template", {}),
        *(("DELETE", f"{path}/snapshot/{name}", {}) for name in guest.snapshots),
        *(("POST", f"{path}/snapshot/{name}/rollback", {}) for name in guest.snapshots),
        *[("PUT", f"/cluster/backup/{pick(jobs)}", keep), ("DELETE", f"/cluster/backup/{pick(jobs)}", {})] * 2,
        ("PUT", f"/storage/{pick([*world.storages])}", keep),
        ("DELETE", f"/storage/{pick([*world.storages])}", {}),
        ("PUT", "/pools", {"poolid": pick(pools), "vms": guest.vmid, "delete": chance.randrange(2)}),
        ("POST", "/access/roles", {"roleid": "Ops", "privs": "VM.Audit"}),
        ("PUT", "/access/roles/Ops", {"privs": "VM.Audit,VM.Console"}),
        *(("PUT", "/access/acl", {**grant, "users": user}) for user in users[:2]),
        *(("DELETE", f"/access/users/{user}", {}) for user in users[:2]),
        ("DELETE", "/cluster/firewall/rules/0", {}),
        ("POST", f"/nodes/{guest.node}/stopall", {}),
        ("PUT", "/cluster/sdn", {}),
        ("PUT", f"/nodes/{guest.node}/network", {}),
    ]
    method, where, params = pick(raw)
    return Call("native", "api_call", {"method": method, "path": where, **({"params": params} if params else {})})


class Finding(Exception):
    """The call, what happened while the person read, and what is wrong."""


def run(seed: Seed, calls: int) -> tuple[int, int]:
    """How many questions were asked, and how many calls proceeded after one. Raises a Finding."""
    with asyncio.Runner(loop_factory=InnerLoop) as runner, tempfile.TemporaryDirectory(prefix="swaps-") as folder:
        return runner.run(_run(seed, calls, Path(folder)))


async def _run(seed: Seed, calls: int, folder: Path) -> tuple[int, int]:
    proceeded = 0
    async with stage(folder / "episode", Access.ADMIN, seed.version) as here:
        script, chance = Script(here, f"swaps {seed}"), Random(f"swaps {seed}")
        person = Person(here, chance)
        for _ in range(calls):
            call = script.next() if chance.random() < _SHARE_OF_ANY_CALL else _grave_call(here, chance)
            asked = person.questions
            await _make(here, call, person)
            await here.estate.clock.advance(SETTLING_SECONDS)
            if person.questions == asked:
                continue
            proceeded += any(request.method != "GET" for request in here.wire.sent[person.sent_before :])
            if objections := person.objections():
                raise Finding("\n".join([str(seed), str(call), f"meanwhile: {person.swap}", *objections]))
    return person.questions, proceeded


async def _make(here: Stage, call: Call, person: Person) -> None:
    with suppress(Exception):  # refusals and failures are judged by the other episodes
        await here.ways[call.way](call.tool, call.arguments, Exchange(ask=person.answer))
