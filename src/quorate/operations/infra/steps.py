"""The steps that bring about what a document wants. Each is planned anew by the tool that is there for it when its
turn comes, because what it stands on may not have been there before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from quorate.command_secrets import HIDDEN, without_secrets
from quorate.homelab.home import Homelab
from quorate.homelab.host import Host
from quorate.homelab.infra.comparing import (
    Difference,
    cluster_named,
    difference,
    guest_called,
    place_in,
    wanted_spec,
)
from quorate.homelab.infra.document import Document, Item, WantedGuest, WantedHost, WantedWorkload
from quorate.homelab.infra.kept import Kept, Made
from quorate.homelab.machines import machine
from quorate.operations.hosts.parameters import machine_needs, machine_target
from quorate.operations.plan import Action, Call, Performed, Plan, Target
from quorate.operations.registry import Risk
from quorate.problems import Conflict, Problem
from quorate.pve.cluster import Cluster
from quorate.pve.tasks import Report

Perform = Callable[[float, Report | None], Awaitable[Performed]]
SHORTEST_HIDDEN = 5


def gravest(differences: list[Difference]) -> Risk | None:
    """Putting a container in the place of another loses what is in no volume; so does taking anything away."""
    for one in differences:
        if one.act == "remove" or (one.act == "update" and one.item.kind == "workload"):
            return Risk.DESTROY
    return None


class Steps:
    """Of one run of one document."""

    def __init__(self, home: Homelab, document: Document, run: str) -> None:
        self._home = home
        self._document = document
        self._run = run
        self._kept = Kept(home.store)
        self._guest_plans: dict[str, Plan] = {}
        """As they were checked and agreed to: another look would choose another vmid."""

    async def of(self, one: Difference) -> Action:
        """The action for a difference that there is something to do about."""
        target, needs, where, becomes = await self._reaches(one)
        perform = self._removing(one) if one.act == "remove" else self._making(one, target, where)
        line = self._line(one)
        return Action(one.says, line, self._recorded(one, perform), target, needs, where, becomes=becomes)

    async def rehearsed(self, one: Difference) -> tuple[str, ...]:
        """Plan it by its own tool, which raises what stands against it; the warnings of that plan."""
        if one.item.kind != "guest":
            return (await self._plan_of(one)).warnings
        cluster = cluster_named(self._home, one.place)
        plan = await self._guest_plan(cluster, one)
        cluster.reserved_vmids -= plan.claimed_vmids
        return plan.warnings

    # -- what a step reaches, as far as it is there ----------------------------------------------------------------

    async def _reaches(self, one: Difference) -> tuple[Target | None, tuple[Call, ...], Cluster | None, Host | None]:
        home = self._home
        if one.item.kind == "host":
            new = one.item.wanted.host(one.name) if one.item.wanted is not None else None
            return Target("host", one.name), (), None, new
        if one.item.kind == "guest":
            cluster = cluster_named(home, one.place)
            row = await guest_called(cluster, one.name)
            target = Target(row.kind, str(row.vmid), row.name, row.node) if row else None
            self._guest_plans[one.name] = plan = await self._guest_plan(cluster, one)
            return target, tuple(plan.api_calls), cluster, None
        if one.item.wanted is None:
            place = await machine(home, one.place)
        else:
            found = await place_in(home, self._document, one.item)
            if found is None:
                return self._promised(self._document.items[one.item.place])
            place = found
        return machine_target(place), machine_needs(place, writes=True), place.where, None

    def _promised(self, maker: Item) -> tuple[Target | None, tuple[Call, ...], Cluster | None, Host | None]:
        """A machine that the document makes: judged by what it will be, and by the step that makes it."""
        if isinstance(maker.wanted, WantedHost):
            return Target("host", maker.name), (), None, maker.wanted.host(maker.name)
        return None, (), cluster_named(self._home, maker.wanted.cluster), None

    def _line(self, one: Difference) -> str:
        """What is agreed to: every field; of variables only the names, of secrets only where they are."""
        if one.act == "remove":
            return f"remove {one.item.kind} {one.name}" + (f" from {one.place}" if one.place else "")
        wanted = one.item.wanted
        if isinstance(wanted, WantedWorkload):
            wanted = msgspec.structs.replace(wanted, env=dict.fromkeys(wanted.env, "…"))
        told = msgspec.json.encode(wanted).decode()
        at = f" on {one.place}" if one.place else ""
        return without_secrets(f"{one.act} {one.item.kind} {one.name}{at} {told}")

    # -- doing it --------------------------------------------------------------------------------------------------

    def _recorded(self, one: Difference, perform: Perform) -> Perform:
        """With a note before and after: a step that was begun and broke off is known, too."""
        step = one.says

        async def performed(wait: float, report: Report | None) -> Performed:
            made = self._made(one)
            await self._kept.begin(self._document, self._run, step, made if one.act == "create" else None)
            try:
                done = await perform(wait, report)
            except Problem as problem:
                await self._kept.fail(self._document, step, self._cleared(problem.what))
                onwards = f"What was done before it stays; infra_apply plan={self._document.id} goes on from here"
                problem.next_step = f"{problem.next_step or ''} {onwards}".strip()
                raise
            except BaseException:
                await self._kept.fail(self._document, step, "It was broken off before its end.")
                raise
            if done.running:
                await self._kept.fail(self._document, step, "It goes on by itself.", "going on")
                again = f"{done.next_step}. Then infra_apply plan={self._document.id} does the rest"
                return Performed(done.facts, running=True, next_step=again)
            await self._kept.end(self._document, step, made=made, gone=one.act == "remove")
            return done

        return performed

    def _made(self, one: Difference) -> Made:
        """What the step makes; a guest is known by its number as well, for names come back."""
        plan = self._guest_plans.get(one.name) if (one.item.kind, one.act) == ("guest", "create") else None
        numbers = {int(each) for each in plan.claimed_vmids if each} if plan else set()
        return msgspec.structs.replace(one.made, vmid=min(numbers, default=0))

    def _cleared(self, text: str) -> str:
        for secret in self._home.secrets():
            if len(secret) >= SHORTEST_HIDDEN:
                text = text.replace(secret, HIDDEN)
        return without_secrets(text)

    def _making(self, one: Difference, target: Target | None, where: Cluster | None) -> Perform:
        async def perform(wait: float, report: Report | None) -> Performed:
            if one.item.place:
                await self._require_judged(one.item, target, where)
            now = await difference(self._home, self._document, one.item, one.name, one.number)
            if now.act == "none":
                return Performed({"note": "It is so already"})
            if now.act != one.act:
                raise Conflict(
                    f"{one.item.kind} {one.name} is not what it was meanwhile",
                    why=f"It would be {now.act}, and {one.act} was agreed to",
                    next_step="Look at it with infra_plan.",
                )
            if one.item.kind == "guest":
                return await self._carried_out(one, wait, report)
            return await performed_of(await self._plan_of(now), wait, report)

        return perform

    async def _require_judged(self, item: Item, target: Target | None, where: Cluster | None) -> None:
        """A host that was not there when the rules were asked may turn out to be a node or guest that has its own."""
        place = await place_in(self._home, self._document, item)
        same = place is not None and (place.where.name if place.where else "") == (where.name if where else "")
        if place is None or not same or (target is not None and machine_target(place) != target):
            raise Conflict(
                f"{item.place} is not what it was taken for" + (f": it is {place}" if place else ""),
                why="The rules were asked about something else",
                next_step="Call again: then they are asked about what it is.",
            )

    def _removing(self, one: Difference) -> Perform:
        async def perform(wait: float, report: Report | None) -> Performed:
            if one.item.kind == "guest":
                return await self._carried_out(one, wait, report)
            return await performed_of(await removal(self._home, one), wait, report)

        return perform

    async def _carried_out(self, one: Difference, wait: float, report: Report | None) -> Performed:
        cluster = cluster_named(self._home, one.place)
        return Performed(await self._home.carry_out(cluster, self._guest_plans[one.name], wait, report))

    async def _plan_of(self, now: Difference) -> Plan:
        wanted: Any = now.item.wanted
        if now.item.kind == "host":
            return await self._host_plan(now)
        if now.item.kind == "workload":
            from quorate.operations.workloads.changing import workload_deploy

            spec = await wanted_spec(self._home, self._document, now.item, now.name, now.number)
            return await workload_deploy(
                self._home, await self._ref(now.item), now.name, wanted.image, wanted.engine,
                [str(port) for port in spec.ports], list(wanted.volumes), dict(spec.env), list(wanted.command),
                wanted.memory, wanted.cpus, wanted.restart, wanted.network, dict(spec.labels), wanted.pull,
                replace=now.act == "update",
            )  # fmt: skip
        from quorate.operations.services.installing import service_install

        return await service_install(self._home, now.name, await self._ref(now.item), dict(wanted.settings))

    async def _ref(self, item: Item) -> str:
        """How the tools name the machine: a guest by its cluster, for another may have a host of its name."""
        maker = self._document.items.get(item.place)
        if maker is None or maker.kind != "guest":
            return item.place
        cluster = cluster_named(self._home, maker.wanted.cluster)
        cluster.inventory.forget()
        row = await guest_called(cluster, maker.name)
        return f"{cluster.name}/{row.vmid}" if row else item.place

    async def _host_plan(self, now: Difference) -> Plan:
        from quorate.operations.hosts.registering import host_register, host_update

        fields = msgspec.structs.asdict(now.item.wanted)
        del fields["needs"]
        given = fields | {"labels": list(fields["labels"])}
        if now.act == "create":
            return await host_register(self._home, now.name, **given, verify=False)
        cleared: dict[str, Any] = {name: "" if value is None else value for name, value in given.items()}
        return await host_update(self._home, now.name, **cleared)

    async def _guest_plan(self, cluster: Cluster, now: Difference) -> Plan:
        if now.act == "remove":
            from quorate.operations.provision.delete import guest_delete

            row = await guest_called(cluster, now.name)
            return await guest_delete(cluster, row.vmid if row else now.name, stop=True)
        if now.act == "update":
            return await self._guest_update(cluster, now)
        return await new_guest(cluster, now.name, now.item.wanted)

    async def _guest_update(self, cluster: Cluster, now: Difference) -> Plan:
        from quorate.operations.guests.options import guest_configure
        from quorate.operations.guests.power import guest_power

        row = await guest_called(cluster, now.name)
        ref: int | str = row.vmid if row else now.name
        wanted = {field: value for field, _, value in now.changes}
        calls: list[Call | Action] = []
        hardware = {name: getattr(now.item.wanted, name) for name in ("cores", "memory") if name in wanted}
        if hardware:
            calls += (await guest_configure(cluster, ref, **hardware)).calls
        if "running" in wanted:
            calls += (await guest_power(cluster, ref, "start" if wanted["running"] else "shutdown")).calls
        return Plan(now.says, tuple(calls))


async def new_guest(cluster: Cluster, name: str, wanted: WantedGuest) -> Plan:
    """By the tool that makes such a guest, with its own checks and choices."""
    size = {key: value for key in ("cores", "memory") if (value := getattr(wanted, key)) is not None}
    if wanted.clone:
        from quorate.operations.provision.clone import guest_clone

        return await guest_clone(cluster, wanted.clone, name=name, start=wanted.running, **wanted.settings)
    if wanted.type == "vm":
        from quorate.operations.provision.create_vm import vm_create

        return await vm_create(cluster, name=name, start=wanted.running, **size, **wanted.settings)
    from quorate.operations.provision.create_container import container_create

    given = {"hostname": name, "start": wanted.running, **size, **wanted.settings}
    return await container_create(cluster, wanted.template, **given)


async def removal(home: Homelab, one: Difference) -> Plan:
    """The plan of the tool that takes such a thing away. Volumes and data stay."""
    if one.item.kind == "workload":
        from quorate.operations.workloads.changing import workload_remove

        return await workload_remove(home, one.place, one.name, engine=one.engine or None)  # type: ignore[arg-type]
    if one.item.kind == "service":
        from quorate.operations.services.installing import service_uninstall

        return await service_uninstall(home, one.name, one.place)
    from quorate.operations.hosts.registering import host_remove

    return await host_remove(home, one.name)


async def performed_of(plan: Plan, wait: float, report: Report | None) -> Performed:
    """A plan of actions alone, done as one step."""
    facts: dict[str, Any] = {}
    for action in plan.calls:
        assert isinstance(action, Action), "only plans of clusters have calls"
        done = await action.perform(wait, report)
        facts |= done.facts
        if done.running:
            return Performed(facts, running=True, next_step=done.next_step)
    return Performed(facts)
