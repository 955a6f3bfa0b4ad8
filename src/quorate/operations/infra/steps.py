"""The steps that apply a document. Each is planned again by its own tool when its
turn comes, because what it depends on may not have existed before."""

from __future__ import annotations

from typing import Any

import msgspec

from quorate.command_secrets import HIDDEN, without_secrets
from quorate.hints import INFRA_APPLY, INFRA_PLAN, append_advice, see
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host
from quorate.homelab.infra.diff import (
    Difference,
    build_spec,
    difference,
    find_cluster,
    find_guest,
    find_target_machine,
)
from quorate.homelab.infra.document import Document, Item, WantedGuest, WantedHost, WantedWorkload
from quorate.homelab.infra.plan_store import ManagedObject, PlanStore
from quorate.homelab.machines import find_machine
from quorate.homelab.secret_scope import new_pairs, question_about, secrets_in
from quorate.homelab.services.installations import Installations, machine_ref
from quorate.homelab.workloads import request
from quorate.homelab.workloads.model import Spec
from quorate.operations.argument_checks import convert_arguments
from quorate.operations.infra.devices import is_named, unit_removal, unit_step
from quorate.operations.machine import machine_needs, machine_risk, machine_target
from quorate.operations.plan import Action, ActionResult, Call, Perform, Plan, StepContext, Target
from quorate.operations.registry import Risk
from quorate.problems import Conflict, Problem
from quorate.pve.cluster import Cluster

Reach = tuple[Target | None, tuple[Call, ...], Cluster | None, Host | None, Risk | None]
"""What a step acts on, the calls of the API it makes, in which cluster, what is recorded of a host, and its risk."""
SHORTEST_HIDDEN = 5


