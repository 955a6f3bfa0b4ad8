"""Services: the catalog, whether a host can run one, and the state of those on a host."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.hints import see, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.selection import select
from quorate.homelab.services.catalogue import (
    Requirement,
    RequirementKind,
    Template,
    Verdict,
    check_requirements,
    collect_requirements,
    load_catalogue,
)
from quorate.homelab.services.compose import find_compose, find_health_problem
from quorate.homelab.services.installations import (
    Installation,
    Installations,
    State,
    find_stale_hosts,
    machine_ref,
    require_known,
)
from quorate.homelab.workloads.workload import Deployment
from quorate.inside.posix_files import shell_script
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import Problem
from quorate.pve.tasks import gather_bounded
from quorate.tools.hosts import HostRefs
from quorate.tools.service_compose import ServiceName, ServiceSettings, status, template_of
from quorate.tools.several_hosts import answer_each

SHOWN = 20
IN_SHORT = ("service", "method", "kept", "state", "health", "version", "catalogue_has", "drift", "underway", "why_not")
"""What is shown of a service on several hosts."""
ASKED_AT_ONCE = 4
REACHED_SECONDS = 20.0
UNFINISHED = ("installing", "upgrading")
BROKEN_OFF = {
    "state": "broken off",
    "why": "The server that was doing it has stopped; do it again, or uninstall it",
}
GONE = "its template is no longer in the catalog; restore the template to manage it"


@operation(
    toolset="services",
    risk=Risk.READ,
    search_words="which services can be installed catalogue apps self-hosted list installed where",
    example="words=photos",
)
async def service_list(
    homelab: Homelab,
    words: Annotated[str, Meta(description="Such as photos, dns, git")] | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Services that can be installed on hosts, and where they are installed."""
    known = load_catalogue(homelab.settings.catalogue)
    needles = (words or "").lower().split()
    shown = [
        template
        for template in known.services.values()
        if all(word in f"{template.id} {template.title} {template.about}".lower() for word in needles)
    ]
    installed = await Installations(homelab.store).everything()
    gone = await find_stale_hosts(homelab, installed)
    rows = [
        [
            template.id,
            template.title,
            template.about,
            ", ".join(template.methods),
            template.version,
            _hosts(template.id, installed, gone),
        ]
        for template in shown
    ]
    orphans = sorted({entry.service for entry in installed if entry.service not in known.services})
    rows += [
        [name, "", GONE, "", "", _hosts(name, installed, gone)] for name in orphans if not needles or name in needles
    ]
    table = page(("service", "title", "about", "methods", "version", "installed_on"), rows, limit=limit, offset=offset)
    table.facts = {"broken": dict(list(known.broken.items())[:20])} if known.broken else {}
    return table


@operation(
    toolset="services",
    risk=Risk.READ,
    search_words="what does a service need settings parameters health check backup paths catalogue entry details",
    example="service=pihole",
)
async def service_info(homelab: Homelab, service: ServiceName) -> dict[str, Any]:
    """What a service needs, its settings, health check, backup paths, and where it is installed."""
    template = template_of(homelab, service)
    installed = await Installations(homelab.store).everything()
    health = template.health
    check = health and (
        " ".join(health.command) or (f"GET {health.http} at {health.port}" if health.http else f"port {health.port}")
    )
    return {
        "service": template.id,
        "title": template.title,
        "about": template.about,
        "methods": list(template.methods),
        **({"version": template.version} if template.version else {}),
        "needs": {
            name: list(value) if isinstance(value, tuple) else value
            for name in ("memory", "disk", "architectures", "ports") if (value := getattr(template.needs, name))
        },
        "settings": {"columns": ["setting", "type", "default", "about"], "rows": _settings(template)},
        **({"health": check} if check else {}),
        **({"backup": list(template.backup)} if template.backup else {}),
        **({"homepage": template.homepage} if template.homepage else {}),
        **({"notes": template.notes} if template.notes else {}),
        "origin": template.origin,
        "installed_on": _hosts(template.id, installed, await find_stale_hosts(homelab, installed)),
    }  # fmt: skip


