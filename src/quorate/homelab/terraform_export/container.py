"""A container as a resource proxmox_virtual_environment_container."""

from __future__ import annotations

from collections.abc import Mapping

from quorate.homelab.terraform_export.hcl import Block, Reference
from quorate.homelab.terraform_export.parts import RemainingConfig, dns, ip_config, startup, tags, volume
from quorate.pve.inventory import Resource

CONTAINER = "proxmox_virtual_environment_container"
UNKNOWN_TEMPLATE = "local:vztmpl/unknown.tar.zst"
"""The provider requires one, but PVE does not record it. Changes of it are ignored."""


def container(name: str, row: Resource, config: Mapping[str, object]) -> Block:
    left = RemainingConfig({key: value for key, value in config.items() if key != "lxc"})
    block = Block("resource", (CONTAINER, name))
    block.set(
        node_name=row.node, vm_id=row.vmid, description=left.text("description"), tags=tags(left),
        pool_id=row.pool or None, template=True if row.template else None, started=row.status == "running",
        start_on_boot=left.flag("onboot") or False, unprivileged=left.flag("unprivileged") or False,
        protection=left.flag("protection"), hook_script_file_id=left.text("hookscript"),
    )  # fmt: skip
    block.put(
        _processor(left),
        Block("memory").set(dedicated=left.number("memory"), swap=left.number("swap")),
        Block("operating_system").set(type=left.text("ostype"), template_file_id=UNKNOWN_TEMPLATE),
        startup(left), _features(left), _console(left), _root(left),
        *(_mount(key, text) for key, text in left.take_numbered("mp")),
        *(_device(key, text) for key, text in left.take_numbered("dev")),
        *_network(left),
    )  # fmt: skip
    left.tell(block)
    if config.get("lxc"):
        block.remark("not expressed here: raw lxc settings of the container")
    return block.put(Block("lifecycle").set(prevent_destroy=True, ignore_changes=[Reference("operating_system")]))


def _processor(left: RemainingConfig) -> Block:
    cores = left.number("cores")
    block = Block("cpu").set(architecture=left.text("arch"), cores=cores, units=left.number("cpuunits"))
    return block if cores else block.remark("it may use all cores of its node here; the provider would allow it one")


def _features(left: RemainingConfig) -> Block:
    own = RemainingConfig.of("features", left.text("features") or "")
    mounts = [one for one in (own.text("mount") or "").split(";") if one]
    block = Block("features").set(
        nesting=own.flag("nesting"), fuse=own.flag("fuse"), keyctl=own.flag("keyctl"), mount=mounts or None
    )
    own.tell(block)
    return block


def _console(left: RemainingConfig) -> Block:
    return Block("console").set(enabled=left.flag("console"), type=left.text("cmode"), tty_count=left.number("tty"))


def _root(left: RemainingConfig) -> Block | str | None:
    text = left.text("rootfs")
    if text is None:
        return None
    own = RemainingConfig.of("rootfs", text, "volume")
    place, size = volume(own.text("volume") or ""), own.gigabytes()
    if place is None or size is None:
        return f"not expressed here: rootfs = {text}"
    block = Block("disk").set(datastore_id=place[0], size=size)
    own.tell(block)
    return block


def _mount(key: str, text: str) -> Block:
    own = RemainingConfig.of(key, text, "volume")
    options = [one for one in (own.text("mountoptions") or "").split(";") if one]
    block = Block("mount_point").set(
        volume=own.text("volume"), path=own.text("mp"), size=own.text("size"), acl=own.flag("acl"),
        backup=own.flag("backup"), quota=own.flag("quota"), read_only=own.flag("ro"), replicate=own.flag("replicate"),
        shared=own.flag("shared"), mount_options=options or None,
    )  # fmt: skip
    own.tell(block)
    return block


def _device(key: str, text: str) -> Block:
    own = RemainingConfig.of(key, text, "path")
    block = Block("device_passthrough").set(
        path=own.text("path"), uid=own.number("uid"), gid=own.number("gid"), mode=own.text("mode"),
        deny_write=own.flag("deny-write"),
    )  # fmt: skip
    own.tell(block)
    return block


def _network(left: RemainingConfig) -> list[Block]:
    """Network cards, and settings inside the container: addresses are in the order of the cards."""
    inside = Block("initialization").set(hostname=left.text("hostname")).put(dns(left))
    cards = []
    for position, (key, text) in enumerate(left.take_numbered("net")):
        own, card = RemainingConfig.of(key, text), Block("network_interface")
        if key != f"net{position}":
            card.remark(f"it is {key} here; the provider numbers cards without gaps")
        own.text("type")
        card.set(
            name=own.text("name"), bridge=own.text("bridge"), mac_address=own.text("hwaddr"),
            vlan_id=own.number("tag"), firewall=own.flag("firewall"), mtu=own.number("mtu"),
            rate_limit=own.decimal("rate"),
        )  # fmt: skip
        inside.parts.append(ip_config(own))
        own.tell(card)
        cards.append(card)
    return [*cards, inside]
