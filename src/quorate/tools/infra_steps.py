"""The steps that apply an infrastructure document.

Each is planned again by its own tool when its turn comes, because what it depends on may not have existed before.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quorate.hints import append_advice, see, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host
from quorate.homelab.infra.diff import Difference, build_spec, difference, find_cluster, find_guest, find_target_machine
from quorate.homelab.infra.document import Document, Item, WantedGuest, WantedHost, WantedWorkload
from quorate.homelab.infra.plans import ManagedObject, PlanStore
from quorate.homelab.machines import find_machine
from quorate.homelab.secrets import new_pairs, question_about, secrets_in
from quorate.homelab.services.installations import Installations, machine_ref
from quorate.homelab.workloads.workload import Spec, parse_mounts
from quorate.operations.arguments import convert_arguments
from quorate.operations.plan import Action, ActionResult, Call, Perform, Plan, StepContext, Target
from quorate.operations.registry import Risk
from quorate.problems import Conflict, Problem
from quorate.pve.cluster import Cluster
from quorate.secret import HIDDEN, without_secrets
from quorate.tools.containers import container_create
from quorate.tools.devices import is_named, unit_removal, unit_step
from quorate.tools.guest_clone import guest_clone
from quorate.tools.guest_delete import guest_delete
from quorate.tools.guest_options import guest_configure
from quorate.tools.guest_power import guest_power
from quorate.tools.hosts import host_register, host_remove, host_update
from quorate.tools.machines import machine_needs, machine_risk, machine_target
from quorate.tools.service_install import service_install, service_uninstall
from quorate.tools.vms import vm_create
from quorate.tools.workload_lifecycle import require_workload_allowed, workload_deploy, workload_remove

Reach = tuple[Target | None, tuple[Call, ...], Cluster | None, Host | None, Risk | None]
"""A step's target, its API calls, their cluster, the host record that it saves, and its risk."""
SHORTEST_HIDDEN = 5


def risk_of_differences(differences: list[Difference]) -> Risk | None:
    """Replacing a container loses data outside volumes, and so does removing anything."""
    for diff in differences:
        if diff.act == "remove" or (diff.act == "update" and diff.item.kind == "workload"):
            return Risk.DESTROY
        if diff.act in ("create", "update") and getattr(diff.item.desired, "unit", None):  # runs as root from now on
            return Risk.DESTROY
    return None


