"""Updates of hosts: what would change, then apply it; a guest gets a snapshot first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import HOST_JOB, HOST_REBOOT, RUN_GUEST_UPDATE, SNAPSHOT_ROLLBACK, Advice, Sentence, Wording
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine, resolve_guest
from quorate.inside.jobs import JobRegistry
from quorate.inside.upgrades import SECONDS, PendingUpdates, apply_script, count_pending, list_pending
from quorate.operations.commands import CommandJob, CommandRequest, command_job
from quorate.operations.guests.power import power_call
from quorate.operations.hosts.parameters import HostRefs
from quorate.operations.hosts.several import plan_each
from quorate.operations.machine import command_target, machine_action, machine_label
from quorate.operations.plan import Action, ActionResult, Call, Plan, StepContext, guest_call
from quorate.operations.registry import Owner, Risk, operation
from quorate.operations.snapshots import creation, name_from_time, snapshot_rollback
from quorate.operations.units import shortlist
from quorate.problems import Conflict, Problem, TaskFailed
from quorate.pve.cluster import Cluster, Guest

LIMIT_SECONDS = 3 * 3600.0
NAMES_SHOWN = 30
LOG_LINES = 15
NEVER_SHORTER = 5.0


@operation(
    risk=Risk.CHANGE,
    idempotent=False,
    shown_by=("host_status", "host"),
    search_words=(
        "update upgrade packages of host server apt dnf apk security patches install pending updates all hosts "
        "what would change"
    ),
    example="host=nas dry_run=true",
)
async def host_upgrade(
    homelab: Homelab,
    host: HostRefs,
    refresh: Annotated[bool, Meta(description="Fetch the package lists first")] = True,
    snapshot: Annotated[bool, Meta(description="Snapshot a guest first")] = True,
    rollback: Annotated[bool, Meta(description="Roll a guest back if it fails; needs approval")] = False,
    *,
    owner: Owner,
) -> Plan:
    """Apply the pending updates of hosts. dry_run=true shows which packages would change."""

    without_way_back: list[str] = []

    async def prepare(one: Machine) -> Action:
        found = await list_pending(one.transport, machine_label(one))
        label = machine_label(one)
        script = apply_script(found.manager, refresh=refresh)
        request = CommandRequest(
            ["/bin/sh", "-c", script], user="root", password=one.sudo_password, timeout=LIMIT_SECONDS
        )
        wanted = await command_job(JobRegistry(homelab, homelab.job_book, owner), command_target(one), request)
        whole = await _with_guest(homelab, one) if snapshot else one
        safeguard = await _safeguard(whole, snapshot, rollback)
        if rollback and safeguard is None:
            without_way_back.append(label)
        wanted = replace(wanted, line=f"{found.manager} upgrade", back=safeguard.arguments if safeguard else {})
        step = _Upgrade(homelab, one, found, wanted, safeguard)
        summary = f"Upgrade {label}: {_summary(found)}"
        action = machine_action(whole, summary, step.line, step.perform)
        return replace(action, needs=(*action.needs, *step.safeguard.calls)) if step.safeguard else action

    within = Advice(
        "A guest is rolled back only if it fails while this call waits. A run always rolls back, and checks its health",
        RUN_GUEST_UPDATE,
    )
    plan = await plan_each(homelab, host, "Upgrade", prepare, ("upgraded", "left", "reboot", "snapshot", "job"))
    warnings: list[str | Wording] = [within] if len(plan.calls) > len(without_way_back) else []
    if without_way_back:
        named = ", ".join(sorted(without_way_back))
        why = "only guests of a cluster get a snapshot" if snapshot else "{snapshot} was given"
        warnings.append(Sentence(f"Rolling back is not possible on {named}: {why}", snapshot=False))
    return replace(plan, warnings=tuple(warnings)) if rollback else plan


_WITHOUT = Advice("{snapshot} upgrades it without", snapshot=False)


def _summary(found: PendingUpdates) -> str:
    if not found.packages:
        return "nothing is pending in its package lists"
    security = sum(one[3] for one in found.packages)
    urgent = f", {security} for security" if security else ""
    return f"{len(found.packages)} packages{urgent}: {shortlist(found.lines, NAMES_SHOWN)}"


@dataclass(frozen=True, slots=True)
class Safeguard:
    """The snapshot of a guest before its upgrade, and the rollback to it."""

    cluster: Cluster
    guest: Guest
    name: str
    taking: Call
    back: tuple[Call, ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        return (self.taking, *self.back)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the snapshot_rollback that undoes it."""
        return {"guest": self.guest.vmid, "snapshot": self.name, "start": True}


