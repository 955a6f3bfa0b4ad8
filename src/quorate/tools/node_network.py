"""The networks of a node: interfaces, pending edits, and applying or reverting them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence, see, tools
from quorate.operations.exemptions import INTERFACE_EDIT
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, NotFound
from quorate.pve.cluster import Cluster
from quorate.units import yes, yes_or_no

COLUMNS = ("iface", "type", "active", "autostart", "cidr", "gateway", "ports", "vlan", "mtu", "comment")
DIFF_SHOWN = 6000

_BRIDGES = ("bridge", "OVSBridge")
# Address and netmask are the same as the CIDR, and PVE refuses both at once.
_SPELLED_TWICE = {"address": "cidr", "netmask": "cidr", "address6": "cidr6", "netmask6": "cidr6"}

Options = Annotated[dict[str, str | int | bool], Meta(description="Further PVE options, such as bond_mode")]


async def interfaces(pve: Cluster, node: str, kind: str | None, *, limit: int, offset: int) -> Table:
    """The interfaces of a node as they will be, and the pending edits."""
    await pve.inventory.node(node)
    answer = await pve.client.request("GET", f"/nodes/{node}/network")
    shown = [row for row in answer.data if kind is None or row["type"] == kind or row["type"].lower() == f"ovs{kind}"]
    table = page(COLUMNS, (_row(row) for row in shown), limit=limit, offset=offset)
    if answer.changes:
        table.facts["pending"] = _cut(answer.changes)
        table.facts["next"] = _NEXT
    return table


def _row(row: Mapping[str, Any]) -> list[Any]:
    return [
        row["iface"],
        row["type"],
        yes_or_no(row.get("active")),
        yes(row.get("autostart")),
        " ".join(str(row[key]) for key in ("cidr", "cidr6") if row.get(key)),
        " ".join(str(row[key]) for key in ("gateway", "gateway6") if row.get(key)),
        row.get("bridge_ports") or row.get("slaves") or row.get("ovs_ports") or row.get("vlan-raw-device") or "",
        row.get("vlan-id") or ("aware" if row.get("bridge_vlan_aware") else ""),
        row.get("mtu", ""),
        str(row.get("comments", "")).strip(),
    ]


def _risk_of(arguments: Mapping[str, Any]) -> Risk:
    """A change, unless it drops all pending edits, including those of others."""
    return Risk.DESTROY if arguments["action"] == "revert" else Risk.CHANGE


@operation(
    toolset="network",
    risk=Risk.DESTROY,
    risk_of=_risk_of,
    least=Risk.CHANGE,
    exemptions=(INTERFACE_EDIT,),
    search_words="bridge vlan bond interface address node host create edit vmbr",
    example="node=pve1 action=set iface=vmbr9 type=bridge",
)
async def node_network_change(
    pve: Cluster,
    node: str,
    action: Annotated[
        Literal["set", "delete", "revert"],
        Meta(description="set: create or change an interface; revert: drop all pending edits; needs access admin"),
    ],
    iface: Annotated[str, Meta(description="Such as vmbr1, bond0, eno1.20")] | None = None,
    type: Literal["bridge", "bond", "eth", "vlan", "OVSBridge", "OVSBond", "OVSPort", "OVSIntPort"] | None = None,
    cidr: Annotated[str, Meta(description="Such as 10.0.0.2/24")] | None = None,
    gateway: str | None = None,
    ports: Annotated[list[str], Meta(description="Ports of a bridge or bond")] | None = None,
    vlan_aware: bool | None = None,
    mtu: int | None = None,
    autostart: bool | None = None,
    comment: str | None = None,
    options: Options | None = None,
    remove: Annotated[list[str], Meta(description="Options to remove, such as gateway")] | None = None,
) -> Plan:
    """Edit a node's interfaces. Edits are pending until network_apply."""
    await pve.inventory.online_node(node)
    arguments = {
        "cidr": cidr,
        "gateway": gateway,
        "bridge_vlan_aware": vlan_aware,
        "mtu": mtu,
        "autostart": autostart,
        "comments": comment,
    }
    edits = {key: value for key, value in arguments.items() if value is not None} | (options or {})
    if action == "revert":
        return await _revert(pve, node)
    if iface is None:
        raise BadArgument(
            Sentence("{action} needs {iface}", action=action, iface=NAMED),
            next_step=see("List the interfaces", tools.network_list(of="node", node=node)),
        )
    rows = {row["iface"]: row for row in await pve.get(f"/nodes/{node}/network")}
    if action == "delete":
        return _delete(pve, node, iface, rows)
    kind = type or (rows[iface]["type"] if iface in rows else None)
    if kind is None:
        raise BadArgument(
            f"{node} has no interface {iface!r} yet, so its type is needed",
            next_step=Advice("Give {type}", type="bridge"),
        )
    if ports is not None:
        edits[_ports_option(kind)] = " ".join(ports)
    if not edits and not remove and iface in rows:
        raise BadArgument(
            f"No changes to {iface} were specified",
            next_step=Advice("Give {cidr}, {ports}, {mtu} or other options", cidr=NAMED, ports=NAMED, mtu=NAMED),
        )
    return await _set(pve, node, iface, {"type": kind, **edits}, rows, remove or [])


