"""Creating containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence
from quorate.operations.placement import oversize_warnings
from quorate.operations.plan import Action, Call, Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, PermissionMissing
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.tools.guest_readiness import WaitFor, parse_goal
from quorate.tools.new_guest_devices import (
    Card,
    DiskSpec,
    chosen_bridge,
    chosen_storage,
    connect,
    container_card,
    mount,
    name_servers,
    parse_cards,
    parse_disk,
    place_disks,
    public_keys,
)
from quorate.tools.new_guests import (
    MEBIBYTE,
    Amount,
    CreationRequest,
    NewGuest,
    Parts,
    Pool,
    check_name,
    check_pool,
    complete_login,
    complete_tags,
    created_guest,
    creation_settings,
    guest_path,
    mebibytes,
    namesake_warning,
    risk_of_creation,
    tag_list,
)
from quorate.tools.oci_images import LATE, late_settings, parse_image
from quorate.tools.templates import Library, find_template, matching
from quorate.units import size

ROOT = "8G"
SWAP = size(512 * MEBIBYTE)
"""PVE's default for a container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request(CreationRequest):
    template: str
    disks: list[DiskSpec]
    """The first is the root file system, the others are mount points."""
    cards: list[Card]


@operation(
    toolset="provision",
    risk=Risk.CHANGE,
    risk_of=risk_of_creation,
    least=Risk.CHANGE,
    search_words="new lxc container ct make deploy spin up debian ubuntu alpine template docker oci image",
    example="template=debian-13-standard name=wiki memory=1G rootfs=8G",
)
async def container_create(
    pve: Cluster,
    template: Annotated[str, Meta(description="Name, part of it, volid or image nginx:1.29; downloaded")],
    name: str | None = None,
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
        Meta(
            description="vmbr0,ip=10.0.0.5/24,gw=10.0.0.1 or {bridge,ip,gateway,ip6,gateway6,tag,firewall}; else DHCP"
        ),
    ]
    | None = None,
    dns: str | None = None,
    search_domain: str | None = None,
    password: str | None = None,
    ssh_keys: list[str] | None = None,
    features: Annotated[str, Meta(description="nesting=1,keyctl=1")] | None = None,
    unprivileged: bool = True,
    tags: list[str] | None = None,
    pool: Pool | None = None,
    description: str | None = None,
    onboot: bool | None = None,
    options: Annotated[dict[str, Any], Meta(description="Other PVE options")] | None = None,
    start: bool = False,
    wait_for: WaitFor | None = None,
) -> Plan:
    """Create a container. Omitted settings are chosen and shown: vmid, node, storage, bridge, swap, nesting."""
    check_name(name)
    await check_pool(pve, pool)
    goal = parse_goal(wait_for, is_vm=False)
    login = complete_login(pve, {"password": password, "ssh_keys": ssh_keys, "dns": dns}, keeps={"user"})
    ssh_keys, dns = login.settings["ssh_keys"], login.settings["dns"]
    tags, chosen_tags = complete_tags(pve, tags)
    named: dict[str, Any] = {
        "hostname": name,
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
    settings = await creation_settings(pve, named, options, is_vm=False)
    request = _Request(
        settings=settings,
        node=node,
        vmid=vmid,
        start=start,
        wait_for=goal,
        template=template,
        disks=[parse_disk(rootfs, storage), *(_mount_spec(part, storage) for part in mounts or ())],
        cards=parse_cards(networks),
        warnings=tuple(await namesake_warning(pve, name)),
        chosen={
            **({"features": settings["features"]} if features is None and "features" in settings else {}),
            **({"swap": SWAP} if "swap" not in settings else {}),
            **login.chosen,
            **chosen_tags,
        },
    )
    library = Library(pve)
    create, prefers = partial(_new_guest, pve, library, request), partial(_has_template, library, template)
    return await request.plan(pve, create, prefers)


async def _has_template(library: Library, template: str, node: str) -> bool:
    image = parse_image(template)
    return bool(matching(await library.on(node, "vztmpl"), image.file_name if image and image.tag else template))


def _features(pve: Cluster, features: str | None, *, unprivileged: bool) -> str | None:
    """The features to set: systemd needs nesting; PVE lets only root@pam itself set the others."""
    if features is None:
        return "nesting=1" if unprivileged else None
    parts = {key: value for key, value in values.parse(features).items() if key}
    if bare := values.parse(features).get(""):
        raise BadArgument(f"The feature {bare!r} has no value", next_step=f"Write {bare}=1")
    if pve.client.identity != "root@pam" and (parts.keys() - {"nesting"} or not unprivileged):
        raise PermissionMissing(
            Sentence(f"{pve.client.identity} may not set {{features}}", features=features),
            why="PVE lets only root@pam itself, not a token, set features other than nesting of an unprivileged "
            "container",
            next_step="Create it without them, then set them with `pct set` on the node",
        )
    return values.build(parts) or None


def _login_warning(settings: Mapping[str, Any]) -> list[str]:
    if "password" in settings or "ssh-public-keys" in settings:
        return []
    return ["Neither a password nor an SSH key was specified: you can only log in with `pct enter` on the node"]


def _mount_spec(part: str | Mapping[str, Any], storage: str | None) -> DiskSpec:
    """A mount point; its path may be called `path`, or `mp` as PVE does."""
    if isinstance(part, Mapping):
        parts = {"mp" if key == "path" else str(key): value for key, value in part.items()}
        source = str(parts.get("volume", parts.get("storage", "")))
    else:
        parts, source = {}, part
    if source.startswith("/"):
        raise BadArgument(
            f"{source.partition(',')[0]} is a directory of the node, and mounts creates new volumes",
            why="PVE lets only root@pam itself, not a token, mount directories of the node",
            next_step="Use `pct set` on the node afterwards, or a mount point on a storage",
        )
    request = parse_disk(parts or source, storage)
    path = request.more.get("mp", "")
    if not path.startswith("/") or ".." in path.split("/"):
        raise BadArgument(f"The mount point {part!r} has no path", next_step="Write local-lvm:8G,mp=/data")
    return request


async def _new_guest(pve: Cluster, library: Library, request: _Request, node: str) -> NewGuest:
    """The container with everything that depends on the node: template, storages, bridges."""
    template = await find_template(pve, library, node, request.template)
    placed, warnings = await place_disks(pve, node, request.disks, "rootdir", library)
    connected = await connect(pve, node, request.cards)
    devices = {"rootfs": mount(placed[0]), **{f"mp{number}": mount(disk) for number, disk in enumerate(placed[1:])}}
    devices |= {f"net{number}": container_card(card, number) for number, card in enumerate(connected)}
    for key in devices:
        if key in request.settings:
            raise BadArgument(
                f"{key!r} is specified twice", next_step=Advice("Leave it out of {options}", options=NAMED)
            )
    chosen = {"template": template.name, **request.chosen, **chosen_storage(placed)}
    settings = request.settings
    late = {key: settings[key] for key in LATE if key in settings and template.is_image}

    def finish(made: Target) -> list[Call | Action]:
        step = late_settings(pve, made, f"{guest_path(made)}/config", late)
        return [] if step is None else [step]

    return created_guest(
        "ct",
        node,
        {"ostemplate": template.volid, **{key: settings[key] for key in settings if key not in late}, **devices},
        prepare=(template.download(node),) if template.missing else (),
        finish=finish,
        storages=tuple(disk.storage.storage for disk in placed),
        facts={"chosen": {**chosen, **chosen_bridge(request.cards, connected)}},
        warnings=(
            *request.warnings,
            *([] if template.is_image else _login_warning(settings)),
            *warnings,
            *await oversize_warnings(pve, node, request.memory),
        ),
    )
