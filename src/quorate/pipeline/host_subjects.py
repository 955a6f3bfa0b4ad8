"""Hosts as rules see them: what a step acts on, under each of its names, and what it would become."""

from __future__ import annotations

from dataclasses import replace

from quorate.homelab.home import Homelab
from quorate.homelab.host import unregistered
from quorate.operations.plan import Action
from quorate.pve.reach import HOST
from quorate.pve.subjects import Subject


async def hosts_reached(home: Homelab, step: Action) -> list[Subject]:
    """The host, other registered names of the same machine, and the machine that a new address leads to."""
    if step.target is None or step.target.kind != HOST:
        return []
    everyone = await home.hosts.everyone()
    now = next((host for host in everyone if host.name == step.target.id), None)
    here = now or step.becomes or unregistered(step.target.id)
    own = here.subject if step.becomes is None else replace(here.subject, after=step.becomes.subject)
    found = [own, *(one.subject for one in await home.whereabouts.same(here, everyone))]
    new = step.becomes
    if new is not None and (now is None or (now.address, now.port, now.jump) != (new.address, new.port, new.jump)):
        found.append(Subject(HOST, new.at, new.address))
        found += [one.subject for one in await home.whereabouts.same(new, everyone)]
    return list(dict.fromkeys(found))
