"""Making containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from msgspec import Meta

from quorate.operations.plan import Call, Plan, Target
from quorate.operations.provision.container_templates import Template, find_template
from quorate.operations.provision.guest_files import Library, matching
from quorate.operations.provision.new_cloudinit import public_keys
from quorate.operations.provision.new_disks import DiskWish, chosen_storage, mount, parse_disk, place_disks
from quorate.operations.provision.new_guests import (
    MEBIBYTE,
    Amount,
    Parts,
    check_name,
    check_pool,
    check_rights,
    extra_options,
    facts_after,
    first_fitting,
    free_vmid,
    mebibytes,
    namesake_warning,
    next_call,
    possible_nodes,
    start_call,
    tag_list,
)
from quorate.operations.provision.new_networks import (
    Card,
    chosen_bridge,
    connect,
    container_card,
    name_servers,
    parse_cards,
)
from quorate.operations.registry import Risk, operation
from quorate.operations.root_only import refuse_root_only
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument, PermissionMissing

ROOT = "8G"


@dataclass(frozen=True, slots=True)
class _Wish:
    """What the caller asks for, checked as far as it can be without a node."""

    template: str
    settings: Mapping[str, Any]
    root: DiskWish
    mounts: list[DiskWish]
    cards: list[Card]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Draft:
    """The container on its node, with everything but its number."""

    node: str
    template: Template
    params: Mapping[str, Any]
    storages: tuple[str, ...]
    chosen: Mapping[str, Any]
    warnings: tuple[str, ...]


@operation(risk=Risk.CHANGE)
async def container_create(
    pve: Cluster,
    template: Annotated[str, Meta(description="File name, part of it, or volid; downloaded if missing")],
    hostname: str | None = None,
    node: str | None = None,
    vmid: int | None = None,
    cores: int = 1,
    memory: Annotated[Amount, Meta(description="1G, or MiB")] = 512,
    swap: Amount | None = None,
    rootfs: Annotated[str, Meta(description="8G or local-lvm:8G")] = ROOT,
    storage: Annotated[str, Meta(description="Default for disks")] | None = None,
    mounts: Annotated[Parts, Meta(description="local-lvm:8G,mp=/data or {size,storage,path,ro,backup}")] | None = None,
    networks: Annotated[
        Parts,
        Meta(description="vmbr0,ip=10.0.0.5/24,gw=10.0.0.1 or {bridge,ip,gateway,ip6,gateway6,tag,firewall}; DHCP"),
    ]
    | None = None,
    dns: str | None = None,
    search_domain: str | None = None,
    password: str | None = None,
    ssh_keys: list[str] | None = None,
    features: Annotated[str, Meta(description="nesting=1,keyctl=1")] | None = None,
    unprivileged: bool = True,
    tags: list[str] | None = None,
    pool: str | None = None,
    description: str | None = None,
    onboot: bool | None = None,
    options: Annotated[dict[str, Any], Meta(description="Other PVE options")] | None = None,
    start: bool = False,
) -> Plan:
    """Create a container. What is left out is chosen from the cluster and shown: vmid, node, storage, bridge."""
    check_name(hostname, "hostname")
    await check_pool(pve, pool)
    given: dict[str, Any] = {
        "hostname": hostname,
        "cores": cores,
        "memory": mebibytes("memory", memory),
        "swap": None if swap is None else mebibytes("swap", swap, least=0),
        "unprivileged": int(unprivileged),
        "features": _features(pve, features, unprivileged=unprivileged),
        "nameserver": name_servers(dns) if dns else None,
        "searchdomain": search_domain,
        "password": password,
        "ssh-public-keys": "\n".join(public_keys(ssh_keys)) if ssh_keys else None,
        "tags": tag_list(tags),
        "description": description,
        "onboot": None if onboot is None else int(onboot),
        "pool": pool,
    }
    settings = {key: value for key, value in given.items() if value is not None}
    endpoint = (await pve.facts()).endpoint("POST", "/nodes/{node}/lxc")
    settings |= extra_options(endpoint, options, settings)
    refuse_root_only(
        pve,
        settings,
        is_vm=False,
        before={"unprivileged": int(unprivileged)},
        way_out="Leave it out; when the container is there, `pct set VMID --{option} …` on its node does it",
    )
    wish = _Wish(
        template,
        settings,
        root=parse_disk(rootfs, storage),
        mounts=[_mount_wish(one, storage) for one in mounts or ()],
        cards=parse_cards(networks),
        warnings=(*await namesake_warning(pve, hostname), *_login_warning(settings)),
    )
    library = Library(pve)
    nodes = await possible_nodes(pve, node, memory=settings["memory"] * MEBIBYTE)
    draft = await _best_draft(pve, library, wish, nodes)
    return await _plan(pve, draft, vmid, start=start)


def _features(pve: Cluster, given: str | None, *, unprivileged: bool) -> str | None:
    """Nesting is what today's systemd needs; PVE lets only root@pam itself set the others."""
    if given is None:
        return "nesting=1" if unprivileged else None
    parts = {key: value for key, value in values.parse(given).items() if key}
    if bare := values.parse(given).get(""):
        raise BadArgument(f"The feature {bare!r} has no value", next_step=f"Write {bare}=1")
    if pve.client.identity != "root@pam" and (parts.keys() - {"nesting"} or not unprivileged):
        raise PermissionMissing(
            f"{pve.client.identity} may not set features={given}",
            why="PVE lets only root@pam itself, no token, set more than nesting of an unprivileged container",
            next_step="Create it without, then set them with `pct set` on the node",
        )
    return values.build(parts) or None