class Steps:
    """The steps of one run of one document."""

    def __init__(self, homelab: Homelab, document: Document, run: str) -> None:
        self._homelab = homelab
        self._document = document
        self._run = run
        self._kept = PlanStore(homelab.store)
        self._guest_plans: dict[str, Plan] = {}
        """Plans as they were checked and approved; planning again would choose another vmid."""

    async def of(self, diff: Difference) -> Action:
        """The action that resolves a difference."""
        target, needs, where, becomes, risk = await self._reaches(diff)
        named = diff.item.kind != "workload" or diff.act == "remove" or self._is_named(diff)
        if diff.act != "remove" and getattr(diff.item.desired, "unit", None):
            named = is_named(self._homelab, diff.name)
        perform = self._removal_step(diff) if diff.act == "remove" else self._apply_step(diff, target, where)
        line = self._line(diff)
        because = await self._sends_secrets(diff, becomes)
        risk = Risk.DESTROY if because else risk
        return Action(
            diff.summary, line, self._with_record(diff, perform), target, needs, where, risk, because,
            opens=not named, becomes=becomes,
        )  # fmt: skip

    async def _sends_secrets(self, diff: Difference, becomes: Host | None) -> str:
        """The stored secrets that it would send to a machine for the first time; empty if there are none."""
        if diff.act == "remove":
            return ""
        if becomes is not None:
            unbound = new_pairs(becomes, await self._homelab.hosts.everyone())
            return question_about(unbound, becomes.at) if unbound else ""
        item = diff.item
        sent = [
            pair for name in ("settings", "secrets") for pair in secrets_in(getattr(item.desired, name, None) or {})
        ]
        return question_about(sent, item.place) if sent else ""

    def _is_named(self, diff: Difference) -> bool:
        """The operator's patterns name the command of the workload; raises if they do not let it run."""
        desired: Any = diff.item.desired
        mounts = parse_mounts(desired.volumes)
        spec = Spec(diff.name, desired.image, mounts=mounts, env=dict(desired.env), command=tuple(desired.command))
        return require_workload_allowed(self._homelab.command_rules, spec)

    async def rehearse(self, diff: Difference) -> tuple[str, ...]:
        """Plan it with its own tool, which raises any objection; returns the warnings of that plan."""
        if diff.item.kind != "guest":
            return tuple(map(str, (await self._plan_of(diff)).warnings))
        cluster = find_cluster(self._homelab, diff.place)
        plan = await self._guest_plan(cluster, diff)
        cluster.reserved_vmids -= plan.claimed_vmids
        return tuple(map(str, plan.warnings))

    # -- what a step reaches, as far as it is there ----------------------------------------------------------------

    async def _reaches(self, diff: Difference) -> Reach:
        homelab = self._homelab
        if diff.item.kind == "host":
            new = diff.item.desired.host(diff.name) if diff.item.desired is not None else None
            return Target("host", diff.name), (), None, new, None
        if diff.item.kind == "guest":
            cluster = find_cluster(homelab, diff.place)
            row = await find_guest(cluster, diff.name)
            target = Target(row.kind, str(row.vmid), row.name, row.node) if row else None
            self._guest_plans[diff.name] = plan = await self._guest_plan(cluster, diff)
            return target, tuple(plan.api_calls), cluster, None, None
        if diff.item.desired is None:
            machine = await find_machine(homelab, diff.place)
        else:
            target_machine = await find_target_machine(homelab, self._document, diff.item)
            if target_machine is None:
                return self._future_reach(self._document.items[diff.item.place])
            machine = target_machine
        return machine_target(machine), machine_needs(machine, writes=True), machine.where, None, machine_risk(machine)

    def _future_reach(self, maker: Item) -> Reach:
        """A machine that the document creates: judged by what it will be, and by the step that creates it."""
        if isinstance(maker.desired, WantedHost):
            return Target("host", maker.name), (), None, maker.desired.host(maker.name), None
        return None, (), find_cluster(self._homelab, maker.desired.cluster), None, None

    def _line(self, diff: Difference) -> str:
        """The text to approve: every field, but only the names of variables and the references of secrets."""
        if diff.act == "remove":
            return f"remove {diff.item.kind} {diff.name}" + (f" from {diff.place}" if diff.place else "")
        desired = diff.item.desired
        if isinstance(desired, WantedWorkload):
            desired = msgspec.structs.replace(desired, env=dict.fromkeys(desired.env, "…"))
        fields = msgspec.json.encode(desired).decode()
        at = f" on {diff.place}" if diff.place else ""
        return without_secrets(f"{diff.act} {diff.item.kind} {diff.name}{at} {fields}")

    # -- doing it --------------------------------------------------------------------------------------------------

    def _with_record(self, diff: Difference, perform: Perform) -> Perform:
        """Record the step before and after, so that an interrupted one is known."""
        step = diff.summary

        async def perform_and_record(context: StepContext) -> ActionResult:
            record = self._record_of(diff)
            await self._kept.begin(self._document, self._run, step, record if diff.act == "create" else None)
            try:
                done = await perform(context)
            except Problem as problem:
                await self._kept.fail(self._document, step, self._redact(problem.what))
                onwards = "What was done before it stays; apply again to continue from here"
                problem.advice = append_advice(problem.advice, onwards, tools.infra_apply(plan=self._document.id))
                raise
            except BaseException:
                await self._kept.fail(self._document, step, "It was interrupted before its end.")
                raise
            if done.running:
                await self._kept.fail(self._document, step, "It continues in the background.", "going on")
                again = append_advice(done.next_step, "Then apply the rest", tools.infra_apply(plan=self._document.id))
                return ActionResult(done.facts, running=True, next_step=again)
            await self._kept.end(self._document, step, managed=record, gone=diff.act == "remove")
            return done

        return perform_and_record

    def _record_of(self, diff: Difference) -> ManagedObject:
        """The record of what the step creates; for a guest with its vmid, because names are reused."""
        plan = self._guest_plans.get(diff.name) if (diff.item.kind, diff.act) == ("guest", "create") else None
        numbers = set(plan.claimed_vmids) if plan else set()
        return msgspec.structs.replace(diff.record, vmid=min(numbers, default=0))

    def _redact(self, text: str) -> str:
        for secret in self._homelab.secrets():
            if len(secret) >= SHORTEST_HIDDEN:
                text = text.replace(secret, HIDDEN)
        return without_secrets(text)

    def _apply_step(self, diff: Difference, target: Target | None, where: Cluster | None) -> Perform:
        async def perform(context: StepContext) -> ActionResult:
            if diff.item.place:
                await self._require_judged(diff.item, target, where)
            now = await difference(self._homelab, self._document, diff.item, diff.name, diff.number)
            if now.act == "none":
                return ActionResult({"note": "It already has these settings"})
            if now.act != diff.act:
                raise Conflict(
                    f"{diff.item.kind} {diff.name} has changed since it was planned",
                    why=f"It would now be {now.act}, but {diff.act} was approved",
                    next_step=see("See the differences", tools.infra_plan),
                )
            if diff.item.kind == "guest":
                return await self._run_guest_plan(diff, context)
            return await perform_plan(await self._plan_of(now), context)

        return perform

    async def _require_judged(self, item: Item, target: Target | None, where: Cluster | None) -> None:
        """A host that was missing when the rules were checked may turn out to be a node or guest with its own rules."""
        machine = await find_target_machine(self._homelab, self._document, item)
        same = machine is not None and (machine.where.name if machine.where else "") == (where.name if where else "")
        if machine is None or not same or (target is not None and machine_target(machine) != target):
            raise Conflict(
                f"{item.place} is a different machine than expected" + (f": it is {machine}" if machine else ""),
                why="The rules were checked for another machine",
                next_step="Call again, so that they are checked for this one.",
            )

    def _removal_step(self, diff: Difference) -> Perform:
        async def perform(context: StepContext) -> ActionResult:
            if diff.item.kind == "guest":
                return await self._run_guest_plan(diff, context)
            return await perform_plan(await removal(self._homelab, diff), context)

        return perform

    async def _run_guest_plan(self, diff: Difference, context: StepContext) -> ActionResult:
        cluster = find_cluster(self._homelab, diff.place)
        return ActionResult(
            await context.carry_out(cluster, self._guest_plans[diff.name], context.wait, context.report)
        )

    async def _plan_of(self, now: Difference) -> Plan:
        desired: Any = now.item.desired
        if now.item.kind == "host":
            return await self._host_plan(now)
        if now.item.kind == "workload":
            spec = await build_spec(self._homelab, self._document, now.item, now.name, now.number)
            return await workload_deploy(
                self._homelab, await self._ref(now.item), now.name, desired.image, desired.engine,
                [str(port) for port in spec.ports], list(desired.volumes), dict(spec.env), list(desired.command),
                desired.memory, desired.cpus, desired.restart, desired.network, dict(spec.labels), desired.pull,
                replace=now.act == "update",
            )  # fmt: skip
        if desired.unit:
            machine = await find_machine(self._homelab, await self._ref(now.item))
            return Plan(now.summary, (unit_step(self._homelab, machine, now.name, desired.unit),))
        return await service_install(self._homelab, now.name, await self._ref(now.item), dict(desired.settings))

    async def _ref(self, item: Item) -> str:
        """The reference that tools take; a guest with its cluster, because a host may have the same name."""
        maker = self._document.items.get(item.place)
        if maker is None or maker.kind != "guest":
            return item.place
        cluster = find_cluster(self._homelab, maker.desired.cluster)
        cluster.inventory.forget()
        row = await find_guest(cluster, maker.name)
        return f"{cluster.name}/{row.vmid}" if row else item.place

    async def _host_plan(self, now: Difference) -> Plan:
        fields = msgspec.structs.asdict(now.item.desired)
        del fields["needs"]
        arguments = fields | {"labels": list(fields["labels"])}
        if now.act == "create":
            return await host_register(self._homelab, now.name, **arguments, verify=False)
        cleared: dict[str, Any] = {name: "" if value is None else value for name, value in arguments.items()}
        return await host_update(self._homelab, now.name, **cleared)

    async def _guest_plan(self, cluster: Cluster, now: Difference) -> Plan:
        if now.act == "remove":
            row = await find_guest(cluster, now.name)
            return await guest_delete(cluster, row.vmid if row else now.name, stop=True)
        if now.act == "update":
            return await self._guest_update(cluster, now)
        return await new_guest(cluster, now.name, now.item.desired)

    async def _guest_update(self, cluster: Cluster, now: Difference) -> Plan:
        row = await find_guest(cluster, now.name)
        ref: int | str = row.vmid if row else now.name
        changed = {field: value for field, _, value in now.changes}
        calls: list[Call | Action] = []
        hardware = {name: getattr(now.item.desired, name) for name in ("cores", "memory") if name in changed}
        if hardware:
            calls += (await guest_configure(cluster, ref, **hardware)).calls
        if "running" in changed:
            calls += (await guest_power(cluster, ref, "start" if changed["running"] else "shutdown")).calls
        return Plan(now.summary, tuple(calls))