@operation(
    toolset="services",
    risk=Risk.LOOK_INSIDE,
    search_words="can this host run service requirements ports free memory disk architecture docker compose fits",
    example="service=gitea host=docker01",
)
async def service_check(
    homelab: Homelab, service: ServiceName, host: HostRefs, settings: ServiceSettings | None = None
) -> dict[str, Any] | Table:
    """Whether hosts have what a service needs: ports, memory, disk, architecture, Compose. Changes nothing."""
    template = template_of(homelab, service)
    require_known(template, settings or {})
    requested = {name: str(value) for name, value in (settings or {}).items()}

    async def check(machine: Machine) -> tuple[dict[str, Any], list[Requirement]]:
        old = await Installations(homelab.store).find(machine_ref(machine), template.id)
        facts = await collect_requirements(machine)
        own = old.settings if old and old.state == "installed" else {}
        rows = check_requirements(template, {**own, **requested}, facts, homelab.settings.services_folder, own)
        if template.compose:
            try:
                command = await find_compose(machine)
                present, verdict = " ".join(command or ()), Verdict.OK if command else Verdict.MISSING
            except Problem as problem:
                present, verdict = str(problem), Verdict.NOT_KNOWN
            rows.append(Requirement(RequirementKind.COMPOSE, "any", present, verdict))
        verdicts = {row.verdict for row in rows}
        fits = "no" if Verdict.MISSING in verdicts else "not sure" if Verdict.NOT_KNOWN in verdicts else "yes"
        not_known = {"not_known": facts.not_known} if facts.not_known else {}
        return {"service": template.id, "host": str(machine), "fits": fits, **not_known}, rows

    async def of_several(machine: Machine) -> list[list[Any]]:
        answer, rows = await check(machine)
        lacking = {
            row.name: f"{row.needed} needed, found {row.available}" for row in rows if row.verdict is not Verdict.OK
        }
        return [[answer["fits"], lacking]]

    chosen = await select(homelab, host)
    if chosen.several:
        return await answer_each(chosen, of_several, ("fits", "lacking"))
    answer, rows = await check(chosen.machines[0])
    checks = [[row.name, row.needed, row.available, row.verdict.value] for row in rows]
    return answer | {"checks": {"columns": ["what", "needed", "found", "verdict"], "rows": checks}}


@operation(
    toolset="services",
    risk=Risk.LOOK_INSIDE,
    search_words="is the service healthy running version drift what is installed on host compose project",
    example="host=docker01",
)
async def service_status(
    homelab: Homelab, host: HostRefs, service: ServiceName | None = None
) -> dict[str, Any] | Table:
    """Services on hosts: what runs, health, version, and what differs from what was installed."""
    ledger = Installations(homelab.store)
    template = template_of(homelab, service) if service is not None else None

    async def one_service(machine: Machine, template: Template) -> dict[str, Any]:
        await _require_reached(machine)
        return await _status(homelab, machine, template, await ledger.find(machine_ref(machine), template.id))

    async def of_several(machine: Machine) -> Table:
        statuses = [await one_service(machine, template)] if template else (await services_on(homelab, machine))[0]
        rows = [[entry.get(name, "") for name in IN_SHORT] for entry in statuses]
        return Table(IN_SHORT, rows, len(rows))

    chosen = await select(homelab, host)
    if chosen.several:
        return await answer_each(chosen, of_several, IN_SHORT)
    [machine] = chosen.machines
    if template:
        return await one_service(machine, template)
    statuses, more = await services_on(homelab, machine)
    return {"host": str(machine), "services": statuses or "none", **({"more": more} if more else {})}


async def services_on(homelab: Homelab, machine: Machine) -> tuple[list[dict[str, Any]], int]:
    """The status of the services installed there, and how many are left out."""
    where = machine_ref(machine)
    known = load_catalogue(homelab.settings.catalogue).services
    entries = [entry for entry in await Installations(homelab.store).everything() if entry.host == where]

    async def describe(entry: Installation) -> dict[str, Any]:
        if template := known.get(entry.service):
            return await _status(homelab, machine, template, entry)
        return {"service": entry.service, "kept": entry.state, "state": GONE}

    statuses = await gather_bounded(ASKED_AT_ONCE, [partial(describe, entry) for entry in entries[:SHOWN]])
    return list(statuses), max(0, len(entries) - SHOWN)