def _login_warning(settings: Mapping[str, Any]) -> list[str]:
    if "password" in settings or "ssh-public-keys" in settings:
        return []
    return ["Neither password nor ssh_keys is given: only `pct enter` on the node gets in"]


def _mount_wish(given: str | Mapping[str, Any], storage: str | None) -> DiskWish:
    """One mount point; `path` and PVE's `mp` both say where it goes."""
    if isinstance(given, Mapping):
        parts = {"mp" if key == "path" else str(key): value for key, value in given.items()}
        source = str(parts.get("volume", parts.get("storage", "")))
    else:
        parts, source = {}, given
    if source.startswith("/"):
        raise BadArgument(
            f"{source.partition(',')[0]} is a directory of the node, and mounts makes new volumes",
            why="PVE lets only root@pam itself, no token, mount directories of the node",
            next_step="Use `pct set` on the node afterwards, or a mount point on a storage",
        )
    wish = parse_disk(parts or source, storage)
    path = wish.more.get("mp", "")
    if not path.startswith("/") or ".." in path.split("/"):
        raise BadArgument(
            f"The mount point {given!r} does not say where it goes", next_step="Write local-lvm:8G,mp=/data"
        )
    return wish


async def _best_draft(pve: Cluster, library: Library, wish: _Wish, nodes: list[str]) -> _Draft:
    """On the best node that has the template, else on the best one that can download it."""
    holders = [node for node in nodes if matching(await library.on(node, "vztmpl"), wish.template)]
    return await first_fitting(holders or nodes, lambda place: _draft(pve, library, wish, place))


async def _draft(pve: Cluster, library: Library, wish: _Wish, node: str) -> _Draft:
    """Everything that depends on the node: template, storages, bridges."""
    template = await find_template(pve, library, node, wish.template)
    placed, warnings = await place_disks(pve, node, [wish.root, *wish.mounts], "rootdir", library)
    connected = await connect(pve, node, wish.cards)
    devices = {"rootfs": mount(placed[0]), **{f"mp{number}": mount(disk) for number, disk in enumerate(placed[1:])}}
    devices |= {f"net{number}": container_card(card, number) for number, card in enumerate(connected)}
    for key in devices:
        if key in wish.settings:
            raise BadArgument(f"{key!r} is given twice", next_step="Leave it out of options")
    return _Draft(
        node,
        template,
        {**wish.settings, **devices},
        tuple(disk.storage.storage for disk in placed),
        {"template": template.name, **chosen_storage(placed), **chosen_bridge(wish.cards, connected)},
        (*wish.warnings, *warnings),
    )


async def _plan(pve: Cluster, draft: _Draft, wanted: int | None, *, start: bool) -> Plan:
    vmid, number_warnings = await free_vmid(pve, wanted)
    target = Target("ct", str(vmid), str(draft.params.get("hostname", "")), draft.node)
    says = f"Create {target} on {draft.node}"
    await check_rights(pve, says[:1].lower() + says[1:], vmid, draft.params.get("pool"), draft.storages)
    template = draft.template

    async def with_another_number() -> Plan:
        return await _plan(pve, replace(draft, template=replace(template, missing=False)), None, start=start)

    params = {"vmid": vmid, "ostemplate": template.volid, **draft.params}
    calls = [
        *([template.download(pve, draft.node)] if template.missing else []),
        Call(says, "POST", f"/nodes/{draft.node}/lxc", params, target),
        *([start_call(pve, target)] if start else []),
    ]
    return Plan(
        says,
        tuple(calls),
        next_step=next_call(target, started=start),
        facts={"vmid": vmid, "node": draft.node, "chosen": draft.chosen},
        warnings=(*number_warnings, *draft.warnings),
        after=facts_after(pve, target),
        otherwise=with_another_number,
        contested=int(template.missing),
    )