def risk_of_differences(differences: list[Difference]) -> Risk | None:
    """Replacing a container loses data outside volumes, and so does removing anything."""
    for one in differences:
        if one.act == "remove" or (one.act == "update" and one.item.kind == "workload"):
            return Risk.DESTROY
        if one.act in ("create", "update") and getattr(one.item.wanted, "unit", None):  # runs as root from now on
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
        """As they were checked and approved: planning again would choose another vmid."""

    async def of(self, one: Difference) -> Action:
        """The action that resolves a difference."""
        target, needs, where, becomes, risk = await self._reaches(one)
        named = one.item.kind != "workload" or one.act == "remove" or self._is_named(one)
        if one.act != "remove" and getattr(one.item.wanted, "unit", None):
            named = is_named(self._homelab, one.name)
        perform = self._removal_step(one) if one.act == "remove" else self._apply_step(one, target, where)
        line = self._line(one)
        because = await self._sends_secrets(one, becomes)
        risk = Risk.DESTROY if because else risk
        return Action(
            one.summary, line, self._with_record(one, perform), target, needs, where, risk, because,
            opens=not named, becomes=becomes,
        )  # fmt: skip

    async def _sends_secrets(self, one: Difference, becomes: Host | None) -> str:
        """The stored secrets that it would send to a machine for the first time; empty if there are none."""
        if one.act == "remove":
            return ""
        if becomes is not None:
            unbound = new_pairs(becomes, await self._homelab.hosts.everyone())
            return question_about(unbound, becomes.at) if unbound else ""
        wanted = one.item.wanted
        given = [one for name in ("settings", "secrets") for one in secrets_in(getattr(wanted, name, None) or {})]
        return question_about(given, one.item.place) if given else ""

    def _is_named(self, one: Difference) -> bool:
        """Whether the operator's patterns name the command of the workload; raises if they do not let it run."""
        from quorate.operations.workloads.lifecycle import require_workload_allowed

        wanted: Any = one.item.wanted
        mounts = request.mounts(wanted.volumes)
        spec = Spec(one.name, wanted.image, mounts=mounts, env=dict(wanted.env), command=tuple(wanted.command))
        return require_workload_allowed(self._homelab.command_rules, spec)

    async def rehearse(self, one: Difference) -> tuple[str, ...]:
        """Plan it with its own tool, which raises any objection; returns the warnings of that plan."""
        if one.item.kind != "guest":
            return tuple(map(str, (await self._plan_of(one)).warnings))
        cluster = find_cluster(self._homelab, one.place)
        plan = await self._guest_plan(cluster, one)
        cluster.reserved_vmids -= plan.claimed_vmids
        return tuple(map(str, plan.warnings))

    # -- what a step reaches, as far as it is there ----------------------------------------------------------------

    async def _reaches(self, one: Difference) -> Reach:
        homelab = self._homelab
        if one.item.kind == "host":
            new = one.item.wanted.host(one.name) if one.item.wanted is not None else None
            return Target("host", one.name), (), None, new, None
        if one.item.kind == "guest":
            cluster = find_cluster(homelab, one.place)
            row = await find_guest(cluster, one.name)
            target = Target(row.kind, str(row.vmid), row.name, row.node) if row else None
            self._guest_plans[one.name] = plan = await self._guest_plan(cluster, one)
            return target, tuple(plan.api_calls), cluster, None, None
        if one.item.wanted is None:
            machine = await find_machine(homelab, one.place)
        else:
            found = await find_target_machine(homelab, self._document, one.item)
            if found is None:
                return self._future_reach(self._document.items[one.item.place])
            machine = found
        return machine_target(machine), machine_needs(machine, writes=True), machine.where, None, machine_risk(machine)

    def _future_reach(self, maker: Item) -> Reach:
        """A machine that the document creates: judged by what it will be, and by the step that creates it."""
        if isinstance(maker.wanted, WantedHost):
            return Target("host", maker.name), (), None, maker.wanted.host(maker.name), None
        return None, (), find_cluster(self._homelab, maker.wanted.cluster), None, None

    def _line(self, one: Difference) -> str:
        """What is approved: every field, but only the names of variables and the references of secrets."""
        if one.act == "remove":
            return f"remove {one.item.kind} {one.name}" + (f" from {one.place}" if one.place else "")
        wanted = one.item.wanted
        if isinstance(wanted, WantedWorkload):
            wanted = msgspec.structs.replace(wanted, env=dict.fromkeys(wanted.env, "…"))
        fields = msgspec.json.encode(wanted).decode()
        at = f" on {one.place}" if one.place else ""
        return without_secrets(f"{one.act} {one.item.kind} {one.name}{at} {fields}")

    # -- doing it --------------------------------------------------------------------------------------------------

    def _with_record(self, one: Difference, perform: Perform) -> Perform:
        """Record the step before and after, so that an interrupted one is known."""
        step = one.summary

        async def perform_and_record(context: StepContext) -> ActionResult:
            made = self._record_of(one)
            await self._kept.begin(self._document, self._run, step, made if one.act == "create" else None)
            try:
                done = await perform(context)
            except Problem as problem:
                await self._kept.fail(self._document, step, self._redact(problem.what))
                onwards = "What was done before it stays; apply again to continue from here"
                problem.advice = append_advice(problem.advice, onwards, INFRA_APPLY(plan=self._document.id))
                raise
            except BaseException:
                await self._kept.fail(self._document, step, "It was interrupted before its end.")
                raise
            if done.running:
                await self._kept.fail(self._document, step, "It continues in the background.", "going on")
                again = append_advice(done.next_step, "Then apply the rest", INFRA_APPLY(plan=self._document.id))
                return ActionResult(done.facts, running=True, next_step=again)
            await self._kept.end(self._document, step, made=made, gone=one.act == "remove")
            return done

        return perform_and_record

    def _record_of(self, one: Difference) -> ManagedObject:
        """What the step creates; a guest is also identified by its vmid, because names are reused."""
        plan = self._guest_plans.get(one.name) if (one.item.kind, one.act) == ("guest", "create") else None
        numbers = set(plan.claimed_vmids) if plan else set()
        return msgspec.structs.replace(one.record, vmid=min(numbers, default=0))

    def _redact(self, text: str) -> str:
        for secret in self._homelab.secrets():
            if len(secret) >= SHORTEST_HIDDEN:
                text = text.replace(secret, HIDDEN)
        return without_secrets(text)

    def _apply_step(self, one: Difference, target: Target | None, where: Cluster | None) -> Perform:
        async def perform(context: StepContext) -> ActionResult:
            if one.item.place:
                await self._require_judged(one.item, target, where)
            now = await difference(self._homelab, self._document, one.item, one.name, one.number)
            if now.act == "none":
                return ActionResult({"note": "It already has these settings"})
            if now.act != one.act:
                raise Conflict(
                    f"{one.item.kind} {one.name} has changed since it was planned",
                    why=f"It would now be {now.act}, but {one.act} was approved",
                    next_step=see("See the differences", INFRA_PLAN),
                )
            if one.item.kind == "guest":
                return await self._run_guest_plan(one, context)
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

    def _removal_step(self, one: Difference) -> Perform:
        async def perform(context: StepContext) -> ActionResult:
            if one.item.kind == "guest":
                return await self._run_guest_plan(one, context)
            return await perform_plan(await removal(self._homelab, one), context)

        return perform

    async def _run_guest_plan(self, one: Difference, context: StepContext) -> ActionResult:
        cluster = find_cluster(self._homelab, one.place)
        return ActionResult(await context.carry_out(cluster, self._guest_plans[one.name], context.wait, context.report))

    async def _plan_of(self, now: Difference) -> Plan:
        wanted: Any = now.item.wanted
        if now.item.kind == "host":
            return await self._host_plan(now)
        if now.item.kind == "workload":
            from quorate.operations.workloads.lifecycle import workload_deploy

            spec = await build_spec(self._homelab, self._document, now.item, now.name, now.number)
            return await workload_deploy(
                self._homelab, await self._ref(now.item), now.name, wanted.image, wanted.engine,
                [str(port) for port in spec.ports], list(wanted.volumes), dict(spec.env), list(wanted.command),
                wanted.memory, wanted.cpus, wanted.restart, wanted.network, dict(spec.labels), wanted.pull,
                replace=now.act == "update",
            )  # fmt: skip
        if wanted.unit:
            machine = await find_machine(self._homelab, await self._ref(now.item))
            return Plan(now.summary, (unit_step(self._homelab, machine, now.name, wanted.unit),))
        from quorate.operations.services.install import service_install

        return await service_install(self._homelab, now.name, await self._ref(now.item), dict(wanted.settings))

    async def _ref(self, item: Item) -> str:
        """The reference that tools take; a guest with its cluster, because a host may have the same name."""
        maker = self._document.items.get(item.place)
        if maker is None or maker.kind != "guest":
            return item.place
        cluster = find_cluster(self._homelab, maker.wanted.cluster)
        cluster.inventory.forget()
        row = await find_guest(cluster, maker.name)
        return f"{cluster.name}/{row.vmid}" if row else item.place

    async def _host_plan(self, now: Difference) -> Plan:
        from quorate.operations.host_admin.registry import host_update
        from quorate.operations.hosts.registry import host_register

        fields = msgspec.structs.asdict(now.item.wanted)
        del fields["needs"]
        given = fields | {"labels": list(fields["labels"])}
        if now.act == "create":
            return await host_register(self._homelab, now.name, **given, verify=False)
        cleared: dict[str, Any] = {name: "" if value is None else value for name, value in given.items()}
        return await host_update(self._homelab, now.name, **cleared)

    async def _guest_plan(self, cluster: Cluster, now: Difference) -> Plan:
        if now.act == "remove":
            from quorate.operations.provision.guest_delete import guest_delete

            row = await find_guest(cluster, now.name)
            return await guest_delete(cluster, row.vmid if row else now.name, stop=True)
        if now.act == "update":
            return await self._guest_update(cluster, now)
        return await new_guest(cluster, now.name, now.item.wanted)

    async def _guest_update(self, cluster: Cluster, now: Difference) -> Plan:
        from quorate.operations.guests.options import guest_configure
        from quorate.operations.guests.power import guest_power

        row = await find_guest(cluster, now.name)
        ref: int | str = row.vmid if row else now.name
        wanted = {field: value for field, _, value in now.changes}
        calls: list[Call | Action] = []
        hardware = {name: getattr(now.item.wanted, name) for name in ("cores", "memory") if name in wanted}
        if hardware:
            calls += (await guest_configure(cluster, ref, **hardware)).calls
        if "running" in wanted:
            calls += (await guest_power(cluster, ref, "start" if wanted["running"] else "shutdown")).calls
        return Plan(now.summary, tuple(calls))


