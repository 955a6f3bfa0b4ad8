"""A node dies, or the quorum is lost, in the middle of each kind of run: it ends or asks, and says what is true."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pve_simulator.faults import Faults
from quorate.runs.store import Run, RunState
from tests.rigs.mcp_session import Rig, rig
from tests.rigs.several_clusters import several_clusters
from tests.rigs.simulated_guests import machine
from tests.runs.control import work_and_act_when

pytestmark = pytest.mark.anyio

OUTAGE_SECONDS = 900.0
LONGEST_SECONDS = 2 * 3600.0
OUR_DEFECT = ("failed inside Quorate", "internal error", "Traceback", "object at 0x")
OUTAGES = {"pve2 dies": "node-dead:pve2", "pve3 dies": "node-dead:pve3", "the quorum is lost": "no-quorum"}
EVACUATION = {"node": "pve3", "with_local_disks": True}
NODES = {"nodes": ["pve2", "pve3"], "with_local_disks": True, "shutdown_rest": True}
DRILL = {"guest": 102, "node": "pve2", "storage": "nas"}


async def evacuate(quorate: Rig) -> str:
    return str((await quorate.facts("run_evacuate", **EVACUATION))["run"])


async def take_back(quorate: Rig) -> str:
    away = await evacuate(quorate)
    await quorate.app.runs.work()
    return str((await quorate.facts("run_return", run=away))["run"])


async def update_guest(quorate: Rig) -> str:
    machine(quorate, 104).updates = ["libc6"]
    return str((await quorate.facts("run_guest_update", guest=104, check="true"))["run"])


async def prove(quorate: Rig) -> str:
    return str((await quorate.facts("run_restore_drill", **DRILL))["run"])


async def update_nodes(quorate: Rig) -> str:
    return str((await quorate.facts("run_rolling_update", **NODES))["run"])


def guests_on(quorate: Rig, node: str) -> list[int]:
    return [guest.vmid for guest in quorate.sim.world.guests_on(node) if guest.running]


def has_left(quorate: Rig, run: Run) -> bool:
    return bool(run.report.get("not_moved")) or not guests_on(quorate, "pve3")


def has_returned(quorate: Rig, run: Run) -> bool:
    return bool(run.report.get("not_moved")) or bool(guests_on(quorate, "pve3"))


def is_updated(quorate: Rig, run: Run) -> bool:
    """A snapshot is left only if the report says so."""
    reported = {"not_removed", "kept_snapshot"} & run.report.keys()
    left = [name for name in quorate.sim.world.guests[104].snapshots if name.startswith("update-")]
    return bool(left) <= bool(reported) and (run.state is RunState.FAILED or machine(quorate, 104).updates == [])


def is_proved(_quorate: Rig, run: Run) -> bool:
    """What happens to a node says nothing about a backup."""
    return run.state is RunState.DONE and [row["verdict"] for row in run.report["backups"].values()] == ["passed"]


def are_updated(quorate: Rig, run: Run) -> bool:
    kernels = {quorate.sim.world.nodes[node].kernel for node in ("pve2", "pve3")}
    return run.state is RunState.DONE and kernels == {"6.17.4-1-pve"}


@dataclass(frozen=True)
class RunKind:
    start: Callable[[Rig], Awaitable[str]]
    holds: Callable[[Rig, Run], bool]
    """Whether what the run says is so."""
    steps: tuple[str, ...]
    """Beginnings of steps; the outage begins when the run has begun one of them."""
    more: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "evacuation": RunKind(evacuate, has_left, ("move-",)),
    "return": RunKind(take_back, has_returned, ("move-",)),
    "guest update": RunKind(update_guest, is_updated, ("protect", "update", "check", "drop")),
    "restore drill": RunKind(prove, is_proved, ("restore-", "isolate-", "start-", "boot-", "clean-")),
    "rolling update": RunKind(update_nodes, are_updated, ("move-", "update-", "reboot-"), {"ssh": True}),
}


@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES)
@pytest.mark.parametrize(
    ("kind", "step"),
    [pytest.param(kind, step, id=f"{name} {step}") for name, kind in KINDS.items() for step in kind.steps],
)
async def test_a_run_survives_an_outage(tmp_path: Path, kind: RunKind, step: str, outage: str) -> None:
    async with rig(tmp_path, in_memory=True, **kind.more) as quorate:
        name = await kind.start(quorate)
        world, began = quorate.sim.world, quorate.clock.now()
        running = {vmid for vmid, guest in world.guests.items() if guest.running}
        lost: set[int] = set()

        def strike() -> None:
            dead = outage.removeprefix("node-dead:")
            lost.update(guest.vmid for guest in world.guests_on(dead) if not guest.config.get("onboot"))
            break_for_a_while(quorate, quorate.sim.faults, outage)

        run = await run_through(quorate, name, step, strike)
        assert run.state in (RunState.DONE, RunState.FAILED), run.log
        assert quorate.clock.now() - began < LONGEST_SECONDS
        assert kind.holds(quorate, run), (run.state, run.reason, run.report)
        now_running = {vmid for vmid, guest in world.guests.items() if guest.running}
        assert running - now_running <= lost, (running - now_running, lost, [line.text[:200] for line in run.log])
        assert now_running <= running, (now_running - running, run.log)
        assert not [guest.name for guest in world.guests.values() if guest.name.startswith("drill-")]


@pytest.mark.parametrize("where", ["prod", "lab"])
async def test_a_move_to_another_cluster_survives_the_loss_of_a_quorum(tmp_path: Path, where: str) -> None:
    """The guest runs in exactly one of the clusters, and the run says in which."""
    async with several_clusters(tmp_path, "prod", "lab") as quorate:
        started = await quorate.facts(
            "run_remote_move", guest=104, to="lab", storage="local", cluster="prod", delete_source=True
        )
        faults = quorate.sims[where].faults
        run = await run_through(
            quorate, started["run"], "migrate", lambda: break_for_a_while(quorate, faults, "no-quorum"), cluster="prod"
        )
        here, there = (quorate.sims[name].world.guests.get(104) for name in ("prod", "lab"))
        assert [guest.running for guest in (here, there) if guest is not None].count(True) == 1, run.log
        assert run.state in (RunState.DONE, RunState.FAILED), run.log
        assert (run.state is RunState.DONE) == (there is not None and there.running), (run.reason, run.report)


def break_for_a_while(quorate: Any, faults: Faults, outage: str) -> None:
    fault = faults.add(outage)

    async def mend() -> None:
        await quorate.clock.sleep(OUTAGE_SECONDS)
        faults.remove(fault)

    next(iter(quorate.sims.values()) if hasattr(quorate, "sims") else iter([quorate.sim])).world.tasks.in_background(
        mend()
    )


async def run_through(quorate: Any, id: str, step: str, strike: Callable[[], None], **where: str) -> Run:
    """Work until the run has ended. Once it has paused, resume it when all is well again, as a person would."""

    async def act() -> None:
        strike()

    begun = quorate.clock.now()
    await work_and_act_when(quorate, id, lambda run: any(key.startswith(step) for key in run.current), act)
    await quorate.clock.advance(max(0.0, begun + 2 * OUTAGE_SECONDS - quorate.clock.now()))
    run: Run = await quorate.app.runs.get(id)
    if run.state is RunState.PAUSED:
        assert run.reason
        await quorate.facts("run_control", run=id, action="resume", **where)
        await quorate.app.runs.work()
        run = await quorate.app.runs.get(id)
    text = f"{run.reason} {run.report} {run.log}"
    assert not any(word in text for word in OUR_DEFECT), text
    return run
