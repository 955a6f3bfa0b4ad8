"""Updating and rebooting the nodes of a cluster, one after the other, without stopping its guests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, either
from quorate.inside.maintenance import UNCHANGED, apply_script, explain_failure
from quorate.operations.plan import Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster
from quorate.pve.lookup import Resource
from quorate.runs.kind import Next, Step, StepResult, Work, declare, finish
from quorate.runs.node_readiness import STILL_UP, missing_after_boot, preflight, running_on
from quorate.runs.start import At, Outline, Window, number_lines, start_plan
from quorate.runs.steps import (
    bound_of,
    count_failed_start,
    find_stopped,
    move_step,
    moving_memory,
    place,
    place_all,
    power_step,
    rows_of,
    start_again,
    with_its_name,
)
from quorate.runs.store import Bound, Pending, Run, literal
from quorate.secret import shown_line
from quorate.state.journal import Outcome
from quorate.units import count_of, duration

KIND = "rolling_update"
NODES = "nodes"
BACK_SECONDS = 30 * 60.0
"""How long a node may take to be back with everything it had."""
DOWN_SECONDS = 5 * 60.0
"""How long an empty node may take to go down."""
BUSY_SECONDS = 6 * 3600.0
"""How long the run waits for someone else's tasks on a node."""
KEPT_OUTPUT = 20_000
SHOWN_STUCK = 5
"""How many guests that cannot move are named in a refusal."""
REBOOT_MARK = "quorate: reboot required"

UPDATE = (
    f"( {apply_script('apt', refresh=True)} ); code=$?; "
    "newest=$(ls -1v /boot/vmlinuz-* 2>/dev/null | tail -n 1); "
    f"if test -e /var/run/reboot-required; then echo '{REBOOT_MARK}'; "
    'elif test ! -e /etc/kernel/proxmox-boot-pin && test -n "$newest" && '
    'test "$newest" != "/boot/vmlinuz-$(uname -r)"; '
    f"then echo '{REBOOT_MARK}'; fi; exit $code"
)


@operation(
    toolset="runs",
    risk=Risk.DESTROY,
    plans_later=True,
    search_words="rolling update upgrade reboot nodes cluster apt dist-upgrade kernel maintenance patch proxmox",
    example="dry_run=true",
    shown_by=("run_list",),
)
async def run_rolling_update(
    pve: Cluster,
    nodes: Annotated[list[str], Meta(description="In this order; default: all")] | None = None,
    parallel: Annotated[int, Meta(ge=1, le=8, description="Guests moved at a time")] = 2,
    with_local_disks: Annotated[bool, Meta(description="Copy local disks of running VMs, too")] = False,
    shutdown_rest: Annotated[bool, Meta(description="Shut down guests that cannot move, start them again")] = False,
    return_guests: Annotated[bool, Meta(description="Move guests back afterwards")] = True,
    at: At | None = None,
    window: Window | None = None,
) -> Plan:
    """Start a run that updates the nodes with apt, one by one: evacuate, update, reboot if required, return."""
    rows = sorted(await pve.inventory.of_type("node"), key=lambda row: row.node)
    known = [row.node for row in rows]
    order = list(dict.fromkeys(nodes or known))
    for node in order:
        await pve.inventory.online_node(node)
    if len(known) < 2 and not shutdown_rest:
        raise BadArgument(
            "There is no other node that could take the guests",
            next_step=Advice("Give {shutdown_rest} to shut them down", shutdown_rest=True),
        )
    guests = [row for row in await pve.inventory.fresh_guests() if not row.template]
    stuck, lines = [], []
    for node in order:
        here = [row for row in guests if row.node == node and row.status != "stopped"]
        others = [name for name in known if name != node]
        placed = await place_all(pve, here, others, with_local_disks=with_local_disks)
        stuck += [placement for placement in placed if not placement.node]
        moved = ", ".join(str(placement.row.vmid) for placement in placed if placement.node) or "none"
        lines.append(f"{node}: evacuate {moved}; update; reboot if required; {'return' if return_guests else 'next'}")
    stuck_rows = [placement.row for placement in stuck]
    if stuck and not shutdown_rest:
        stuck.sort(key=lambda placement: placement.row.vmid)
        named = [with_its_name(placement) for placement in stuck[:SHOWN_STUCK]]
        more = [f"and {len(stuck) - SHOWN_STUCK} more"] if len(stuck) > SHOWN_STUCK else []
        raise Conflict(
            "\n- ".join([f"{len(stuck)} {'guest' if len(stuck) == 1 else 'guests'} cannot be moved:", *named, *more]),
            next_step=either(
                Advice("Give {with_local_disks} to copy local disks", with_local_disks=True),
                Advice("{shutdown_rest} to shut the others down while their node reboots", shutdown_rest=True),
            ),
        )
    problems = [f"{node}: {problem}" for node in order for problem in (await preflight(pve, node)).problems]
    if problems:
        raise Conflict("The cluster is not ready", why="; ".join(dict.fromkeys(problems)), next_step="Fix that first")
    started = [
        row for row in guests if row.node in order and row.status == "stopped" and await _starts_at_boot(pve, row)
    ]
    outline = Outline(
        KIND,
        "run_rolling_update",
        f"Update {count_of(len(order), 'node')} one by one: {', '.join(order)}",
        f"update and reboot {', '.join(order)} in this order, one node at a time"
        + (", with local disks" if with_local_disks else "")
        + (f", shut down {', '.join(str(row.vmid) for row in stuck_rows)} for that time" if stuck else ""),
        {
            "order": order,
            "parallel": parallel,
            "with_local_disks": with_local_disks,
            "shutdown": [row.vmid for row in stuck_rows],
            "return_guests": return_guests,
        },
        lambda _: _bounds(order, known, guests, stuck_rows, with_local_disks=with_local_disks),
        Target("node", order[0], node=order[0]),
        tuple(Target("node", node, node=node) for node in order),
        facts={
            "steps": number_lines(lines),
            "commands": [UPDATE],
            **({"shut_down_meanwhile": [f"{placement.row.vmid} {placement.row.name}: {placement.reason}"
                                        for placement in stuck]} if stuck else {}),
            "one_node_at_a_time": True,
            "stops": "at the first problem",
        },
        warnings=(f"Stopped now, started by a reboot (onboot): {', '.join(map(str, started))}",) if started else (),
        risk=Risk.DESTROY,
    )  # fmt: skip
    return start_plan(pve, outline, at, window)


