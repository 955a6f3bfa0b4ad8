"""Plans for services that Ansible installs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quorate.homelab.ansible import checked_tags, play, require_ansible
from quorate.homelab.home import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.services.choosing import Chosen, choose
from quorate.homelab.services.health import healthy
from quorate.homelab.services.installed import Installed, Ledger, place_of
from quorate.homelab.services.template import VERSION, Ansible, Template
from quorate.operations.hosts.parameters import machine_action
from quorate.operations.plan import Plan
from quorate.operations.services.parameters import lasting, recorded
from quorate.problems import BadArgument, Conflict, NotFound, TaskFailed
from quorate.pve.tasks import Report


async def tried(
    home: Homelab, place: Machine, template: Template, given: Mapping[str, Any], tags: Sequence[str],
    seconds: float, report: Report | None,
) -> dict[str, Any]:  # fmt: skip
    """In check mode: what would be changed, with the differences."""
    chosen = await _chosen(home, place, template, given)
    run = await play(
        place, _ansible(template).playbook, chosen.values, home.settings.work,
        check=True, tags=checked_tags(tags), seconds=seconds, report=report,
    )  # fmt: skip
    return {"would_change": run.changed, **run.told()}


async def install(
    home: Homelab, place: Machine, template: Template, given: Mapping[str, Any], tags: Sequence[str] = ()
) -> Plan:
    require_ansible()
    playbook = _ansible(template).playbook
    chosen = await _chosen(home, place, template, given)
    wanted = checked_tags(tags)

    async def work(report: Report) -> dict[str, Any]:
        run = await play(place, playbook, chosen.values, home.settings.work, check=False, tags=wanted, report=report)
        if wrong := await healthy(place, template, chosen.values, home.clock, report):
            raise TaskFailed(f"The playbook ran, but {template.title} is not healthy", why=wrong, facts=run.told())
        return {"changed": run.changed, **run.told(), **({"health": "ok"} if template.health else {})}

    entry = Installed(template.id, place_of(place), "ansible", "installing", chosen.version, chosen.shown)
    hidden = tuple(chosen.values[name] for name in chosen.secret)
    does = f"Run the playbook of {template.title} on {place}"
    told = " ".join(f"{name}={value}" for name, value in chosen.shown.items())
    only = f" --tags {','.join(wanted)}" if wanted else ""
    line = f"ansible-playbook {template.id}{only} ({told})"
    return Plan(
        does,
        (machine_action(place, does, line, recorded(home, entry, work, hidden), writes=True),),
        facts={"host": place.name, "settings": chosen.shown},
        next_step=f"ansible_check service={template.id} host={place.name} shows what it would change",
    )


async def uninstall(home: Homelab, place: Machine, template: Template, *, data: bool) -> Plan:
    require_ansible()
    playbook = _ansible(template).uninstall
    if not playbook:
        raise Conflict(
            f"The catalogue does not say how to take {template.title} away",
            next_step="Add `uninstall` to its template, or take it away by hand",
        )
    ledger, where = Ledger(home.store), place_of(place)
    old = await ledger.find(where, template.id)
    if old is None:
        raise NotFound(f"{template.title} was not installed on {place} from here")
    variables = {**old.settings, "data": data}

    async def work(report: Report) -> dict[str, Any]:
        run = await play(place, playbook, variables, home.settings.work, check=False, report=report)
        await ledger.forget(where, template.id)
        return {"removed": template.id, **run.told()}

    does = f"Remove {template.title} from {place}" + (" with its data" if data else "")
    perform = lasting(home, where, template.id, work)
    return Plan(does, (machine_action(place, does, f"ansible-playbook {template.id} uninstall data={data}", perform),))


async def _chosen(home: Homelab, place: Machine, template: Template, given: Mapping[str, Any]) -> Chosen:
    old = await Ledger(home.store).find(place_of(place), template.id)
    lost = [name for name, one in template.parameters.items() if one.type == "secret" and name not in given]
    if old and old.method == "ansible" and lost:
        raise BadArgument(
            f"The secret {lost[0]!r} has to be given again",
            why="Ansible leaves no copy of it that could be read",
            next_step=f"service_install or ansible_run takes it by reference; `{VERSION}` is a setting there, too",
        )
    return await choose(template, given, old.settings if old else {}, home.secret_store)


def _ansible(template: Template) -> Ansible:
    template.method("ansible")
    assert template.ansible is not None
    return template.ansible
