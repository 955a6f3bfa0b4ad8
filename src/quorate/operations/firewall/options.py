"""Switching firewalls on and off, and their other options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import FIREWALL_GET, NAMED, Advice, either
from quorate.operations.access.directory import unknown
from quorate.operations.firewall import lockout
from quorate.operations.firewall.rules import risk_of
from quorate.operations.firewall.scopes import Digest, FileScope, FirewallScope, Of, not_in_force, options_of, scope_of
from quorate.operations.plan import Call, Plan
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster

_NOT_OPTIONS = ("delete", "digest", "node", "vmid")

Policy = Literal["ACCEPT", "REJECT", "DROP"]


@operation(
    risk=Risk.DESTROY,
    risk_of=risk_of,
    least=Risk.CHANGE,
    search_words="switch firewall enable disable default policy drop incoming block everything",
    example="scope=guest of=docker01 enable=true",
)
async def firewall_options_set(
    pve: Cluster,
    scope: FileScope,
    of: Of | None = None,
    enable: bool | None = None,
    policy_in: Policy | None = None,
    policy_out: Policy | None = None,
    options: Annotated[dict[str, str | int | bool], Meta(description='Others, as PVE names them; "" unsets')]
    | None = None,
    digest: Annotated[Digest, Meta(description="options_digest of firewall_get: only if unchanged since")]
    | None = None,
) -> Plan:
    """Switch the firewall of the cluster, a node (both need access admin) or a guest on or off, or change its options.

    Before the nodes are affected, it checks who could still reach ports 8006 and 22.
    """
    firewall = await scope_of(pve, scope, of)
    wanted: dict[str, Any] = {"enable": enable, "policy_in": policy_in, "policy_out": policy_out, **(options or {})}
    wanted = {
        name: int(value) if isinstance(value, bool) else value for name, value in wanted.items() if value is not None
    }
    if not wanted:
        raise BadArgument(
            "No option was specified",
            next_step=either(Advice("Give {enable}", enable=NAMED), "a policy", Advice("{options}", options=NAMED)),
        )
    await _check_names(pve, firewall, wanted)
    now = await options_of(pve, firewall)
    present = now.pop("digest", "")
    if digest and digest != present:
        raise Conflict(
            f"The firewall options of {firewall.label} have changed since they were read",
            next_step=Advice("Read them again, then decide", FIREWALL_GET),
        )
    changed = {name: value for name, value in wanted.items() if not _same(now, name, value)}
    summary = (
        f"Set firewall options of {firewall.label}: {', '.join(f'{name}={value}' for name, value in wanted.items())}"
    )
    if not changed:
        return Plan(summary, unchanged=(f"the firewall of {firewall.label} already has these settings",))
    after = {name: value for name, value in (now | changed).items() if value != ""}
    return Plan(
        summary,
        (_call(firewall, summary, changed, present),),
        facts={"was": {name: now.get(name, "not set") for name in changed}},
        warnings=tuple(await _warnings(pve, firewall, changed, after)),
    )


async def _check_names(pve: Cluster, firewall: FirewallScope, wanted: Mapping[str, Any]) -> None:
    match = (await pve.facts()).find("PUT", f"{firewall.base}/options")
    assert match is not None, firewall.base
    known = [name for name in match.endpoint.parameters if name not in _NOT_OPTIONS]
    for name in wanted:
        if name not in known:
            raise unknown(f"{firewall.scope} firewall option", name, known)


def _same(now: Mapping[str, Any], name: str, value: Any) -> bool:
    if name == "enable":  # the cluster keeps the time at which it was switched on
        return bool(now.get(name)) == bool(value)
    return str(now.get(name, "")) == str(value)


def _call(firewall: FirewallScope, summary: str, changed: Mapping[str, Any], digest: str) -> Call:
    unset = [name for name, value in changed.items() if value == ""]
    params = {name: value for name, value in changed.items() if value != ""}
    params |= {"delete": ",".join(unset)} if unset else {}
    params |= {"digest": digest} if digest else {}
    return Call(summary, "PUT", f"{firewall.base}/options", params, firewall.target)


async def _warnings(
    pve: Cluster, firewall: FirewallScope, changed: Mapping[str, Any], after: dict[str, Any]
) -> list[str]:
    if firewall.scope == "guest":
        reasons = await not_in_force(pve, firewall, after) if after.get("enable") else []
        return [reason.removeprefix("no: ") for reason in reasons]
    if changed.get("enable") == 0:
        everywhere = " and of every node and guest" if firewall.scope == "cluster" else ""
        return [f"The firewall of {firewall.label}{everywhere} stops filtering at once"]
    if firewall.scope == "cluster":
        return await lockout.consequences(pve, lambda now: replace(now, options=after))
    return await lockout.consequences(
        pve, lambda now: replace(now, node_options={**now.node_options, firewall.target.id: after})
    )