async def _with_guest(homelab: Homelab, one: Machine) -> Machine:
    try:
        return await resolve_guest(homelab, one)
    except Problem as problem:
        raise Conflict(
            f"It is not known whether {machine_label(one)} is a guest that needs a snapshot",
            why=problem.what,
            next_step=Advice("Try again when the cluster answers").then(_WITHOUT, "; "),
        ) from None


async def _safeguard(one: Machine, snapshot: bool, rollback: bool) -> Safeguard | None:
    if one.guest is None or one.where is None or not snapshot:
        return None
    name = name_from_time(one.where).replace("auto-", "before-upgrade-")
    try:
        taking, _ = await creation(one.guest, name, "Before its upgrade by Quorate")
    except Conflict as problem:
        problem.advice = _WITHOUT
        raise
    back: tuple[Call, ...] = ()
    if rollback:
        starting = power_call(one.guest, "start", "stopped", {})
        going = guest_call(one.guest, "POST", f"snapshot/{name}/rollback", f"If it fails, roll {one.guest} back")
        back = (going, *((starting,) if starting else ()))
    return Safeguard(one.where, one.guest, name, taking, back)


@dataclass(frozen=True, slots=True)
class _Upgrade:
    homelab: Homelab
    machine: Machine
    before: PendingUpdates
    command: CommandJob
    safeguard: Safeguard | None

    @property
    def line(self) -> str:
        first = f"snapshot {self.safeguard.guest.vmid}; " if self.safeguard else ""
        packages = f" ({', '.join(self.before.lines[:NAMES_SHOWN])})" if self.before.lines else ""
        return f"{first}{self.command.described}{packages}"

    async def perform(self, context: StepContext) -> ActionResult:
        clock = self.homelab.clock
        end = clock.monotonic() + context.wait
        taken = {}
        if (own := self.safeguard) is not None:
            await context.carry_out(own.cluster, Plan(own.taking.summary, (own.taking,)), context.wait, context.report)
            taken = {"snapshot": own.name}
        await context.permit()
        left = max(NEVER_SHORTER, end - clock.monotonic())
        performed = await self.command.perform(replace(context, wait=left))
        if performed.running:
            return replace(performed, facts={**performed.facts, **taken}, next_step=self._later(performed))
        if performed.facts.get("exit_code") != 0:
            raise await self._failure(context, performed, taken)
        after = await list_pending(self.machine.transport, machine_label(self.machine))
        now = await count_pending(self.machine.transport, machine_label(self.machine), seconds=SECONDS)
        restart = now.restart if now else ""
        changed = [one for one in self.before.packages if one not in after.packages]
        return ActionResult(
            {
                "upgraded": len(changed),
                "left": len(after.packages),
                **({"reboot": restart} if restart else {}),
                **taken,
            },
            next_step=Advice("It has to be restarted", HOST_REBOOT(host=self.machine.name)) if restart else None,
        )

    def _later(self, performed: ActionResult) -> Advice:
        job = HOST_JOB(action="poll", job=performed.facts["job"], seconds=30)
        if self.safeguard is None:
            return Advice("It continues on the host; see how it ends", job)
        back = SNAPSHOT_ROLLBACK(**self.safeguard.arguments)
        return Advice("It continues on the host; see how it ends, and roll the guest back if it fails", job, back)

    async def _failure(self, context: StepContext, performed: ActionResult, taken: dict[str, Any]) -> Problem:
        said = str(performed.facts.get("stderr") or performed.facts.get("stdout") or "")
        facts: dict[str, Any] = {**taken, "log": said.splitlines()[-LOG_LINES:]}
        what = f"The upgrade of {machine_label(self.machine)} failed"
        own = self.safeguard
        if own is None:
            return TaskFailed(what, why=_last(said), next_step="Look at the log, then repair it", facts=facts)
        if not own.back:
            step = Advice("Repair it, or roll it back", SNAPSHOT_ROLLBACK(**own.arguments))
            return TaskFailed(what, why=_last(said), next_step=step, facts=facts)
        plan = await snapshot_rollback(own.cluster, **own.arguments)
        await context.carry_out(own.cluster, plan, context.wait, context.report)
        facts["rolled_back"] = own.name
        return TaskFailed(f"{what}; it was rolled back to the snapshot {own.name}", why=_last(said), facts=facts)


def _last(said: str) -> str | None:
    lines = [line for line in said.splitlines() if line.strip()]
    return f"It said: {lines[-1][:300]}" if lines else None
