"""Services of a machine, whether it is a guest, a host or a node."""

from __future__ import annotations

from typing import Any, Literal

from quorate.command_rules import CommandRules
from quorate.hints import Advice, ToolHint
from quorate.homelab.machines import Machine
from quorate.inside import names, services
from quorate.inside.service_state import Service
from quorate.inside.transport import Transport
from quorate.operations.machine import machine_action
from quorate.operations.plan import Action, ActionResult, StepContext
from quorate.pve.clock import Clock

COLUMNS = ("service", "state", "enabled", "description")

ServiceAction = Literal["start", "stop", "restart", "reload", "enable", "disable"]
ServiceState = Literal["active", "failed", "all"]


async def list_services(transport: Transport, state: ServiceState) -> list[list[Any]]:
    """Rows by name, for those in this state."""
    wanted = [one for one in await services.list_services(transport) if state in ("all", one.state)]
    return [[one.name, one.summary, one.enabled, one.description] for one in sorted(wanted, key=lambda one: one.name)]


async def describe_service(transport: Transport, service: str, log_lines: int) -> dict[str, Any]:
    return _describe_service(
        await services.status(transport, names.require_service(service, transport.system), log_lines=log_lines)
    )


def _describe_service(service: Service) -> dict[str, Any]:
    return {
        "service": service.name,
        "manager": service.manager,
        "state": service.summary,
        "enabled": service.enabled,
        "description": service.description,
        "pid": service.pid or None,
        "since": service.since,
        "ended": service.result,
        "log": service.log,
    }


def control_action(
    rules: CommandRules, clock: Clock, machine: Machine, service: str, action: ServiceAction, status: ToolHint
) -> Action:
    """The step that controls a service; `status` is the tool that shows it later."""
    transport = machine.transport
    name = names.require_service(service, transport.system)
    require_service_allowed(rules, transport, name, action)

    async def perform(context: StepContext) -> ActionResult:
        before, after = await services.control(transport, clock, name, action, wait=context.wait)
        later = Advice("It is still working on it", status(service=after.name))
        return ActionResult(
            _describe_change(before, after), running=after.busy, next_step=later if after.busy else None
        )

    summary = f"{action.capitalize()} the service {name}"
    return machine_action(machine, summary, f"{transport.description}: {action} service {name}", perform)


def require_service_allowed(rules: CommandRules, transport: Transport, name: str, action: str) -> None:
    """Refuse what the operator's command patterns forbid; controlling a service counts as a command."""
    line = ("powershell", f"{action.capitalize()}-Service {name}") if transport.system == "windows" else (
        "systemctl", action, name.removesuffix(".service"),
    )  # fmt: skip
    if objection := rules.objection(line):
        raise objection


def _describe_change(before: Service, after: Service) -> dict[str, Any]:
    return {
        "service": after.name,
        "before": before.summary,
        "now": after.summary,
        "enabled": after.enabled,
        **({"pid": after.pid} if after.pid else {}),
    }
