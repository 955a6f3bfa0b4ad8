"""The catalogue of services, whether a host can take one, and how those on a host are."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.homelab.home import Homelab
from quorate.homelab.machines import Machine, machine
from quorate.homelab.services.catalogue import catalogue
from quorate.homelab.services.choosing import require_known
from quorate.homelab.services.compose import compose_of
from quorate.homelab.services.health import ailment
from quorate.homelab.services.installed import Installed, Ledger, place_of
from quorate.homelab.services.template import Template
from quorate.homelab.workloads.underway import Underway
from quorate.operations.hosts.parameters import HostRef
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.services import by_compose
from quorate.operations.services.parameters import ServiceName, ServiceSettings, template_of
from quorate.problems import Problem
from quorate.pve.tasks import gather_bounded

SHOWN = 20
ASKED_AT_ONCE = 4
BROKEN_OFF = {
    "state": "broken off",
    "why": "The server that did it is not there any more; do it again, or uninstall it",
}
GONE = "its template is gone from the catalogue; nothing can be done about it until that is back"


@operation(risk=Risk.READ)
async def service_list(
    home: Homelab,
    words: Annotated[str, Meta(description="Such as photos, dns, git")] | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Services that can be installed on hosts, and where they are installed."""
    known = catalogue(home.settings.catalogue)
    wanted = (words or "").lower().split()
    shown = [one for one in known.services.values() if all(word in _text(one) for word in wanted)]
    there = await Ledger(home.store).everything()
    rows = [[one.id, one.title, one.about, ", ".join(one.methods), one.version, _hosts(one, there)] for one in shown]
    table = page(("service", "title", "about", "methods", "version", "installed_on"), rows, limit=limit, offset=offset)
    table.facts = {"broken": dict(list(known.broken.items())[:20])} if known.broken else {}
    return table


@operation(risk=Risk.READ)
async def service_info(home: Homelab, service: ServiceName) -> dict[str, Any]:
    """What a service needs, its settings, health check, backup paths, and where it is installed."""
    one = template_of(home, service)
    health = one.health
    asked = health and (
        " ".join(health.command) or (f"GET {health.http} at {health.port}" if health.http else f"port {health.port}")
    )
    return {
        "service": one.id,
        "title": one.title,
        "about": one.about,
        "methods": list(one.methods),
        **({"version": one.version} if one.version else {}),
        "needs": {
            name: list(value) if isinstance(value, tuple) else value
            for name in ("memory", "disk", "architectures", "ports") if (value := getattr(one.needs, name))
        },
        "settings": {"columns": ["setting", "type", "default", "about"], "rows": _settings(one)},
        **({"health": asked} if asked else {}),
        **({"backup": list(one.backup)} if one.backup else {}),
        **({"homepage": one.homepage} if one.homepage else {}),
        **({"notes": one.notes} if one.notes else {}),
        "origin": one.origin,
        "installed_on": _hosts(one, await Ledger(home.store).everything()),
    }  # fmt: skip


@operation(risk=Risk.LOOK_INSIDE)
async def service_check(
    home: Homelab, service: ServiceName, host: HostRef, settings: ServiceSettings | None = None
) -> dict[str, Any]:
    """Whether a host has what a service needs: ports, memory, disk, architecture, Compose. Changes nothing."""
    from quorate.homelab.services.requirements import judged, looked_at  # many parsers, for those who need them

    one = template_of(home, service)
    place = await machine(home, host)
    require_known(one, settings or {})
    given = {name: str(value) for name, value in (settings or {}).items()}
    old = await Ledger(home.store).find(place_of(place), one.id)
    facts = await looked_at(place)
    own = old.settings if old and old.state == "installed" else {}
    rows = judged(one, {**own, **given}, facts, home.settings.services_folder, own)
    if one.compose:
        try:
            command = await compose_of(place)
            rows.append(["Compose", "any", " ".join(command or ()), "ok" if command else "missing"])
        except Problem as problem:
            rows.append(["Compose", "any", str(problem), "not known"])
    verdicts = {row[3] for row in rows}
    return {
        "service": one.id,
        "host": str(place),
        "fits": "no" if "missing" in verdicts else "not sure" if "not known" in verdicts else "yes",
        "checks": {"columns": ["what", "needed", "found", "verdict"], "rows": rows},
        **({"not_known": facts.not_known} if facts.not_known else {}),
    }


@operation(risk=Risk.LOOK_INSIDE)
async def service_status(home: Homelab, host: HostRef, service: ServiceName | None = None) -> dict[str, Any]:
    """How services on a host are: what runs, health, version, and what differs from what was installed."""
    place = await machine(home, host)
    ledger = Ledger(home.store)
    if service is not None:
        one = template_of(home, service)
        return await _told(home, place, one, await ledger.find(place_of(place), one.id))
    where = place_of(place)
    known = catalogue(home.settings.catalogue).services
    found = [entry for entry in await ledger.everything() if entry.host == where]

    async def told_of(entry: Installed) -> dict[str, Any]:
        if template := known.get(entry.service):
            return await _told(home, place, template, entry)
        return {"service": entry.service, "kept": entry.state, "state": GONE}

    told = await gather_bounded(ASKED_AT_ONCE, [partial(told_of, entry) for entry in found[:SHOWN]])
    return {
        "host": str(place),
        "services": told or "none",
        **({"more": len(found) - SHOWN} if len(found) > SHOWN else {}),
    }


async def _told(home: Homelab, place: Machine, template: Template, entry: Installed | None) -> dict[str, Any]:
    method = entry.method if entry else template.method()
    underway = await Underway(home.store, place_of(place), f"service {template.id}").told()
    if underway.get("state") == "going on" and not await Ledger(home.store).is_worked_on(place_of(place), template.id):
        underway = BROKEN_OFF
    kept = {"kept": entry.state, **({"why": entry.why} if entry.why else {})} if entry else {}
    facts = {"service": template.id, "host": str(place), "method": method, **kept}
    if method == "compose":
        facts |= await _as_far_as_known(by_compose.status(home, place, template))
    elif entry is not None:
        health = await ailment(place, template, entry.settings) if template.health else None
        facts |= {"version": entry.version} if entry.version else {}
        facts |= {"health": health or "ok"} if template.health else {}
        facts["next"] = f"{'ansible_check' if method == 'ansible' else 'terraform_refresh'} shows what differs"
    else:
        facts["state"] = "not installed by this server"
    return facts | ({"underway": underway} if underway else {})


async def _as_far_as_known(asked: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = await asked
    except Problem as problem:
        return {"state": "not known", "why_not": str(problem)}
    return found


def _hosts(one: Template, there: list[Installed]) -> str:
    found = [entry for entry in there if entry.service == one.id and entry.state != "removed"]
    return ", ".join(entry.host if entry.state == "installed" else f"{entry.host} ({entry.state})" for entry in found)


def _settings(one: Template) -> list[list[Any]]:
    """Rows, not fields: under its own name, what is said about a password would be taken for one."""
    return [
        [
            name,
            "|".join(parameter.choices) or parameter.type,
            "made up" if parameter.generate else "required" if parameter.required else parameter.default,
            parameter.about,
        ]
        for name, parameter in one.parameters.items()
    ]


def _text(one: Template) -> str:
    return f"{one.id} {one.title} {one.about}".lower()
