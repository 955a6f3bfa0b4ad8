"""Ansible playbooks of the catalogue: tried, and run."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.homelab.home import Homelab
from quorate.homelab.machines import machine
from quorate.operations.hosts.parameters import HostRef
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk, operation
from quorate.operations.services import by_ansible
from quorate.operations.services.parameters import ServiceName, ServiceSettings, template_of
from quorate.pve.tasks import Report

Tags = Annotated[list[str], Meta(description="Only tasks with one of these tags")]


@operation(risk=Risk.LOOK_INSIDE)
async def ansible_check(
    home: Homelab,
    service: ServiceName,
    host: HostRef,
    report: Report,
    tags: Tags | None = None,
    extra_vars: ServiceSettings | None = None,
    seconds: Annotated[float, Meta(ge=5, le=600, description="Longest time")] = 50,
) -> dict[str, Any]:
    """Try the playbook of a service on a host in check mode: what it would change, with a diff. Changes nothing."""
    template = template_of(home, service)
    place = await machine(home, host)
    return await by_ansible.tried(home, place, template, extra_vars or {}, tags or (), seconds, report)


@operation(risk=Risk.CHANGE)
async def ansible_run(
    home: Homelab,
    service: ServiceName,
    host: HostRef,
    tags: Tags | None = None,
    extra_vars: ServiceSettings | None = None,
) -> Plan:
    """Run the playbook of a service on a host, or those of its tasks that have a tag."""
    template = template_of(home, service)
    return await by_ansible.install(home, await machine(home, host), template, extra_vars or {}, tags or ())
