"""Software-defined networks: zones, vnets and subnets. Edits are pending until they are applied on all nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, tools
from quorate.operations.arguments import refuse_misplaced
from quorate.operations.exemptions import SDN_EDIT
from quorate.operations.plan import Call, Plan, Target, create_or_change, find_stored
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, Conflict, NotFound
from quorate.pve.cluster import Cluster

COLUMNS = ("kind", "name", "in", "type", "state", "settings", "pending")
ROOT = "/cluster/sdn"
PENDING_SHOWN = 200
NEXT = Advice("The change is pending; apply it on all nodes", tools.network_apply(of="sdn"))

Kind = Literal["zone", "vnet", "subnet"]
_BELONGS_TO = {
    "type": ("zone",),
    "zone": ("vnet",),
    "vnet": ("subnet",),
    "tag": ("zone", "vnet"),
    "gateway": ("subnet",),
}
_BOOKKEEPING = {"digest", "state", "pending", "type", "zone", "vnet", "subnet", "network", "mask", "cidr"}


async def objects(pve: Cluster, kind: str | None, *, limit: int, offset: int) -> Table:
    """Zones, vnets and subnets; state shows which edits are pending."""
    rows = await _rows(pve, kind)
    table = page(COLUMNS, rows, limit=limit, offset=offset)
    if any(row[4] for row in rows):
        can_roll_back = (await pve.facts()).find("POST", f"{ROOT}/rollback") is not None
        rollback = [tools.api_call(method="POST", path=f"{ROOT}/rollback")] if can_roll_back else []
        text = "Apply the edits, or roll them back" if rollback else "Apply the edits"
        table.facts["next"] = Advice(text, tools.network_apply(of="sdn"), *rollback)
    return table


async def _rows(pve: Cluster, kind: str | None = None) -> list[list[Any]]:
    rows: list[list[Any]] = []
    vnets = await pve.get(f"{ROOT}/vnets", pending=1)
    if kind in (None, "zone"):
        rows += [_row("zone", row["zone"], "", row) for row in await pve.get(f"{ROOT}/zones", pending=1)]
    if kind in (None, "vnet"):
        rows += [_row("vnet", row["vnet"], _current_or_pending(row, "zone"), row) for row in vnets]
    if kind in (None, "subnet"):
        for vnet in (row["vnet"] for row in vnets if row.get("state") != "deleted"):
            subnets = await pve.get(f"{ROOT}/vnets/{vnet}/subnets", pending=1)
            rows += [_row("subnet", row.get("cidr") or row["subnet"], vnet, row) for row in subnets]
    return rows


def _row(kind: str, name: str, inside: str, row: Mapping[str, Any]) -> list[Any]:
    settings = {key: value for key, value in row.items() if key not in _BOOKKEEPING and value not in (None, "", [])}
    return [kind, name, inside, row.get("type", ""), row.get("state", ""), _words(settings), _words(row.get("pending"))]


def _words(settings: Any) -> str:
    return " ".join(f"{key}={value}" for key, value in (settings or {}).items())


def _current_or_pending(row: Mapping[str, Any], key: str) -> str:
    return str(row.get(key) or (row.get("pending") or {}).get(key, ""))


@operation(
    toolset="network",
    risk=Risk.CHANGE,
    idempotent=True,
    exemptions=(SDN_EDIT,),
    search_words="vnet zone subnet vxlan evpn create software defined network isolated",
    example="action=set kind=zone name=lab type=simple",
)
async def sdn_change(
    pve: Cluster,
    action: Annotated[Literal["set", "delete"], Meta(description="set: create or change")],
    kind: Kind,
    name: Annotated[
        str, Meta(description="Zone or vnet (at most 8 letters and digits), or subnet such as 10.0.0.0/24")
    ],
    type: Annotated[Literal["simple", "vlan", "qinq", "vxlan", "evpn"], Meta(description="Of a new zone")]
    | None = None,
    zone: Annotated[str, Meta(description="Of a vnet")] | None = None,
    vnet: Annotated[str, Meta(description="Of a subnet")] | None = None,
    tag: Annotated[int, Meta(description="VLAN or VXLAN id of a vnet")] | None = None,
    gateway: Annotated[str, Meta(description="Of a subnet")] | None = None,
    options: Annotated[
        dict[str, str | int | bool | list[str]],
        Meta(description="Further PVE options: bridge, nodes, mtu, peers, alias, snat, dhcp-range…"),
    ]
    | None = None,
    remove: Annotated[list[str], Meta(description="Options to remove")] | None = None,
) -> Plan:
    """Create, change or delete an SDN zone, vnet or subnet. Edits are pending until network_apply."""
    if action == "delete":
        return await _delete(pve, kind, name, vnet)
    requested = {"zone": zone, "tag": tag, "gateway": gateway}
    settings = {key: value for key, value in requested.items() if value is not None} | (options or {})
    refuse_misplaced("kind", kind, {"type": type, **requested, "vnet": vnet}, _BELONGS_TO)
    if kind == "subnet":
        return await _set_subnet(pve, name, vnet, settings, remove or [])
    stored = await find_stored(pve, f"{ROOT}/{kind}s", **{kind: name})
    if stored is None and kind == "zone" and type is None:
        raise BadArgument(
            f"There is no zone {name!r} yet, so its type is needed",
            next_step=Advice("Give {type}", type="simple or vlan"),
        )
    if stored is None and kind == "vnet":
        await _refuse_unknown_zone(pve, name, zone)
    new = {kind: name, "type": type}
    return await _set(pve, stored, (f"{ROOT}/{kind}s", name), Target(kind, name), new, settings, remove or [])


async def _set_subnet(pve: Cluster, cidr: str, vnet: str | None, settings: dict[str, Any], remove: list[str]) -> Plan:
    if vnet is None:
        raise BadArgument(
            "A subnet needs its vnet", next_step=Advice("Give {vnet}", tools.network_list(of="sdn"), vnet="")
        )
    stored = await _find_subnet(pve, vnet, cidr)
    place = f"{ROOT}/vnets/{vnet}/subnets", stored["subnet"] if stored else cidr
    new = {"subnet": cidr, "type": "subnet"}
    return await _set(pve, stored, place, Target("subnet", cidr), new, settings, remove)


async def _set(
    pve: Cluster,
    stored: Mapping[str, Any] | None,
    place: tuple[str, str],
    target: Target,
    new: Mapping[str, Any],
    settings: dict[str, Any],
    remove: list[str],
) -> Plan:
    """`place` is the collection and the id in it; `new` is what only a new object takes."""
    collection, name = place
    removal = {"delete": ",".join(remove)} if remove else {}
    if stored is not None and not settings and not removal:
        raise BadArgument(
            f"No changes to {target} were specified",
            next_step=Advice("Give {tag}, {gateway} or {options}", tag=NAMED, gateway=NAMED, options=NAMED),
        )
    edit = await create_or_change(
        pve,
        stored,
        Call(f"Prepare the new {target}", "POST", collection, {**new, **settings}, target),
        Call(f"Prepare the change of {target}", "PUT", f"{collection}/{name}", {**settings, **removal}, target),
    )
    return edit.plan(f"{target} already has these settings", next_step=NEXT)


async def _delete(pve: Cluster, kind: str, name: str, vnet: str | None) -> Plan:
    summary = f"Prepare the removal of {kind} {name}"
    if kind == "subnet" and vnet is None:
        raise BadArgument(
            "A subnet needs its vnet", next_step=Advice("Give {vnet}", tools.network_list(of="sdn"), vnet="")
        )
    if kind == "subnet":
        stored: Mapping[str, Any] | None = await _find_subnet(pve, str(vnet), name)
        path = f"{ROOT}/vnets/{vnet}/subnets/{stored['subnet'] if stored else name}"
    else:
        stored = await find_stored(pve, f"{ROOT}/{kind}s", **{kind: name})
        path = f"{ROOT}/{kind}s/{name}"
    if stored is None:
        return Plan(summary, unchanged=(f"There is no {kind} {name}",))
    await _refuse_used(pve, kind, name)
    return Plan(summary, (Call(summary, "DELETE", path, {}, Target(kind, name)),), next_step=NEXT)


async def apply(pve: Cluster) -> Plan:
    """Apply the pending edits. Every node reloads its network, its own pending edits included."""
    summary = "Apply the SDN configuration on all nodes"
    pending = [line for row in await _rows(pve) if (line := _change_line(dict(zip(COLUMNS, row, strict=True))))]
    if not pending:
        return Plan(summary, unchanged=("No SDN edits of zones, vnets or subnets are pending",))
    warnings = []
    for node in await pve.inventory.of_type("node"):
        if node.status != "online":
            warnings.append(f"Node {node.node} is {node.status} and gets it only when it is back")
        elif (await pve.client.request("GET", f"/nodes/{node.node}/network")).changes:
            warnings.append(f"Pending edits of the network of {node.node} will also be applied by this")
    call = Call(summary, "PUT", ROOT, {}, Target("sdn", "cluster"))
    more = [f"… and {len(pending) - PENDING_SHOWN} more"] if len(pending) > PENDING_SHOWN else []
    return Plan(summary, (call,), facts={"pending": pending[:PENDING_SHOWN] + more}, warnings=tuple(warnings))


def _change_line(row: Mapping[str, Any]) -> str:
    state = row.get("state")
    return f"{state} {row['kind']} {row['name']} {row.get('pending') or ''}".strip() if state else ""


# -- looking things up and refusing ------------------------------------------------------------------------------------


async def _find_subnet(pve: Cluster, vnet: str, cidr: str) -> dict[str, Any] | None:
    if vnet not in (known := sorted(row["vnet"] for row in await pve.get(f"{ROOT}/vnets"))):
        raise NotFound(f"There is no vnet {vnet!r}", next_step=f"There is {', '.join(known) or 'none'}")
    rows = await pve.get(f"{ROOT}/vnets/{vnet}/subnets")
    return next((row for row in rows if cidr in (row.get("cidr"), row["subnet"])), None)


async def _refuse_unknown_zone(pve: Cluster, vnet: str, zone: str | None) -> None:
    zones = sorted(row["zone"] for row in await pve.get(f"{ROOT}/zones"))
    choices = (
        Advice(f"There is {', '.join(zones)}") if zones else Advice("Create one first", tools.sdn_change(kind="zone"))
    )
    if zone is None:
        raise BadArgument(f"The new vnet {vnet} needs its zone", next_step=choices)
    if zone not in zones:
        raise NotFound(f"There is no zone {zone!r}", next_step=choices)


async def _refuse_used(pve: Cluster, kind: str, name: str) -> None:
    if kind == "zone":
        users = [row["vnet"] for row in await pve.get(f"{ROOT}/vnets") if row.get("zone") == name]
    elif kind == "vnet":
        users = [row.get("cidr") or row["subnet"] for row in await pve.get(f"{ROOT}/vnets/{name}/subnets")]
    else:
        return
    if users:
        what = "vnet" if kind == "zone" else "subnet"
        raise Conflict(
            f"The {kind} {name} still has {what}s: {', '.join(users)}",
            next_step=Advice("Delete them first with {kind}", kind=what),
        )
