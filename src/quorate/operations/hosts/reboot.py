"""Restarting hosts, and waiting until they are back."""

from __future__ import annotations

from quorate.hints import HOST_STATUS, Advice
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.inside.restart import read_boot_id, restart, wait_until_back
from quorate.operations.hosts.parameters import HostRefs
from quorate.operations.hosts.several import plan_each
from quorate.operations.machine import machine_action, machine_label
from quorate.operations.plan import Action, ActionResult, Plan, StepContext
from quorate.operations.registry import Risk, operation
from quorate.operations.units import duration
from quorate.problems import Conflict


@operation(
    risk=Risk.CHANGE,
    idempotent=False,
    shown_by=("host_status", "host"),
    search_words="reboot restart host server raspberry pi nas over ssh after kernel update wait until it is back",
    example="host=nas dry_run=true",
)
async def host_reboot(homelab: Homelab, host: HostRefs) -> Plan:
    """Restart hosts and wait until they answer again, up to `wait`."""

    async def prepare(one: Machine) -> Action:
        rooted = one.with_root()
        before = await read_boot_id(one.transport)
        if objection := homelab.command_rules.objection(("reboot",)):
            raise objection

        async def perform(context: StepContext) -> ActionResult:
            if await read_boot_id(one.transport) != before:
                raise Conflict(
                    f"{machine_label(one)} was restarted in the meantime",
                    next_step="Nothing was done; look again first",
                )
            await restart(rooted.transport)
            if one.target is not None and one.ssh is not None:
                one.ssh.pool.disconnect(one.target)  # a dead connection would go unnoticed until it times out
            spent = await wait_until_back(one.transport, before, homelab.clock, context.wait)
            if spent is not None:
                return ActionResult({"back_after": duration(spent)})
            later = Advice("It has not answered yet; see whether it is back", HOST_STATUS(host=one.name))
            return ActionResult({"back_after": "not yet"}, running=True, next_step=later)

        label = machine_label(one)
        return machine_action(one, f"Restart {label}", f"{one.transport.description}: reboot", perform)

    return await plan_each(homelab, host, "Restart", prepare, ("back_after",))
