"""What a clone gets that its source does not have: size, network card, cloud-init, tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quorate.hints import NAMED, Advice, Sentence, Wording, tools
from quorate.operations.placement import pick_bridge
from quorate.operations.plan import Call, Target
from quorate.operations.preconditions import data_volumes
from quorate.problems import BadArgument, NotFound
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.tools.new_guest_devices import CREDENTIALS, cloudinit_options
from quorate.tools.new_guests import (
    MEBIBYTE,
    NOBODY_CAN_LOG_IN,
    Amount,
    complete_login,
    complete_tags,
    grow_call,
    guest_path,
    mebibytes,
    tag_list,
)
from quorate.units import parse_size, size

_ADDRESSES = frozenset(["ip", "gateway", "ip6", "gateway6", "ipconfig0"])


@dataclass(frozen=True, slots=True)
class Changes:
    """What the caller wants to be different; None leaves it as in the source."""

    tags: list[str] | None
    cores: int | None
    memory: Amount | None
    disk: str | None
    bridge: str | None
    vlan: int | None
    cloud_init: Mapping[str, Any] | None
    needs_agent: bool
    """Something waits for the agent, so PVE must be connected to it."""


@dataclass(frozen=True, slots=True)
class PreparedChanges:
    """The calls that follow the clone, once its vmid is known."""

    settings: Mapping[str, Any]
    unset: str | None
    boot_disk: str
    grow_to: int | None
    memory: int
    """In bytes; 0 if it stays."""
    chosen: Mapping[str, Any]
    warnings: tuple[str | Wording, ...]

    def calls(self, clone: Target) -> list[Call]:
        calls = []
        params = {**self.settings, **({"delete": self.unset} if self.unset else {})}
        if params:
            names = ", ".join([*self.settings, *([self.unset] if self.unset else [])])
            calls.append(Call(f"Set {names} of {clone}", "PUT", f"{guest_path(clone)}/config", params, clone))
        if self.grow_to is not None:
            calls.append(grow_call(clone, self.boot_disk, self.grow_to))
        return calls


async def prepare(
    pve: Cluster, source: Guest, config: Mapping[str, Any], node: str, changes: Changes
) -> PreparedChanges:
    """Check the changes against the source, and complete them from the operator's defaults."""
    tags, chosen = (changes.tags, {}) if config.get("tags") else complete_tags(pve, changes.tags)
    memory = None if changes.memory is None else mebibytes("memory", changes.memory)
    first_boot = _FirstBoot({}, {}, ())
    if source.is_vm:
        first_boot = _first_boot(pve, source, config, changes.cloud_init)
    elif changes.cloud_init is not None:
        raise BadArgument(
            Sentence(f"{source} is a container, so {{cloud_init}} does not apply", cloud_init=NAMED),
            next_step=Advice("Set the addresses of the clone afterwards", tools.nic_set),
        )
    settings: dict[str, Any] = {
        "cores": changes.cores,
        "memory": memory,
        "tags": tag_list(tags),
        **({"agent": 1} if changes.needs_agent and not values.agent_enabled(config.get("agent")) else {}),
        **await _card(pve, source, config, node, changes),
        **first_boot.options,
    }
    boot_disk = values.boot_disk(config, is_vm=source.is_vm) or ""
    return PreparedChanges(
        {key: value for key, value in settings.items() if value is not None},
        "tags" if tags == [] and config.get("tags") else None,
        boot_disk,
        _growth(source, config, boot_disk, changes.disk),
        (memory or 0) * MEBIBYTE,
        {**chosen, **first_boot.chosen, **({"agent": True} if "agent" in settings else {})},
        first_boot.warnings,
    )


def _growth(source: Guest, config: Mapping[str, Any], boot_disk: str, requested: str | None) -> int | None:
    """The new size of the boot disk; None if it stays."""
    if requested is None:
        return None
    current = next((volume.size for volume in data_volumes(dict(config)) if volume.key == boot_disk), 0)
    whole = parse_size(requested, unit="G")
    if not current:
        raise NotFound(f"{source} has no boot disk whose size is known", next_step="Grow the disk of the clone instead")
    if whole < current:
        raise BadArgument(
            f"{boot_disk} of {source} has {size(current)}, and a disk cannot shrink to {size(whole)}",
            next_step=Advice("Leave out {disk}, or give more", disk=NAMED),
        )
    return whole if whole > current else None


async def _card(pve: Cluster, source: Guest, config: Mapping[str, Any], node: str, changes: Changes) -> dict[str, str]:
    """The first network card on the requested bridge and VLAN, with a new MAC address."""
    if changes.bridge is None and changes.vlan is None:
        return {}
    if "net0" not in config:
        raise NotFound(f"{source} has no network card net0", next_step=Advice("Add one to the clone", tools.nic_set))
    text = str(config["net0"])
    parts = values.parse_nic(text) if source.is_vm else values.parse(text)
    parts = {key: value for key, value in parts.items() if key not in ("macaddr", "hwaddr")}
    if changes.bridge is not None:
        parts["bridge"] = await pick_bridge(pve, node, changes.bridge)
    if changes.vlan is not None:
        parts["tag"] = str(changes.vlan)
    return {"net0": values.build_nic(parts) if source.is_vm else values.build(parts)}


@dataclass(frozen=True, slots=True)
class _FirstBoot:
    options: Mapping[str, Any]
    chosen: Mapping[str, Any]
    warnings: tuple[str | Wording, ...]


def _first_boot(
    pve: Cluster, source: Guest, config: Mapping[str, Any], requested: Mapping[str, Any] | None
) -> _FirstBoot:
    """Cloud-init of the clone: what was requested, the operator's login if the source has none, the rest as it is."""
    if not any(values.is_cloudinit(str(value)) for value in config.values()):
        if requested is None:
            return _FirstBoot({}, {}, ())
        raise BadArgument(
            Sentence(f"{source} has no cloud-init drive, so {{cloud_init}} has no effect", cloud_init=NAMED),
            next_step=Advice("Give the source a drive first", tools.cloudinit_set(guest=source.vmid)),
        )
    inherits = bool(CREDENTIALS & config.keys())
    request = dict(requested or {})
    keeps = {
        *(["ssh_keys"] if inherits else []),
        *(["user"] if inherits or "ciuser" in config else []),
        *(["dns"] if "nameserver" in config else []),
    }
    login = complete_login(pve, request, keeps=keeps)
    options = cloudinit_options(login.settings) if login.settings else {}
    if not _ADDRESSES & request.keys() and "ipconfig0" in config:
        options.pop("ipconfig0", None)
    locked_out = not inherits and not CREDENTIALS & options.keys()
    return _FirstBoot(options, login.chosen, (NOBODY_CAN_LOG_IN,) if locked_out else ())