async def new_guest(cluster: Cluster, name: str, wanted: WantedGuest) -> Plan:
    """By the tool that creates such a guest, with its own checks and choices."""
    size = {key: value for key in ("cores", "memory") if (value := getattr(wanted, key)) is not None}
    if wanted.clone:
        from quorate.operations.provision.guest_clone import guest_clone

        given = {"guest": wanted.clone, "name": name, "start": wanted.running, **wanted.settings}
        return await guest_clone(cluster, **convert_arguments("guest_clone", given, f"settings of {name}"))
    if wanted.type == "vm":
        from quorate.operations.provision.vm_create import vm_create

        given = {"name": name, "start": wanted.running, **size, **wanted.settings}
        return await vm_create(cluster, **convert_arguments("vm_create", given, f"settings of {name}"))
    from quorate.operations.provision.container_create import container_create

    given = {"template": wanted.template, "name": name, "start": wanted.running, **size, **wanted.settings}
    return await container_create(cluster, **convert_arguments("container_create", given, f"settings of {name}"))


async def removal(homelab: Homelab, one: Difference) -> Plan:
    """The plan of the tool that removes such an item. Volumes and data stay."""
    if one.item.kind == "workload":
        from quorate.operations.workloads.lifecycle import workload_remove

        return await workload_remove(homelab, one.place, one.name, engine=one.engine or None)  # type: ignore[arg-type]
    if one.item.kind == "service":
        machine = await find_machine(homelab, one.place)
        if await Installations(homelab.store).find(machine_ref(machine), one.name) is None:
            return Plan(one.summary, (unit_removal(homelab, machine, one.name),))
        from quorate.operations.services.install import service_uninstall

        return await service_uninstall(homelab, one.name, one.place)
    from quorate.operations.hosts.registry import host_remove

    return await host_remove(homelab, one.name)


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
