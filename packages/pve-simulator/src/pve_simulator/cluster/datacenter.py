"""The configuration of the datacenter: its options, and the section files of cluster-wide settings."""

from __future__ import annotations

from typing import Any, Final

from pve_simulator.cluster.config_files import SectionFile, section_type
from pve_simulator.world import World

DEFAULT_MAC_PREFIX: Final = "BC:24:11"
_LOWEST_VMID: Final = 100
_UPPER_END: Final = 1_000_000

_PARSED: Final = frozenset(
    {"crs", "ha", "location", "migration", "next-id", "notify", "replication", "tag-style", "u2f", "user-tag-access"}
    | {"webauthn"}
)
"""Options that the API takes as a property string and shows as an object."""
_DEFAULT_KEYS: Final = {"migration": "type", "replication": "type"}
_BOOLEANS: Final = frozenset({"case-sensitive", "ha-rebalance-on-start", "ha-auto-rebalance", "allow-subdomains"})

_OF_METRIC_SERVERS: Final = "disable mtu timeout"
_MAPPING_TYPES: Final = {
    "pci": section_type("map", "description mdev live-migration-capable"),
    "usb": section_type("map", "description"),
    "dir": section_type("map", "description"),
}
_METRIC_TYPES: Final = {
    "graphite": section_type("server port", f"{_OF_METRIC_SERVERS} path proto"),
    "influxdb": section_type(
        "server port",
        f"{_OF_METRIC_SERVERS} influxdbproto organization bucket token api-path-prefix max-body-size"
        " verify-certificate",
    ),
    "opentelemetry": section_type(
        "server port",
        f"{_OF_METRIC_SERVERS} otel-compression otel-headers otel-max-body-size otel-path otel-protocol"
        " otel-resource-attributes otel-timeout otel-verify-ssl",
    ),
}
_ACME_TYPES: Final = {
    "standalone": section_type(optional="disable nodes"),
    "dns": section_type("api", "data disable nodes validation-delay"),
}
_JOB_TYPES: Final = {
    "realm-sync": section_type("schedule scope", "enabled comment remove-vanished enable-new", fixed="realm")
}

_CPU_TYPES: Final = {
    "cpu-model": section_type(optional="flags guest-phys-bits hidden hv-vendor-id level phys-bits reported-model")
}


class Datacenter:
    """The files below /etc/pve with these settings."""

    def __init__(self, _world: World) -> None:
        self.options: dict[str, Any] = {}
        self.mappings = {kind: SectionFile({kind: options}) for kind, options in _MAPPING_TYPES.items()}
        self.metric_servers = SectionFile(_METRIC_TYPES)
        self.acme_plugins = SectionFile(_ACME_TYPES)
        self.realm_sync_jobs = SectionFile(_JOB_TYPES)
        self.cpu_models = SectionFile(_CPU_TYPES)
        self.acme_accounts: dict[str, dict[str, Any]] = {}

    def vmid_range(self) -> tuple[int, int]:
        """The vmid range for new guests; the upper end is exclusive."""
        configured = shown_option("next-id", self.options["next-id"]) if "next-id" in self.options else {}
        lower, upper = int(configured.get("lower", _LOWEST_VMID)), int(configured.get("upper", _UPPER_END))
        return lower, upper


def shown_option(name: str, value: Any) -> Any:
    """An option as the API shows it: property strings as objects, registered tags as a list."""
    if name == "registered-tags":
        return [tag for tag in str(value).split(";") if tag]
    if name not in _PARSED:
        return value
    parsed: dict[str, Any] = {}
    for part in str(value).split(","):
        key, separator, setting = part.partition("=")
        if not separator:
            key, setting = _DEFAULT_KEYS.get(name, key), key
        parsed[key] = _number(setting) if key in _BOOLEANS else setting
    return parsed


def _number(text: str) -> int:
    return int(text in ("1", "on", "yes", "true"))