async def _set(
    pve: Cluster, node: str, iface: str, edits: dict[str, Any], rows: Mapping[str, Any], remove: list[str]
) -> Plan:
    known = rows.get(iface)
    _refuse_missing_ports(node, edits, rows)
    if known is None:
        if remove:
            raise BadArgument(f"{iface} does not exist, so nothing can be removed from it")
        summary = f"Prepare the new {edits['type']} {iface} on {node}"
        params = {"iface": iface, **({"autostart": True} if edits["type"] in _BRIDGES else {}), **edits}
        return _plan(pve, node, summary, "POST", f"/nodes/{node}/network", params)
    kept = await _current_settings(pve, known, edits, remove)
    params = {**kept, **edits, **({"delete": ",".join(remove)} if remove else {})}
    summary = f"Prepare the change of {iface} on {node}"
    return _plan(pve, node, summary, "PUT", f"/nodes/{node}/network/{iface}", params)


async def _current_settings(
    pve: Cluster, known: Mapping[str, Any], edits: Mapping[str, Any], remove: list[str]
) -> dict[str, Any]:
    """The current settings, sent again: PVE drops an address that is not repeated."""
    given_otherwise = {_SPELLED_TWICE.get(key) for key in edits}
    accepted = (await pve.facts()).endpoint("PUT", "/nodes/{node}/network/{iface}").parameters
    return {
        key: value
        for key, value in known.items()
        if key in accepted
        and key not in ("iface", "node", *remove, *edits)
        and value != ""
        and not (_SPELLED_TWICE.get(key) in known or _SPELLED_TWICE.get(key) in edits)
        and key not in given_otherwise
    }


def _ports_option(kind: str) -> str:
    options = {"bridge": "bridge_ports", "bond": "slaves", "OVSBridge": "ovs_ports", "OVSBond": "ovs_bonds"}
    if kind not in options:
        raise BadArgument(f"A {kind} has no ports", next_step="Bridges and bonds have")
    return options[kind]


def _refuse_missing_ports(node: str, edits: Mapping[str, Any], rows: Mapping[str, Any]) -> None:
    """PVE accepts ports that do not exist, and the bridge then comes up without them."""
    for option in ("bridge_ports", "slaves"):
        for port in str(edits.get(option, "")).split():
            if port not in rows and port.partition(".")[0] not in rows:
                cards = ", ".join(sorted(name for name, row in rows.items() if row["type"] in ("eth", "bond")))
                raise BadArgument(f"{node} has no interface {port!r} to be a port", next_step=f"It has {cards}")


def _delete(pve: Cluster, node: str, iface: str, rows: Mapping[str, Any]) -> Plan:
    if iface not in rows:
        raise NotFound(f"{node} has no interface {iface!r}", next_step=f"It has {', '.join(sorted(rows))}")
    summary = f"Prepare the removal of {iface} on {node}"
    warnings = ("It carries the node's default gateway",) if rows[iface].get("gateway") else ()

    call = Call(summary, "DELETE", f"/nodes/{node}/network/{iface}", {}, Target("node", node, node=node))
    return Plan(summary, (call,), warnings=warnings, after=partial(_describe_pending, pve, node), next_step=_NEXT)


async def _revert(pve: Cluster, node: str) -> Plan:
    summary = f"Drop the pending network edits of {node}"
    pending = await _pending(pve, node)
    if not pending:
        return Plan(summary, unchanged=(f"No network edits are pending on {node}",))

    async def settled() -> bool:
        """PVE shows pending edits only next to the interfaces, which may look the same without them."""
        return not await _pending(pve, node)

    call = Call(summary, "DELETE", f"/nodes/{node}/network", {}, Target("node", node, node=node), settled=settled)
    return Plan(summary, (call,), facts={"dropped": _cut(pending)})


_NEXT = Advice(
    "The change is pending; apply it, or revert it",
    tools.network_apply(of="node"),
    tools.node_network_change(action="revert"),
)


def _plan(pve: Cluster, node: str, summary: str, method: str, path: str, params: Mapping[str, Any]) -> Plan:
    call = Call(summary, method, path, params, Target("node", node, node=node))
    return Plan(summary, (call,), after=partial(_describe_pending, pve, node), next_step=_NEXT)


async def _describe_pending(pve: Cluster, node: str) -> dict[str, Any]:
    return {"pending": _cut(await _pending(pve, node) or "")}


async def apply(pve: Cluster, node: str) -> Plan:
    """Apply the pending edits of a node."""
    row = await pve.inventory.online_node(node)
    summary = f"Apply the network edits of {node}"
    pending = await _pending(pve, node)
    if not pending:
        return Plan(summary, unchanged=(f"No network edits are pending on {node}",))
    running = [guest for guest in await pve.inventory.fresh_guests(node) if guest.status == "running"]
    warnings = [f"{len(running)} running guests of {node} may lose their network for a moment"] if running else []
    if _touches_addresses(pending):
        warnings.append(
            f"Addresses, gateways or ports of {row.node} change: if they are wrong, only its console remains reachable"
        )

    call = Call(summary, "PUT", f"/nodes/{node}/network", {}, Target("node", node, node=node))
    return Plan(summary, (call,), facts={"pending": _cut(pending)}, warnings=tuple(warnings))


def _touches_addresses(patch: str) -> bool:
    changed = [line[1:].strip() for line in patch.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return any(line.startswith(("address", "gateway", "bridge-ports", "bond-slaves")) for line in changed)


async def _pending(pve: Cluster, node: str) -> str | None:
    return (await pve.client.request("GET", f"/nodes/{node}/network")).changes


def _cut(patch: str) -> str:
    return patch if len(patch) <= DIFF_SHOWN else f"{patch[:DIFF_SHOWN]}\n… {len(patch) - DIFF_SHOWN} characters more"
