"""Guests exported to Terraform or OpenTofu, as they are now."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import NAMED, Advice
from quorate.homelab.hcl import Block, Names, Reference, render_blocks
from quorate.homelab.homelab import Homelab
from quorate.homelab.terraform_export import CONTAINER, VM, container, virtual_machine
from quorate.operations.registry import GuestRefs, Risk, operation
from quorate.problems import BadArgument, NotConfigured, Problem
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import gather_bounded
from quorate.tools.guests import Filter

ASKED_AT_ONCE = 8
PROVIDER = "bpg/proxmox"
OLDEST_PROVIDER = ">= 0.60.0"
OLDEST_TERRAFORM = ">= 1.5.0"
"""The first with import blocks."""
HEAD = """\
Guests of a Proxmox VE cluster as they are now; nothing here makes a new one.
prevent_destroy keeps them from being destroyed and recreated: remove it only where you want that."""


@operation(
    toolset="terraform",
    risk=Risk.READ,
    search_words="terraform opentofu tofu hcl export import existing guests vms containers as code bpg iac",
    example="guests=pihole",
)
async def terraform_export(
    homelab: Homelab,
    guests: Annotated[GuestRefs, Meta(description="Default: all that match")] | None = None,
    cluster: Annotated[str, Meta(description="Needed if there are several")] | None = None,
    node: str | None = None,
    tag: str | None = None,
    pool: str | None = None,
    limit: Annotated[int, Meta(ge=1, le=100)] = 20,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> dict[str, Any]:
    """Existing guests as Terraform resources of bpg/proxmox with import blocks. Without secrets."""
    pve = _cluster(homelab, cluster)
    chosen = await _select_guests(pve, guests, Filter(node=node, tag=tag, pool=pool))
    shown = chosen[offset : offset + limit]
    read = await gather_bounded(ASKED_AT_ONCE, [partial(_read_config, guest) for guest in shown])
    blocks, left_out = _blocks(chosen, offset, read)
    end = offset + len(shown)
    return {
        "cluster": pve.name,
        "guests": len(read) - len(left_out),
        "total": len(chosen),
        **({"next_offset": end} if end < len(chosen) else {}),
        **({"left_out": left_out} if left_out else {}),
        "content": render_blocks([*_head(), *blocks] if offset == 0 else blocks),
        "next": "Put it into a file NAME.tf, set PROXMOX_VE_ENDPOINT and PROXMOX_VE_API_TOKEN, then run "
        "`terraform plan`: it should import and change nothing. Fix what it would change before you apply",
    }


def _cluster(homelab: Homelab, name: str | None) -> Cluster:
    if not homelab.clusters:
        raise NotConfigured("No cluster is configured", next_step="`quorate init` sets one up")
    names = [each.name for each in homelab.clusters]
    if name is None and len(names) > 1:
        raise BadArgument(
            "Several clusters are configured", next_step=Advice(f"Give {{cluster}}: {', '.join(names)}", cluster=NAMED)
        )
    chosen = next((each for each in homelab.clusters if name in (None, each.name)), None)
    if chosen is None:
        raise BadArgument(f"There is no cluster {name!r}", next_step=f"Available: {', '.join(names)}")
    return chosen


async def _select_guests(pve: Cluster, refs: Any, fitting: Filter) -> list[Guest]:
    if refs is not None:
        named = await pve.guests(refs if isinstance(refs, list) else [refs])
        return sorted({guest.vmid: guest for guest in named}.values(), key=lambda guest: guest.vmid)
    return [Guest(pve, row) for row in sorted(await fitting.apply(pve), key=lambda row: row.vmid)]


async def _read_config(guest: Guest) -> tuple[Guest, dict[str, Any] | Problem]:
    try:
        return guest, await guest.get("config")
    except Problem as problem:
        return guest, problem


def _blocks(
    everyone: list[Guest], offset: int, read: list[tuple[Guest, dict[str, Any] | Problem]]
) -> tuple[list[Block | str], dict[str, str]]:
    """A resource and its import for each. Names are assigned in overall order, so that no page repeats one."""
    names = Names()
    named = {guest.vmid: names.fresh(guest.row.name, guest.vmid) for guest in everyone[: offset + len(read)]}
    blocks: list[Block | str] = []
    left_out = {}
    for guest, config in read:
        if isinstance(config, Problem):
            left_out[guest.label] = str(config)
            continue
        name, row = named[guest.vmid], guest.row
        kind, make = (VM, virtual_machine) if guest.is_vm else (CONTAINER, container)
        source = Block("import").set(to=Reference(f"{kind}.{name}"), id=f"{row.node}/{row.vmid}")
        blocks += [source, make(name, row, config)]
    return blocks, left_out


def _head() -> list[Block | str]:
    return [
        HEAD,
        Block("terraform")
        .set(required_version=OLDEST_TERRAFORM)
        .put(Block("required_providers").set(proxmox={"source": PROVIDER, "version": OLDEST_PROVIDER})),
        Block("provider", ("proxmox",)).remark("PROXMOX_VE_ENDPOINT and PROXMOX_VE_API_TOKEN say where and as whom"),
    ]
