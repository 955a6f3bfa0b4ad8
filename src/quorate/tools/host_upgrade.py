"""Updates of hosts, and restarting them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, Sentence, Wording, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine, resolve_guest
from quorate.inside.jobs import JobRegistry
from quorate.inside.maintenance import (
    LIST_SECONDS,
    UNCHANGED,
    PendingUpdates,
    apply_script,
    count_pending,
    explain_failure,
    list_pending,
    parse_listing,
    read_boot_id,
    restart,
    wait_until_back,
)
from quorate.operations.plan import Action, ActionResult, Call, Plan, StepContext, guest_call
from quorate.operations.registry import Owner, Risk, operation
from quorate.problems import Conflict, Problem, TaskFailed
from quorate.pve.cluster import Cluster, Guest
from quorate.tools.commands import CommandJob, CommandRequest, command_job
from quorate.tools.guest_power import power_call
from quorate.tools.hosts import HostRefs
from quorate.tools.machines import command_target, machine_action, machine_label
from quorate.tools.several_hosts import plan_each
from quorate.tools.snapshots import creation, name_from_time, snapshot_rollback
from quorate.units import count_of, duration, shortlist

LIMIT_SECONDS = 3 * 3600.0
NAMES_SHOWN = 30
LOG_LINES = 15
NEVER_SHORTER = 5.0


@operation(
    toolset="hosts",
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
    chosen_names: list[str] = []

    async def prepare(machine: Machine) -> Action:
        pending = await list_pending(machine.transport, machine_label(machine))
        label = machine_label(machine)
        script = apply_script(pending.manager, refresh=refresh, listing=True)
        request = CommandRequest(
            ["/bin/sh", "-c", script], user="root", password=machine.sudo_password, timeout=LIMIT_SECONDS
        )
        job = await command_job(JobRegistry(homelab, homelab.job_book, owner), command_target(machine), request)
        whole = await _with_guest(homelab, machine) if snapshot else machine
        safeguard = await _safeguard(whole, snapshot, rollback)
        if safeguard is not None:
            chosen_names.append(safeguard.name)
        elif rollback:
            without_way_back.append(label)
        job = replace(job, line=f"{pending.manager} upgrade", back=safeguard.arguments if safeguard else {})
        step = _Upgrade(homelab, machine, pending, job, safeguard)
        summary = f"Upgrade {label}: {_summary(pending, refresh=refresh)}"
        action = machine_action(whole, summary, step.line, step.perform)
        return replace(action, needs=(*action.needs, *step.safeguard.calls)) if step.safeguard else action

    within = Advice(
        "A guest is rolled back only if it fails while this call waits. A run always rolls back, and checks its health",
        tools.run_guest_update,
    )
    plan = await plan_each(homelab, host, "Upgrade", prepare, ("upgraded", "left", "reboot", "snapshot", "job"))
    plan = replace(plan, chosen_names=tuple(dict.fromkeys(chosen_names)))
    warnings: list[str | Wording] = [within] if len(plan.calls) > len(without_way_back) else []
    if without_way_back:
        named = ", ".join(sorted(without_way_back))
        why = "only guests of a cluster get a snapshot" if snapshot else "{snapshot} was given"
        warnings.append(Sentence(f"Rolling back is not possible on {named}: {why}", snapshot=False))
    return replace(plan, warnings=tuple(warnings)) if rollback else plan


_WITHOUT = Advice("{snapshot} upgrades it without", snapshot=False)


def _summary(pending: PendingUpdates, *, refresh: bool) -> str:
    """Which packages would change, and whether others may: only the run itself fetches new lists."""
    age = f" of {duration(pending.age)} ago" if pending.age is not None else ""
    security = sum(package[3] for package in pending.packages)
    urgent = f", {security} for security" if security else ""
    parts = [
        f"{count_of(len(pending.packages), 'package')}{urgent}: {shortlist(pending.lines, NAMES_SHOWN)}"
        if pending.packages
        else f"nothing is pending in its package lists{age}"
    ]
    if pending.unfinished:
        parts.append(f"half-configured: {shortlist(pending.unfinished, NAMES_SHOWN)}")
    if refresh:
        current = f" (those above are from its lists{age})" if pending.packages else ""
        parts.append(f"it fetches new package lists first and installs what they contain{current}")
    return "; ".join(parts)


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


async def _with_guest(homelab: Homelab, machine: Machine) -> Machine:
    try:
        return await resolve_guest(homelab, machine)
    except Problem as problem:
        raise Conflict(
            f"It is not known whether {machine_label(machine)} is a guest that needs a snapshot",
            why=problem.what,
            next_step=Advice("Try again when the cluster answers").then(_WITHOUT, "; "),
        ) from None


async def _safeguard(machine: Machine, snapshot: bool, rollback: bool) -> Safeguard | None:
    if machine.guest is None or machine.where is None or not snapshot:
        return None
    name = name_from_time(machine.where).replace("auto-", "before-upgrade-")
    try:
        taking, _ = await creation(machine.guest, name, "Before its upgrade by Quorate")
    except Conflict as problem:
        problem.advice = _WITHOUT
        raise
    back: tuple[Call, ...] = ()
    if rollback:
        starting = power_call(machine.guest, "start", "stopped", {})
        going = guest_call(
            machine.guest, "POST", f"snapshot/{name}/rollback", f"If it fails, roll {machine.guest} back"
        )
        back = (going, *((starting,) if starting else ()))
    return Safeguard(machine.where, machine.guest, name, taking, back)


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
        snapshot_facts = {}
        if (own := self.safeguard) is not None:
            await context.carry_out(own.cluster, Plan(own.taking.summary, (own.taking,)), context.wait, context.report)
            snapshot_facts = {"snapshot": own.name}
        await context.permit()
        left = max(NEVER_SHORTER, end - clock.monotonic())
        performed = await self.command.perform(replace(context, wait=left))
        if performed.running:
            return replace(performed, facts={**performed.facts, **snapshot_facts}, next_step=self._later(performed))
        if performed.facts.get("exit_code") != 0:
            raise await self._failure(context, performed, snapshot_facts)
        after = await list_pending(self.machine.transport, machine_label(self.machine))
        updates = await count_pending(self.machine.transport, machine_label(self.machine), seconds=LIST_SECONDS)
        restart = updates.restart if updates else ""
        listed = parse_listing(self.before.manager, str(performed.facts.get("stdout") or ""))
        changed = {*self.before.packages, *listed} - {*after.packages}
        return ActionResult(
            {
                "upgraded": len(changed),
                "left": len(after.packages),
                **({"reboot": restart} if restart else {}),
                **snapshot_facts,
            },
            next_step=Advice("It has to be restarted", tools.host_reboot(host=self.machine.name)) if restart else None,
        )

    def _later(self, performed: ActionResult) -> Advice:
        job = tools.host_job(action="poll", job=performed.facts["job"], seconds=30)
        if self.safeguard is None:
            return Advice("It continues on the host; see how it ends", job)
        back = tools.snapshot_rollback(**self.safeguard.arguments)
        return Advice("It continues on the host; see how it ends, and roll the guest back if it fails", job, back)

    async def _failure(self, context: StepContext, performed: ActionResult, snapshot_facts: dict[str, Any]) -> Problem:
        output = "\n".join(str(performed.facts.get(stream) or "") for stream in ("stdout", "stderr"))
        facts: dict[str, Any] = {**snapshot_facts, "log": output.strip().splitlines()[-LOG_LINES:]}
        label, words = machine_label(self.machine), explain_failure(output)
        why = f"It said: {words}" if words else None
        if unchanged := UNCHANGED.get(performed.facts.get("exit_code", 0)):
            return TaskFailed(
                f"{label} was not upgraded: {unchanged}",
                why=why,
                next_step=Advice(
                    "Repair its network or its package sources; {refresh} upgrades from the lists it has", refresh=False
                ),
                facts=facts,
            )
        what = f"The upgrade of {label} failed"
        own = self.safeguard
        if own is None:
            return TaskFailed(what, why=why, next_step="Look at the log, then repair it", facts=facts)
        if not own.back:
            step = Advice("Repair it, or roll it back", tools.snapshot_rollback(**own.arguments))
            return TaskFailed(what, why=why, next_step=step, facts=facts)
        plan = await snapshot_rollback(own.cluster, **own.arguments)
        await context.carry_out(own.cluster, plan, context.wait, context.report)
        facts["rolled_back"] = own.name
        return TaskFailed(f"{what}; it was rolled back to the snapshot {own.name}", why=why, facts=facts)


@operation(
    toolset="hosts",
    risk=Risk.CHANGE,
    idempotent=False,
    shown_by=("host_status", "host"),
    search_words="reboot restart host server raspberry pi nas over ssh after kernel update wait until it is back",
    example="host=nas dry_run=true",
)
async def host_reboot(homelab: Homelab, host: HostRefs) -> Plan:
    """Restart hosts and wait until they answer again, up to `wait`."""

    async def prepare(machine: Machine) -> Action:
        rooted = machine.with_root()
        before = await read_boot_id(machine.transport)
        if objection := homelab.command_rules.objection(("reboot",)):
            raise objection

        async def perform(context: StepContext) -> ActionResult:
            if await read_boot_id(machine.transport) != before:
                raise Conflict(
                    f"{machine_label(machine)} was restarted in the meantime",
                    next_step="Nothing was done; look again first",
                )
            await restart(rooted.transport)
            if machine.target is not None and machine.ssh is not None:
                machine.ssh.pool.disconnect(machine.target)  # a dead connection would go unnoticed until it times out
            spent = await wait_until_back(machine.transport, before, homelab.clock, context.wait)
            if spent is not None:
                return ActionResult({"back_after": duration(spent)})
            later = Advice("It has not answered yet; see whether it is back", tools.host_status(host=machine.name))
            return ActionResult({"back_after": "not yet"}, running=True, next_step=later)

        label = machine_label(machine)
        return machine_action(machine, f"Restart {label}", f"{machine.transport.description}: reboot", perform)

    return await plan_each(homelab, host, "Restart", prepare, ("back_after",))
