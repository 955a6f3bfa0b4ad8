"""Bugs to plant in the product: each a removed guard, a doubled send or a wrong order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from quorate.pipeline import execution, proof
from quorate.pve import tasks
from quorate.pve.client import PveClient
from quorate.runs import changes as undo
from quorate.runs import evacuate, guest_update, kind, remote_move, restore_drill, rolling_update, steps, worker
from quorate.runs.steps import find_guest, moved_vmid
from quorate.runs.store import Bound, RunState, RunStore
from quorate.runs.worker import Worker
from quorate.state.journal import Change, Journal, Outcome, StepState
from tests.simulation.kinds import Scenario
from tests.simulation.kinds.guest_update import GuestUpdate
from tests.simulation.kinds.remote_move import RemoteMove
from tests.simulation.kinds.restore_drill import RestoreDrill
from tests.simulation.kinds.rolling_update import RollingUpdate
from tests.simulation.kinds.undo import Undo
from tests.simulation.replica import MemoryDatabase

Patch = pytest.MonkeyPatch
Bug = Callable[[Patch], None]


def every_write_is_sent_twice(patch: Patch) -> None:
    request = PveClient.request

    async def twice(self: PveClient, method: str, path: str, params: Any = None) -> Any:
        if method != "GET":
            await request(self, method, path, params)
        return await request(self, method, path, params)

    patch.setattr(PveClient, "request", twice)


def a_lost_answer_is_sent_again(patch: Patch) -> None:
    async def resend(cluster: Any, step: Any, call: Any, *_: Any) -> None:
        answer = await cluster.client.request(call.method, call.path, call.params)
        if tasks.Upid.looks_like(answer.data):
            step.task = tasks.Upid.parse(answer.data)

    patch.setattr(execution, "_recover", resend)


def the_intent_is_not_written(patch: Patch) -> None:
    async def begin(self: Change, entry: Any, reservations: Any = ()) -> None:
        self.begun = True

    patch.setattr(Change, "begin", begin)


def the_outcome_is_not_written(patch: Patch) -> None:
    async def close(self: Journal, change: str, entry: Any, *, final: bool) -> None:
        await self._forget(change, final)

    patch.setattr(Journal, "close", close)


def every_task_counts_as_done(patch: Patch) -> None:
    def judge(step: Any, _: Any) -> None:
        step.state = StepState.DONE

    patch.setattr(execution, "_judge", judge)


def tasks_are_not_followed(patch: Patch) -> None:
    async def follow(_: Any, upid: tasks.Upid, **__: Any) -> tasks.TaskState:
        return tasks.TaskState(upid, running=False, exit="OK")

    patch.setattr(execution, "follow", follow)


def what_a_dead_server_began_counts_as_done(patch: Patch) -> None:
    async def look_up(self: Worker, pending: Any) -> kind.StepResult:
        return kind.StepResult(Outcome.DONE)

    patch.setattr(Worker, "_look_up", look_up)


def what_a_dead_server_began_counts_as_failed(patch: Patch) -> None:
    async def look_up(self: Worker, pending: Any) -> kind.StepResult:
        return kind.StepResult(Outcome.FAILED, "the server died")

    patch.setattr(Worker, "_look_up", look_up)


def steps_of_a_dead_server_are_not_looked_up(patch: Patch) -> None:
    async def look_up(self: Worker, pending: Any) -> kind.StepResult:
        return kind.StepResult(Outcome.NOT_DONE)

    patch.setattr(Worker, "_look_up", look_up)


def failed_moves_count_as_moved(patch: Patch) -> None:
    def settle(self: Any, run: Any, key: str, step: Any, result: Any) -> None:
        run.memory.setdefault(evacuate.MOVED, {})[str(moved_vmid(key))] = str(step.arguments["node"])

    patch.setattr(evacuate.Evacuation, "settle", settle)


def failures_are_not_reported(patch: Patch) -> None:
    def end(self: Any, work: Any) -> kind.Next:
        return kind.finish("all guests moved")

    patch.setattr(evacuate.Evacuation, "_end", end)


def more_guests_move_than_were_approved_at_a_time(patch: Patch) -> None:
    original = evacuate.Evacuation.next

    async def unlimited(self: Any, work: Any) -> Any:
        work.run.scope = {**work.run.scope, "parallel": 8}
        return await original(self, work)

    patch.setattr(evacuate.Evacuation, "next", unlimited)


def the_run_ends_while_steps_run(patch: Patch) -> None:
    async def impatient(self: Worker) -> None:
        await asyncio.sleep(0.5)

    patch.setattr(Worker, "_wait_for_a_step", impatient)
    original = Worker._act

    async def act(self: Worker, kind_: Any, run: Any, decided: Any) -> bool:
        if self._tasks:
            await self._end(run, RunState.DONE, "it seems")
        return await original(self, kind_, run, decided)

    patch.setattr(Worker, "_act", act)


def a_run_is_never_released(patch: Patch) -> None:
    async def held(self: MemoryDatabase, name: str) -> bool:
        return True

    patch.setattr(MemoryDatabase, "is_held", held)


def every_server_works_on_every_run(patch: Patch) -> None:
    async def not_held(self: MemoryDatabase, name: str) -> bool:
        return False

    async def anyone(self: RunStore, name: str, edit: Any) -> Any:
        return await self.change(name, edit)

    patch.setattr(MemoryDatabase, "is_held", not_held)
    patch.setattr(RunStore, "change_ours", anyone)


def writes_to_a_run_overwrite_each_other(patch: Patch) -> None:
    async def execute(self: MemoryDatabase, statement: str, *values: Any) -> int:
        return await plain(self, statement.replace(" AND version = $5", " AND $5 > 0"), *values)

    plain = MemoryDatabase.execute
    patch.setattr(MemoryDatabase, "execute", execute)
    patch.setattr(RunStore, "change_ours", lambda self, name, edit: self.change(name, edit))
    patch.setattr(RunStore, "claim", _claim_anyway)


async def _claim_anyway(self: RunStore, run: Any) -> Any:
    return await self.change(run.id, lambda now: setattr(now, "owner", self.owner))


def locked_guests_are_moved_too(patch: Patch) -> None:
    async def unlocked(pve: Any, vmids: Any) -> Any:
        rows = await rows_of(pve, vmids)
        return {vmid: type(row)(**{**{n: getattr(row, n) for n in row.__struct_fields__}, "lock": ""})
                for vmid, row in rows.items()}  # fmt: skip

    rows_of = steps.rows_of
    patch.setattr(steps, "rows_of", unlocked)
    steps_of_a_dead_server_are_not_looked_up(patch)


def unknown_outcomes_are_closed_as_done(patch: Patch) -> None:
    original = proof._Investigation._unanswered_call

    async def optimistic(self: Any, number: str, wire: Any, since: float) -> Any:
        await original(self, number, wire, since)
        return proof.StepResolution(StepState.DONE, "surely")

    patch.setattr(proof._Investigation, "_unanswered_call", optimistic)


def changes_of_living_servers_are_taken_over(patch: Patch) -> None:
    async def never(self: Journal, change: str, owner: str) -> bool:
        return False

    patch.setattr(Journal, "_claim", never)


def a_failed_attempt_is_repeated_forever(patch: Patch) -> None:
    def forget(self: Any, run: Any, key: str, step: Any, result: Any) -> None:
        return

    patch.setattr(evacuate.Evacuation, "settle", forget)
    patch.setattr(worker, "MOST_TRIES", 10**9)
    patch.setattr(execution, "follow", _always_fails)


async def _always_fails(_: Any, upid: tasks.Upid, **__: Any) -> tasks.TaskState:
    return tasks.TaskState(upid, running=False, exit="migration aborted")


# -- in the other kinds ------------------------------------------------------------------------------------------------


def a_node_is_rebooted_under_its_guests(patch: Patch) -> None:
    async def empty(self: Any, work: Any, node: str, state: Any) -> None:
        return None

    patch.setattr(rolling_update.RollingUpdate, "_evacuate", empty)


def a_reboot_is_not_waited_for(patch: Patch) -> None:
    async def back(pve: Any, node: str, seconds: float) -> str:
        return ""

    patch.setattr(rolling_update, "missing_after_boot", back)


def a_node_is_rebooted_again_after_a_crash(patch: Patch) -> None:
    original = rolling_update.RollingUpdate.settle

    def settle(self: Any, run: Any, key: str, step: Any, result: Any) -> None:
        if not (key.startswith("reboot") and not result.data):
            original(self, run, key, step, result)

    patch.setattr(rolling_update.RollingUpdate, "settle", settle)


def guests_that_an_aborted_run_stopped_stay_stopped(patch: Patch) -> None:
    async def leave(work: Any, vmids: Any) -> None:
        return None

    patch.setattr(rolling_update, "start_again", leave)


def a_guest_that_an_aborted_update_stopped_stays_stopped(patch: Patch) -> None:
    original = guest_update.GuestUpdate.settle

    def settle(self: Any, run: Any, key: str, step: Any, result: Any) -> None:
        original(self, run, key, step, result)
        run.memory.pop("stopped", None)

    patch.setattr(guest_update.GuestUpdate, "settle", settle)


def what_a_drill_restored_stays(patch: Patch) -> None:
    async def leave(self: Any, guest: Any, number: int, item: Any, state: Any) -> kind.Next:
        state["over"] = True
        return kind.Next(seconds=0.0)

    patch.setattr(restore_drill.RestoreDrill, "_clean", leave)


def a_restored_guest_keeps_its_network(patch: Patch) -> None:
    def start(self: Any, work: Any, guest: Any, number: int, config: Any) -> kind.Step:
        arguments = {"guest": guest.vmid, "action": "start"}
        return kind.Step(f"start-{number}", "guest_power", arguments, "Boot it")

    patch.setattr(restore_drill.RestoreDrill, "_prepare", start)


def a_silent_guest_counts_as_booted(patch: Patch) -> None:
    def booted(self: Any, work: Any, guest: Any, number: int, state: Any, config: Any) -> kind.Next:
        state["booted"] = "surely"
        return kind.Next(seconds=0.0)

    patch.setattr(restore_drill.RestoreDrill, "_wait_for_boot", booted)


def an_unhealthy_guest_is_not_rolled_back(patch: Patch) -> None:
    def leave(self: Any, work: Any, guest: Any, *, running: bool) -> kind.Next:
        work.memory["rolled_back"] = True
        return kind.Next(seconds=0.0)

    patch.setattr(guest_update.GuestUpdate, "_roll_back", leave)


def the_snapshot_of_an_update_is_always_kept(patch: Patch) -> None:
    patch.setattr(guest_update.GuestUpdate, "_drop", lambda *_: None)


def a_lost_check_counts_as_passed(patch: Patch) -> None:
    original = guest_update.GuestUpdate.settle

    def settle(self: Any, run: Any, key: str, step: Any, result: Any) -> None:
        if key.startswith("check") and result.lost_output:
            run.memory.setdefault("checks", {})[key.partition("-")[2]] = {"passed": True}
        else:
            original(self, run, key, step, result)

    patch.setattr(guest_update.GuestUpdate, "settle", settle)


def a_failed_move_to_another_cluster_counts_as_done(patch: Patch) -> None:
    def settle(self: Any, run: Any, key: str, step: Any, result: Any) -> None:
        run.memory["migrated"] = run.memory["runs"] = True

    patch.setattr(remote_move.RemoteMove, "settle", settle)


def the_source_is_deleted_at_once(patch: Patch) -> None:
    original = remote_move.RemoteMove.next

    async def eager(self: Any, work: Any) -> kind.Next:
        source = await find_guest(work.pve, int(work.scope["vmid"]), str(work.scope["name"]))
        if work.memory.get("failed") and work.scope["delete_source"] and source and not work.busy:
            arguments = {"guest": source.vmid, "stop": True}
            return kind.Next((kind.Step("delete", "guest_delete", arguments, "Delete it"),))
        return await original(self, work)

    patch.setattr(remote_move.RemoteMove, "next", eager)
    bounds = remote_move._bounds
    patch.setattr(
        remote_move, "_bounds", lambda *args, **options: [*bounds(*args, **options), Bound("POST", "*", {"*": []})]
    )


def only_one_option_is_set_back(patch: Patch) -> None:
    original = undo._replaced_values

    def first(entry: Any, number: int) -> Any:
        return dict(list(original(entry, number).items())[:1])

    patch.setattr(undo, "_replaced_values", first)


BUGS_OF_KINDS: dict[Bug, type[Scenario]] = {
    a_node_is_rebooted_under_its_guests: RollingUpdate,
    a_reboot_is_not_waited_for: RollingUpdate,
    a_node_is_rebooted_again_after_a_crash: RollingUpdate,
    guests_that_an_aborted_run_stopped_stay_stopped: RollingUpdate,
    what_a_drill_restored_stays: RestoreDrill,
    a_restored_guest_keeps_its_network: RestoreDrill,
    a_silent_guest_counts_as_booted: RestoreDrill,
    an_unhealthy_guest_is_not_rolled_back: GuestUpdate,
    the_snapshot_of_an_update_is_always_kept: GuestUpdate,
    a_lost_check_counts_as_passed: GuestUpdate,
    a_guest_that_an_aborted_update_stopped_stays_stopped: GuestUpdate,
    a_failed_move_to_another_cluster_counts_as_done: RemoteMove,
    the_source_is_deleted_at_once: RemoteMove,
    only_one_option_is_set_back: Undo,
}


BUGS: tuple[Bug, ...] = (
    every_write_is_sent_twice,
    a_lost_answer_is_sent_again,
    the_intent_is_not_written,
    the_outcome_is_not_written,
    every_task_counts_as_done,
    tasks_are_not_followed,
    what_a_dead_server_began_counts_as_done,
    what_a_dead_server_began_counts_as_failed,
    steps_of_a_dead_server_are_not_looked_up,
    failed_moves_count_as_moved,
    failures_are_not_reported,
    more_guests_move_than_were_approved_at_a_time,
    the_run_ends_while_steps_run,
    a_run_is_never_released,
    every_server_works_on_every_run,
    writes_to_a_run_overwrite_each_other,
    locked_guests_are_moved_too,
    unknown_outcomes_are_closed_as_done,
    changes_of_living_servers_are_taken_over,
    a_failed_attempt_is_repeated_forever,
)