async def new_guest(cluster: Cluster, name: str, desired: WantedGuest) -> Plan:
    """Plan a new guest with the tool that creates such guests, with its checks and choices."""
    size = {key: value for key in ("cores", "memory") if (value := getattr(desired, key)) is not None}
    if desired.clone:
        arguments = {"guest": desired.clone, "name": name, "start": desired.running, **desired.settings}
        return await guest_clone(cluster, **convert_arguments("guest_clone", arguments, f"settings of {name}"))
    if desired.type == "vm":
        arguments = {"name": name, "start": desired.running, **size, **desired.settings}
        return await vm_create(cluster, **convert_arguments("vm_create", arguments, f"settings of {name}"))
    arguments = {"template": desired.template, "name": name, "start": desired.running, **size, **desired.settings}
    return await container_create(cluster, **convert_arguments("container_create", arguments, f"settings of {name}"))


async def removal(homelab: Homelab, diff: Difference) -> Plan:
    """The plan of the tool that removes such an item. Volumes and data stay."""
    if diff.item.kind == "workload":
        return await workload_remove(homelab, diff.place, diff.name, engine=diff.engine or None)  # type: ignore[arg-type]
    if diff.item.kind == "service":
        machine = await find_machine(homelab, diff.place)
        if await Installations(homelab.store).find(machine_ref(machine), diff.name) is None:
            return Plan(diff.summary, (unit_removal(homelab, machine, diff.name),))
        return await service_uninstall(homelab, diff.name, diff.place)
    return await host_remove(homelab, diff.name)


async def perform_plan(plan: Plan, context: StepContext) -> ActionResult:
    """Perform a plan that has only actions, as one step."""
    facts: dict[str, Any] = {}
    for action in plan.calls:
        assert isinstance(action, Action), "only plans of clusters have calls"
        done = await action.perform(context)
        facts |= done.facts
        if done.running:
            return ActionResult(facts, running=True, next_step=done.next_step)
    return ActionResult(facts)
