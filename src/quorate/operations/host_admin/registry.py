"""Care of registered hosts: change the record of one, and try its login."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.hints import HOST_VERIFY, OMITTED, Advice, either
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host, validate_host
from quorate.homelab.machines import NO_KEY
from quorate.homelab.selection import SECONDS, Limits, gather_in_time, select_records
from quorate.homelab.verification import verify_host
from quorate.operations.hosts.parameters import HostName, HostNames, Key, Port, Reference
from quorate.operations.hosts.registry import SHOWN_AS, Labels, check_references, plan_save
from quorate.operations.hosts.several import join_answers, join_plans
from quorate.operations.plan import ActionResult, Plan, StepContext
from quorate.operations.registry import Risk, Table, operation
from quorate.problems import BadArgument, Problem
from quorate.pve.tasks import Report


@operation(
    risk=Risk.CHANGE,
    shown_by=("host_list", "host"),
    search_words="change host server new ip address moved port user key label rename display name deactivate",
    example="host=nas labels=role=nas labels=prod",
)
async def host_update(
    homelab: Homelab,
    host: HostNames,
    address: str | None = None,
    port: Port | None = None,
    user: str | None = None,
    key: Key | None = None,
    password: Reference | None = None,
    sudo_password: Reference | None = None,
    jump: HostName | None = None,
    labels: Labels | None = None,
    display_name: str | None = None,
    active: Annotated[bool, Meta(description="false keeps the record but does not use it")] | None = None,
) -> Plan:
    """Change the records of registered hosts. Omitted fields stay; an empty string clears a field."""
    chosen = await select_records(homelab, host, inactive=True)
    if address and len(chosen.hosts) > 1:
        raise BadArgument(
            "Several hosts cannot have the same address",
            next_step=either("Give one host", Advice("leave {address} out", address=OMITTED)),
        )
    if key and any(one.key != key for one in chosen.hosts):
        homelab.files.require(key, NO_KEY)
    given = {
        "address": address, "port": port, "user": user, "key": key, "password": password,
        "sudo_password": sudo_password, "jump": jump, "labels": None if labels is None else tuple(labels),
        "display_name": display_name, "active": active,
    }  # fmt: skip
    changes = {name: _clear_empty(name, value) for name, value in given.items() if value is not None}
    if not changes:
        raise BadArgument("No changes were specified", next_step="Give at least one of the fields")
    if not chosen.several:
        return await _update(homelab, chosen.hosts[0], changes)
    plans = await gather_in_time(chosen.hosts, lambda old: _update(homelab, old, changes))
    named = zip(map(str, chosen.hosts), plans, strict=True)
    return join_plans(f"Update {', '.join(changes)} of", named, chosen.failures, ("changed",))


async def _update(homelab: Homelab, old: Host, changes: dict[str, Any]) -> Plan:
    new = validate_host(msgspec.structs.replace(old, **changes))
    if new == old:
        return Plan(f"Update {old}", unchanged=(f"{old} already has these settings",))
    await check_references(homelab, new)

    async def perform(_: StepContext) -> ActionResult:
        await homelab.hosts.change(old.name, old, **changes)
        differing = [name for name in changes if getattr(old, name) != getattr(new, name)]
        return ActionResult(
            {"changed": {SHOWN_AS.get(name, name): [getattr(old, name), getattr(new, name)] for name in differing}},
            next_step=None if old.digest == new.digest else Advice("Try the login", HOST_VERIFY(host=old.name)),
        )

    return await plan_save(homelab, f"Update {old}: {', '.join(changes)}", new, perform)


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="test login can still log in ssh works reachable check credentials verify connection",
    example="host=nas",
)
async def host_verify(homelab: Homelab, host: HostNames, report: Report) -> dict[str, Any] | Table:
    """Log in to registered hosts and record whether it works: connection, host key, login, sudo."""
    chosen = await select_records(homelab, host)
    if not chosen.several:
        [only] = chosen.hosts
        return {"host": only.name, **await verify_host(homelab, only)}
    verify = partial(verify_host, homelab, knock_first=True)
    found = await gather_in_time(chosen.hosts, verify, Limits.same_for_each(SECONDS), report)
    named = zip(map(str, chosen.hosts), found, strict=True)
    answers = sorted(named, key=lambda pair: _works(pair[1]))
    table = join_answers(answers, chosen.failures)
    table.facts["failed"] = len(chosen.failures) + sum(not _works(answer) for _, answer in answers)
    return table


def _works(answer: dict[str, Any] | Table | Problem) -> bool:
    return isinstance(answer, dict) and bool(answer["verified"])


def _clear_empty(name: str, value: Any) -> Any:
    return None if value == "" and name in ("user", "key", "password", "sudo_password", "jump") else value
