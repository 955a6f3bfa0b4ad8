"""LXD's JSON, which Incus uses as well."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quorate.homelab.workloads.model import Mount, Port, Spec, Workload
from quorate.problems import BadArgument

_LISTEN = re.compile(r"(tcp|udp):(.*):(\d+)$")
_SHARE = re.compile(r"(\d+)ms/(\d+)ms$")
_BYTES = re.compile(r"(\d+)\s*([KMGT]i?)?B?$", re.I)
_FACTORS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4,
            "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}  # fmt: skip
SERVERS = {
    "lxd": {"images": "https://images.lxd.canonical.com", "ubuntu": "https://cloud-images.ubuntu.com/releases"},
    "incus": {"images": "https://images.linuxcontainers.org"},
}


def parse_instance(engine: str, row: Mapping[str, Any], state: Mapping[str, Any] | None = None) -> Workload:
    config = row.get("expanded_config") or row.get("config") or {}
    devices = row.get("expanded_devices") or row.get("devices") or {}
    memory = _BYTES.match(config.get("limits.memory", ""))
    return Workload(
        name=row["name"],
        engine=engine,
        id=str(config.get("volatile.uuid") or row.get("created_at", "")),
        state=str(row.get("status", "")).lower(),
        image=str(config.get("image.description") or config.get("volatile.base_image", "")[:12]),
        status="VM" if row.get("type") == "virtual-machine" else "",
        ports=tuple(port for one in devices.values() if one.get("type") == "proxy" and (port := _port(one))),
        mounts=tuple(
            Mount(one.get("source", ""), one["path"], one.get("readonly") == "true")
            for one in devices.values()
            if one.get("type") == "disk" and one.get("path", "/") != "/"
        ),
        addresses=_addresses(state or {}),
        memory=int(memory[1]) * _FACTORS[(memory[2] or "").lower()] if memory else None,
        cpus=_cpus(config),
        restart={"true": "always", "false": "no"}.get(config.get("boot.autostart", ""), "unless-stopped"),
        digest=str(config.get("volatile.base_image", "")),
        created=str(row.get("created_at", "")),
        started=""
        if str(row.get("last_used_at", "")).startswith(("0001", "1970"))
        else str(row.get("last_used_at", "")),
        env=tuple(name.removeprefix("environment.") for name in config if name.startswith("environment.")),
        labels={name.removeprefix("user."): value for name, value in config.items() if name.startswith("user.")},
    )


def create_request(spec: Spec, engine: str, pool: str) -> dict[str, Any]:
    """The request that creates the instance; named volumes are in `pool`."""
    config = {f"environment.{name}": value for name, value in spec.env.items()}
    config |= {f"user.{name}": value for name, value in spec.labels.items()}
    if spec.restart in ("always", "no"):  # otherwise it starts after a reboot if it ran before
        config["boot.autostart"] = "true" if spec.restart == "always" else "false"
    if spec.memory:
        config["limits.memory"] = f"{spec.memory}B"
    if spec.cpus:
        whole = spec.cpus == int(spec.cpus)
        config |= (
            {"limits.cpu": str(int(spec.cpus))}
            if whole
            else {"limits.cpu.allowance": f"{round(spec.cpus * 100)}ms/100ms"}
        )
    devices: dict[str, dict[str, str]] = {}
    for number, port in enumerate(spec.ports):
        at = f"[{port.address}]" if ":" in port.address else port.address or "0.0.0.0"  # noqa: S104 - as was asked for
        listen, connect = f"{port.protocol}:{at}:{port.outside}", f"{port.protocol}:127.0.0.1:{port.inside}"
        devices[f"port{number}"] = {"type": "proxy", "listen": listen, "connect": connect}
    for number, one in enumerate(spec.mounts):
        device = {"type": "disk", "source": one.source, "path": one.path, "readonly": str(one.read_only).lower()}
        devices[f"volume{number}"] = device if one.is_path else device | {"pool": pool}
    if spec.network:
        devices["eth0"] = {"type": "nic", "name": "eth0", "network": spec.network}
    return {
        "name": spec.name,
        "type": "container",
        "source": source(spec.image, engine),
        "config": config,
        "devices": devices,
    }


def source(image: str, engine: str) -> dict[str, str]:
    """Where an image comes from: `images:debian/12` from a public server, an alias from the host itself."""
    server = remote(image, engine)
    alias = image.rpartition(":")[2]
    if server is None:
        return {"type": "image", "alias": alias}
    return {"type": "image", "mode": "pull", "protocol": "simplestreams", "server": server, "alias": alias}


def remote(image: str, engine: str) -> str | None:
    name, colon, _ = image.partition(":")
    if not colon or name == "local":
        return None
    known = SERVERS[engine]
    if name not in known:
        choice = ", ".join(f"{one}:" for one in (*known, "local"))
        raise BadArgument(f"{engine} has no image server {name!r}", next_step=f"Start the image with {choice}")
    return known[name]


def _port(device: Mapping[str, str]) -> Port | None:
    listen, connect = _LISTEN.match(device.get("listen", "")), _LISTEN.match(device.get("connect", ""))
    if not listen or not connect:
        return None
    at = listen[2].strip("[]")
    return Port(int(connect[3]), int(listen[3]), listen[1], "" if at in ("0.0.0.0", "::") else at)  # noqa: S104


def _addresses(state: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: address["address"]
        for name, card in (state.get("network") or {}).items()
        if name != "lo"
        for address in card.get("addresses") or ()
        if address.get("family") == "inet" and address.get("scope") == "global"
    }


def _cpus(config: Mapping[str, str]) -> float | None:
    count = config.get("limits.cpu", "")
    if count.isdecimal():
        return float(count)
    share = _SHARE.match(config.get("limits.cpu.allowance", ""))
    return int(share[1]) / int(share[2]) if share else None