async def _starts_at_boot(pve: Cluster, row: Resource) -> bool:
    return bool(int((await (await pve.guest(row.vmid)).get("config")).get("onboot") or 0))


def _bounds(
    order: list[str], nodes: list[str], guests: list[Resource], stuck: list[Resource], *, with_local_disks: bool
) -> list[Bound]:
    return [
        *(bound_of(row, nodes, with_local_disks=with_local_disks) for row in guests),
        *(Bound("RUN", f"*: {literal(shown_line(UPDATE))}*", target=node) for node in order),
        *(Bound("POST", f"/nodes/{node}/status", {"command": ["reboot"]}) for node in order),
        *(
            Bound("POST", f"/nodes/*/{row.type}/{row.vmid}/status/{action}", {"*": []}, target=literal(row.name))
            for row in stuck
            for action in ("shutdown", "start")
        ),
    ]


@dataclass(frozen=True, slots=True)
class RollingUpdate:
    name: str = KIND

    async def next(self, work: Work) -> Next:
        if work.aborting or work.closing:
            return await self._clean_up(work)
        states = work.memory.setdefault(NODES, {})
        for node in work.scope["order"]:
            state = states.setdefault(node, {})
            if state.get("done"):
                continue
            self._report(work)
            if "failed" in state:  # shown once; when the run is resumed, it is tried again
                return Next(pause=f"{node}: {state.pop('failed')}")
            return await self._of_node(work, node, state)
        self._report(work)
        rebooted = sum("rebooted" in state for state in states.values())
        return finish(f"{count_of(len(states), 'node')} updated, {rebooted} rebooted")

    async def _of_node(self, work: Work, node: str, state: dict[str, Any]) -> Next:
        if "rebooting_since" in state and "rebooted" not in state:
            return await self._wait_for_boot(work, node, state)
        if "updated" not in state:
            return await self._update(work, node, state)
        if state["updated"] == "reboot" and "rebooted" not in state:
            return await self._reboot(work, node, state)
        return await self._bring_back(work, node, state)

    async def _clean_up(self, work: Work) -> Next:
        """A node that goes down comes back, and guests that were shut down for that run again: if the run is aborted,
        and if its window closes."""
        for node, state in work.memory.get(NODES, {}).items():
            if state.get("done") or work.busy:
                continue
            if "rebooting_since" in state and "rebooted" not in state:
                boot = await self._wait_for_boot(work, node, state)
                if boot.waits_for or (work.closing and boot.pause):
                    return boot
            if work.closing and "failed" in state:
                return Next(pause=f"{node}: {state.pop('failed')}")
            if starting := await start_again(work, state.get("stopped", ())):
                return starting
        return Next()

    # -- before the reboot -----------------------------------------------------------------------------------------

    async def _update(self, work: Work, node: str, state: dict[str, Any]) -> Next:
        if waiting := await self._make_ready(work, node, state):
            return waiting
        arguments = {"host": node, "command": UPDATE, "max_output": 256 * 1024}
        return Next((Step(f"update-{node}", "host_exec", arguments, f"Update the packages of {node}"),))

    async def _make_ready(self, work: Work, node: str, state: dict[str, Any]) -> Next | None:
        """Steps or waiting until the node is empty and can be taken out of the cluster; None when it is."""
        if work.busy:
            return await self._evacuate(work, node, state) or Next()
        return await self._preflight(work, node, state) or await self._evacuate(work, node, state)

    async def _preflight(self, work: Work, node: str, state: dict[str, Any]) -> Next | None:
        ready = await preflight(work.pve, node)
        if ready.problems:
            return Next(pause=f"{node} is not touched: {'; '.join(ready.problems)}")
        now = work.pve.clock.time()
        if ready.busy:
            since = float(state.setdefault("busy_since", now))
            if now - since > BUSY_SECONDS:
                return Next(pause=f"{node} has been busy for {duration(now - since)}: {', '.join(ready.busy)}")
            return Next(waits_for=f"tasks on {node} end: {', '.join(ready.busy)}", seconds=15.0)
        state.pop("busy_since", None)
        return None

    async def _evacuate(self, work: Work, node: str, state: dict[str, Any]) -> Next | None:
        """Steps that empty the node; None when nothing runs there."""
        pve, scope = work.pve, work.scope
        running = await running_on(pve.original, node)
        rows = pve.inventory.visible(running)
        if hidden := len(running) - len(rows):
            return Next(pause=f"{hidden} guests on {node} are hidden from the caller of this run and would go down")
        nodes = [row.node for row in await pve.inventory.of_type("node") if row.node != node]
        coming = moving_memory(work.run, {row.vmid: row for row in rows})
        steps: list[Step] = []
        waits: list[str] = []
        for row in rows:
            key = f"move-{row.vmid}"
            if key in work.busy or f"shutdown-{row.vmid}" in work.busy:
                continue
            if str(row.vmid) in state.get("moved", {}):
                return Next(pause=f"{node}: {row} was moved away and came back, by HA or by someone else")
            if row.lock:
                waits.append(f"{row} is locked ({row.lock})")
                continue
            if len(steps) + len(work.busy) >= int(scope["parallel"]):
                break
            if row.vmid in scope["shutdown"]:
                steps.append(power_step(row, "shutdown"))
                continue
            local = bool(scope["with_local_disks"])
            placed = await place(pve, row, nodes, coming, with_local_disks=local)
            if not placed.node:
                return Next(pause=f"{node}: {row} cannot be moved: {placed.reason}")
            steps.append(move_step(row, placed.node, with_local_disks=local))
            coming[placed.node] = coming.get(placed.node, 0) + row.maxmem
        if steps or work.busy:
            return Next(tuple(steps))
        return Next(waits_for="; ".join(waits)) if waits else None

    # -- the reboot ------------------------------------------------------------------------------------------------

    async def _reboot(self, work: Work, node: str, state: dict[str, Any]) -> Next:
        """Only an empty node goes down, and only if the others keep the quorum without it."""
        if waiting := await self._make_ready(work, node, state):
            return waiting
        state["uptime"] = (await work.pve.get(f"/nodes/{node}/status")).get("uptime", 0)
        return Next((Step(f"reboot-{node}", "node_power", {"node": node, "action": "reboot"}, f"Reboot {node}"),))

    async def _wait_for_boot(self, work: Work, node: str, state: dict[str, Any]) -> Next:
        now = work.pve.clock.time()
        since = float(state["rebooting_since"])
        waiting = now - float(state.get("waiting_since", since))
        lacking = await missing_after_boot(work.pve, node, now - since)
        if lacking == STILL_UP and not state["reboot_is_sure"] and waiting > DOWN_SECONDS:
            del state["rebooting_since"]  # a server died before it could ask for the reboot
            return Next(seconds=0.0)
        if lacking:
            if waiting > BACK_SECONDS:
                state["waiting_since"] = now  # so that a resumed run waits again
                if lacking == STILL_UP:
                    del state["rebooting_since"], state["waiting_since"]  # a resumed run asks for the reboot again
                return Next(pause=f"{node} is not back after {duration(now - since)}: {lacking}")
            return Next(waits_for=f"{node} comes back: {lacking}", seconds=10.0)
        state["rebooted"] = True
        work.say(f"{node} is back after {duration(now - since)}")
        return Next(seconds=0.0)

    # -- after it --------------------------------------------------------------------------------------------------

    async def _bring_back(self, work: Work, node: str, state: dict[str, Any]) -> Next:
        pve, scope = work.pve, work.scope
        moved: dict[str, str] = state.get("moved", {}) if scope["return_guests"] else {}
        rows = await rows_of(pve, [*map(int, moved), *state.get("stopped", ())])
        steps: list[Step] = []
        waits: list[str] = []
        for vmid, row in rows.items():
            if len(steps) + len(work.busy) >= int(scope["parallel"]):
                break
            if {f"move-{vmid}", f"start-{vmid}"} & set(work.busy):
                continue
            away = str(vmid) in moved and row.node == moved[str(vmid)] and vmid not in state.get("back", ())
            down = vmid in state.get("stopped", ()) and row.status == "stopped"
            if row.lock and (away or down):
                waits.append(f"{row} is locked ({row.lock})")
            elif away:
                local = bool(scope["with_local_disks"])
                placed = await place(pve, row, [node], {}, with_local_disks=local)
                if not placed.node:
                    return Next(pause=f"{row} cannot return to {node}: {placed.reason}")
                steps.append(move_step(row, node, with_local_disks=local))
            elif down:
                steps.append(power_step(row, "start"))
        if steps or work.busy:
            return Next(tuple(steps))
        if waits:
            return Next(waits_for="; ".join(waits))
        state["done"] = True
        work.say(f"{node} is done")
        return Next(seconds=0.0)

    # -- results ---------------------------------------------------------------------------------------------------

    def settle(self, run: Run, key: str, step: Pending, result: StepResult) -> None:
        node = self._current(run)
        state = run.memory.setdefault(NODES, {}).setdefault(node, {})
        what, _, rest = key.partition("-")
        if not result.was_sent:
            return
        if what == "shutdown":  # even if it failed: a guest may go down late, and the run has to start it again
            state["stopped"] = sorted({*state.get("stopped", ()), int(rest)})
        if what == "start":
            count_failed_start(run, int(rest), result)
        if what == "update":
            self._settle_update(state, result)
        elif what == "reboot":
            if result.is_done or result.outcome is Outcome.UNKNOWN:
                state["rebooting_since"], state["reboot_is_sure"] = step.begun, result.is_done
            else:
                state["failed"] = f"{step.says}: {result.error}"
        elif not result.is_done:
            state["failed"] = f"{step.says}: {result.error}"
        elif what == "move":
            self._settle_move(state, node, rest, str(step.arguments["node"]))

    def _settle_update(self, state: dict[str, Any], result: StepResult) -> None:
        if result.lost_output:  # a server died: run it again; apt waits for its own lock and finds nothing to do
            return
        output = f"{result.data.get('stdout', '')}\n{result.data.get('stderr', '')}".strip()
        state["output"] = output[-KEPT_OUTPUT:]
        if not result.failure:
            state["updated"] = "reboot" if REBOOT_MARK in output else "no reboot"
        else:
            why = UNCHANGED.get(result.data.get("exit_code", 0)) or f"apt failed ({result.failure})"
            state["failed"] = result.error or f"{why}: {explain_failure(output)}"

    def _settle_move(self, state: dict[str, Any], node: str, vmid: str, target: str) -> None:
        if target == node:
            state["back"] = sorted({*state.get("back", ()), int(vmid)})
        else:
            state.setdefault("moved", {})[vmid] = target

    def _current(self, run: Run) -> str:
        states = run.memory.get(NODES, {})
        return str(next(node for node in run.scope["order"] if not states.get(node, {}).get("done")))

    def _report(self, work: Work) -> None:
        work.run.report = {
            NODES: {node: _progress(work.memory.get(NODES, {}).get(node, {})) for node in work.scope["order"]},
            "output": {
                node: state["output"] for node, state in work.memory.get(NODES, {}).items() if state.get("output")
            },
        }

    async def list_unfinished(self, work: Work) -> list[str]:
        states = work.memory.get(NODES, {})
        unfinished = [f"{node}: {_progress(states.get(node, {}))}" for node in work.scope["order"]
                 if not states.get(node, {}).get("done")]  # fmt: skip
        for node, state in states.items():
            away = {vmid: to for vmid, to in state.get("moved", {}).items() if int(vmid) not in state.get("back", ())}
            if not state.get("done"):
                unfinished += [f"guest {vmid} of {node} is on {to}" for vmid, to in away.items()]
                rows = await find_stopped(work, state.get("stopped", ()))
                unfinished += [f"{row.kind} {row.vmid} {row.name} of {node} is shut down" for row in rows]
        return unfinished


def _progress(state: Mapping[str, Any]) -> str:
    if state.get("done"):
        return "updated and rebooted" if state.get("rebooted") else "updated, no reboot required"
    if "rebooting_since" in state and "rebooted" not in state:
        return "rebooting"
    return "updated, not finished" if state.get("updated") else "not updated"


declare(RollingUpdate())