async def _require_reached(machine: Machine) -> None:
    """Raise if the machine does not answer or rejects the login, which would look like a service that is not there."""
    await machine.transport.run(shell_script(":"), seconds=REACHED_SECONDS)


async def _status(homelab: Homelab, machine: Machine, template: Template, entry: Installation | None) -> dict[str, Any]:
    method = entry.method if entry else template.method()
    deployment = Deployment(homelab.store, machine_ref(machine), f"service {template.id}")
    underway = await deployment.state()
    if not await Installations(homelab.store).is_worked_on(machine_ref(machine), template.id):
        if entry is not None and entry.state in UNFINISHED:
            entry = await _resolve_interrupted_entry(homelab, machine, template, entry)
        if underway.get("state") == "going on":
            underway = {} if entry is not None and entry.state not in UNFINISHED else BROKEN_OFF
            if not underway:
                await deployment.forget()
    # After a failed attempt the restored version runs: the reason for the failure does not describe that.
    reason = "last_attempt" if entry is not None and entry.state == "installed" else "why"
    kept = {"kept": entry.state, **({reason: entry.why} if entry.why else {})} if entry else {}
    facts: dict[str, Any] = {"service": template.id, "host": str(machine), "method": method, **kept}
    if method == "compose":
        facts |= await _status_or_reason(status(homelab, machine, template))
    elif entry is not None:
        health = await find_health_problem(machine, template, entry.settings) if template.health else None
        facts |= {"version": entry.version} if entry.version else {}
        facts |= {"health": health or "ok"} if template.health else {}
        facts["next"] = see("See what differs", tools.ansible_check if method == "ansible" else tools.terraform_refresh)
    else:
        facts["state"] = "not installed by this server"
    return facts | ({"underway": underway} if underway else {})


async def _resolve_interrupted_entry(
    homelab: Homelab, machine: Machine, template: Template, entry: Installation
) -> Installation:
    """Update the record of work whose server has died by what the host shows."""
    if entry.method == "compose":
        current = await _status_or_reason(status(homelab, machine, template))
        if current["state"] == "not known":
            return entry
        works = current["state"] == "running" and current.get("health", "ok") == "ok"
        now = f"{current['state']}, {current['health']}" if current.get("health", "ok") != "ok" else current["state"]
        version = str(current.get("version", entry.version))
    else:
        wrong = (
            await find_health_problem(machine, template, entry.settings)
            if template.health
            else "it has no health check"
        )
        works, now, version = wrong is None, wrong or "healthy", entry.version
    why = "" if works else f"The server died while it was {entry.state} it; on the host: {now}"
    state: State = "installed" if works else "failed"
    new = msgspec.structs.replace(entry, state=state, why=why, version=version)
    await Installations(homelab.store).keep(new)
    return new


async def _status_or_reason(reading: Any) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = await reading
    except Problem as problem:
        return {"state": "not known", "why_not": str(problem)}
    return facts


def _hosts(service: str, installed: list[Installation], gone: Mapping[str, str]) -> str:
    entries = [entry for entry in installed if entry.service == service and entry.state != "removed"]
    return ", ".join(_describe_host(entry, gone.get(entry.host, "")) for entry in entries)


def _describe_host(entry: Installation, gone: str) -> str:
    remark = gone or ("" if entry.state == "installed" else entry.state)
    return f"{entry.host} ({remark})" if remark else entry.host


def _settings(template: Template) -> list[list[Any]]:
    """Rows, not fields: a field named after a password would be redacted like one."""
    return [
        [
            name,
            "|".join(parameter.choices) or parameter.type,
            "generated" if parameter.generate else "required" if parameter.required else parameter.default,
            parameter.about,
        ]
        for name, parameter in template.parameters.items()
    ]
