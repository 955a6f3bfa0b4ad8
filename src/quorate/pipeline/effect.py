"""Risk by effect: a plan is as grave as the gravest call in it, whichever tool made it."""

from __future__ import annotations

from quorate.operations.api.risk import ORDER, judge
from quorate.operations.plan import Plan
from quorate.operations.registry import Operation, Risk
from quorate.pve.schema import Facts

MILDER = {
    ("cloudinit_set", "it may take the place of a disk"): "the drive goes to a free slot",
    ("disk_add", "it may take the place of a disk"): "only to a free slot",
    ("disk_change", "it may take the place of a disk"): "only to a free slot, or with other options to its own",
    ("disk_change", "delete: it takes a disk away"): "the volume stays, as an unused disk",
    ("disk_change", "delete: it deletes the source"): "the source goes when its copy is complete",
    ("guest_configure", "it may take the place of a disk"): "of the drives only the CD-ROM",
    ("ha_remove", "it deletes"): "the guest stays as it is, and can be put under HA again",
    ("nic_remove", "delete: it takes a device away"): "a network card holds no data",
    ("node_network_change", "it deletes"): "pending only; network_apply makes it so",
    ("sdn_change", "it deletes"): "pending only; network_apply makes it so",
    ("task_stop", "it deletes"): "it ends work that can be begun again",
}
"""Calls that a tool may make although they are graver than the tool, and why: what it checks, or how little it does.

Known by the tool and by the reason for which the call is grave; anything else that the tool plans is not excused.
"""


def effect(operation: Operation, risk: Risk, plan: Plan, facts: Facts | None) -> tuple[Risk, str]:
    """The risk of a plan and, where it is graver than the tool's own, the reason. Facts are there if it has calls."""
    gravest, why = risk, ""
    if plan.risk is not None and ORDER.index(plan.risk) > ORDER.index(gravest):
        gravest, why = plan.risk, plan.summary
    for call in plan.api_calls:
        match = facts.find(call.method, call.path) if facts else None
        if match is None:
            continue  # the check of the plan says so
        found, because = judge(call.method, match.endpoint.template, call.params)
        if ORDER.index(found) > ORDER.index(gravest) and (operation.name, because) not in MILDER:
            gravest, why = found, f"{call.method} {call.path}: {because}"
    return gravest, why
