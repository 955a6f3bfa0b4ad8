"""The named formats of parameter values, with PVE's messages for rejected values.

A check takes a text and returns None, or PVE's message, including line feeds. A format that is unknown here accepts
everything: PVE itself decides.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, Final

from pve_schema import firewall_formats
from pve_schema.cpu_models import FLAGS, MODELS

FormatCheck = Callable[[str], str | None]
PropertyCheck = Callable[[Mapping[str, str]], str | None]

# Formats of the table without a message of their own.
_WORDING: Final = {
    "pve-realm": "value does not look like a valid realm",
    "pve-userid": "value '$value' does not look like a valid user name",
}

_CONTENT_TYPES: Final = "images|rootdir|vztmpl|iso|backup|snippets|import|none"
_NO_DOTS: Final = r"(?!\.\.?/)(?!.*/\.\.?(?:/|$))"
"""Neither `.` nor `..` as a part of the path."""

# Formats that the table lacks: name -> (pattern, message).
_MORE_PATTERNS: Final = {
    "email": (
        r"[\w+~-]+(\.[\w+~-]+)*@[a-zA-Z0-9-]+(\.[a-zA-Z0-9-]+)*",
        "value does not look like a valid email address",
    ),
    "email-or-username": (
        r"[\w+~-]+(\.[\w+~-]+)*(@[a-zA-Z0-9-]+(\.[a-zA-Z0-9-]+)*)?",
        "value does not look like a valid email address or user name",
    ),
    "graphite-path": (
        r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9\-]*[a-zA-Z0-9])?\.)*[a-zA-Z0-9](?:[a-zA-Z0-9\-]*[a-zA-Z0-9])?",
        "value does not look like a valid graphite path",
    ),
    "ldap-simple-attr": (r"[a-zA-Z0-9-]+", "value '$value' does not look like a simple ldap attribute name"),
    "pve-bridge-id": (r"[-_.\w]+", "invalid bridge ID '$value'"),
    "mac-prefix": (
        r"[A-Fa-f0-9][02468aceACE](?::[A-Fa-f0-9]{2}){0,2}:?",
        "value is not a valid unicast MAC address prefix",
    ),
    "pve-acme-domain": (
        r"(?:\*\.)?[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9][A-Za-z0-9_-]*)+",
        "value '$value' does not look like a valid domain name!",
    ),
    "pve-acme-alias": (
        r"[A-Za-z0-9_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_][A-Za-z0-9_-]*)+",
        "value '$value' does not look like a valid alias name!",
    ),
    "pve-cpuset": (r"\s*\d+(?:-\d+)?(?:\s*,\s*\d+(?:-\d+)?)*\s*", "unable to parse cpuset option"),
    "pve-day-of-week": ("mon|tue|wed|thu|fri|sat|sun", "invalid day '$value'"),
    "pve-dir-override": (
        rf"(?:{_CONTENT_TYPES})=[^.]*(?:\.?[^.]+)+",
        "invalid override '$value'",
    ),
    "pve-ha-node": (
        r"[a-zA-Z0-9](?:[a-zA-Z0-9\-]*[a-zA-Z0-9])?(?::\d+)?",
        "value does not look like a valid ha node",
    ),
    "pve-lxc-dev-string": (rf"{_NO_DOTS}/dev/.*", "$value is not a valid device path"),
    "pve-lxc-mp-string": (rf"{_NO_DOTS}.*", "$value contains illegal character sequences"),
    "pve-phys-bits": (r"host|0?[89]|[1-5]\d|6[0-4]", "value must be an integer between 8 and 64 or 'host'"),
    "pve-qm-bootdisk": (
        r"(?:ide[0-3]|sata[0-5]|scsi(?:[12]?\d|30)|virtio(?:\d|1[0-5])|efidisk0|tpmstate0)",
        "invalid boot disk '$value'",
    ),
    "pve-sdn-bgp-rt": (r"\d{1,10}:\d{1,10}", "value does not look like a valid bgp route-target"),
    "pve-sdn-isis-net": (
        r"[a-fA-F0-9]{2}(?:\.[a-fA-F0-9]{4}){3,9}\.[a-fA-F0-9]{2}",
        "value does not look like a valid isis net",
    ),
    "pve-storage-content": (_CONTENT_TYPES, "invalid content type '$value'"),
    "pve-storage-options": (r"\S+", "invalid options '$value'"),
    "pve-storage-path": (r"/[^;()]+[\s\S]*", "value does not look like a valid absolute path"),
    "pve-storage-path-in-property-string": (
        r"/[^;(),=]+[\s\S]*",
        "Value does not look like a valid absolute path. These symbols are currently not allowed in path: ;,=()",
    ),
    "pve-storage-portal-dns": (
        r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::\d+)?",
        "value does not look like a valid portal address",
    ),
    "pve-storage-vgname": (r"[A-Za-z0-9][A-Za-z0-9\-_.]*[A-Za-z0-9]", "lvm name '$value' contains illegal characters"),
    "pve-tfa-config": (r"(?:type=)?(?:oath|yubico)(?:,.*)?", "unable to parse tfa option"),
}

_BASE64: Final = r"[A-Za-z0-9+/]+={0,2}"
_PCI: Final = r"(?:[a-fA-F0-9]{4,}:)?[a-fA-F0-9]{2}:[a-fA-F0-9]{2}(?:\.[a-fA-F0-9])?"
_PCI_NUMBER: Final = {"optional": 1, "pattern": r"0x[0-9a-fA-F]{4}"}
_OPTIONAL_FLAG: Final = {"optional": 1, "type": "boolean"}
_OPTIONAL_TEXT: Final = {"optional": 1, "type": "string"}
_KEPT: Final = {"optional": 1, "type": "integer", "minimum": 0}

# Property strings that the table lacks or describes incompletely: the keys of each.
_PROPERTIES: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "proxmox-remote": {
        "host": {"type": "string", "format": "address"},
        "port": {"type": "integer", "optional": 1},
        "apitoken": {"type": "string"},
        "fingerprint": {"type": "string", "optional": 1, "pattern": "([A-Fa-f0-9]{2}:){31}[A-Fa-f0-9]{2}"},
    },
    "pve-qm-cicustom": {
        part: {"optional": 1, "format": "pve-volume-id"} for part in ("meta", "network", "user", "vendor")
    },
    "pve-qm-smbios1": {
        "uuid": {"optional": 1, "pattern": r"[a-fA-F0-9]{8}(?:-[a-fA-F0-9]{4}){3}-[a-fA-F0-9]{12}"},
        **{
            key: {"optional": 1, "pattern": _BASE64}
            for key in ("version", "serial", "manufacturer", "product", "sku", "family")
        },
        "base64": _OPTIONAL_FLAG,
    },
    "pve-qm-watchdog": {
        "model": {"default_key": 1, "optional": 1, "enum": ["i6300esb", "ib700"]},
        "action": {"optional": 1, "enum": ["reset", "shutdown", "poweroff", "pause", "debug", "none"]},
    },
    "pve-qm-hostpci": {
        "host": {"default_key": 1, "optional": 1, "pattern": rf"{_PCI}(?:;{_PCI})*"},
        "mapping": {"optional": 1, "format": "pve-configid"},
        "driver": {"optional": 1, "enum": ["vfio", "keep"]},
        "mdev": {"optional": 1, "pattern": r"[^/.:]+"},
        "romfile": {"optional": 1, "pattern": r"[^,;]+"},
        **dict.fromkeys(("legacy-igd", "pcie", "rombar", "x-vga"), _OPTIONAL_FLAG),
        **dict.fromkeys(("vendor-id", "device-id", "sub-vendor-id", "sub-device-id"), _PCI_NUMBER),
    },
    "pve-vm-cpu-conf": {
        "cputype": {"default_key": 1, "optional": 1, "type": "string"},
        "reported-model": _OPTIONAL_TEXT,
        "hidden": _OPTIONAL_FLAG,
        "hv-vendor-id": {"optional": 1, "pattern": "[a-zA-Z0-9]{1,12}"},
        "flags": {"optional": 1, "pattern": r"[+-][a-zA-Z0-9\-_.]+(?:;[+-][a-zA-Z0-9\-_.]+)*"},
        "guest-phys-bits": {"optional": 1, "type": "integer", "minimum": 32, "maximum": 64},
        "phys-bits": {"optional": 1, "format": "pve-phys-bits"},
        "level": {"optional": 1, "type": "integer"},
    },
    "pve-qemu-sev-fmt": {
        "type": {"default_key": 1, "enum": ["std", "es", "snp"]},
        **dict.fromkeys(("no-debug", "no-key-sharing", "allow-smt", "kernel-hashes"), _OPTIONAL_FLAG),
    },
    "backup-performance": {
        "max-workers": {"optional": 1, "type": "integer", "minimum": 1, "maximum": 256},
        "pbs-entries-max": {"optional": 1, "type": "integer", "minimum": 1},
    },
    "realm-sync-options": {
        "scope": {"optional": 1, "enum": ["users", "groups", "both"]},
        "remove-vanished": {
            "optional": 1,
            "pattern": r"(?:(?:(?:acl|properties|entry);)*(?:acl|properties|entry))|none",
        },
        **dict.fromkeys(("full", "purge", "enable-new"), _OPTIONAL_FLAG),
    },
    "pve-sdn-dhcp-range": {"start-address": {"type": "string"}, "end-address": {"type": "string"}},
    "prune-backups": {
        "keep-all": _OPTIONAL_FLAG,
        **{f"keep-{span}": _KEPT for span in ("last", "hourly", "daily", "weekly", "monthly", "yearly")},
    },
}

# How Perl prints a compiled pattern: `(?^i:...)`. Of its flags, only these mean something in Python.
_PERL_GROUP: Final = re.compile(r"\(\?\^([a-z]*):")
_SHARED_FLAGS: Final = frozenset("imsx")

# The pattern of image references allows words with nothing between them, so a long word that fails is tried in
# exponentially many splits. At least one dash between words accepts the same texts and is quick.
_EMPTY_SEPARATOR: Final = (r"|[-]*)[a-z\d]+", r"|[-]+)[a-z\d]+")

# Commas, semicolons and what Perl calls blank: unlike Python's, without the four separators at 0x1c.
_SEPARATORS: Final = re.compile(r"[,;\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")

_NO_PEM: Final = "not a valid PEM-formatted string."
_LOWEST_VLAN: Final = 2
_HIGHEST_VLAN: Final = 4094
_NETMASKS: Final = frozenset(str(ipaddress.IPv4Network((0, length)).netmask) for length in range(33))


def split_list(text: str) -> list[str]:
    """The elements of a list: separated by commas, semicolons or blanks, or else by NUL."""
    if "\0" in text:
        elements = text.rstrip("\0")
        return elements.split("\0") if elements else []
    return [element for element in _SEPARATORS.split(text) if element]


@cache
def perl_regex(pattern: str, flags: str = "") -> re.Pattern[str] | None:
    """A Perl pattern, anchored as PVE does. None if Python cannot express it."""
    spelled = _PERL_GROUP.sub(_python_group, pattern).replace(r"\z", r"\Z").replace(*_EMPTY_SEPARATOR)
    try:
        return re.compile(f"^{spelled}$", re.IGNORECASE if "i" in flags else 0)
    except re.error:
        return None


def _python_group(perl_group: re.Match[str]) -> str:
    return "(?" + "".join(flag for flag in perl_group[1] if flag in _SHARED_FLAGS) + ":"


class FormatBook:
    """The checks of all named formats, built from the table on demand."""

    def __init__(self, table: Mapping[str, Mapping[str, Any]], privileges: Collection[str]) -> None:
        self._table = table
        self._checks: dict[str, FormatCheck | None] = {}
        self._special: dict[str, FormatCheck] = {
            "ip": self._either("ipv4", "ipv6", wording="value does not look like a valid IP address"),
            "CIDR": self._either("CIDRv4", "CIDRv6", wording="value does not look like a valid CIDR network"),
            "address": self._either("ip", "dns-name", wording="value does not look like a valid address: $value"),
            "ipv6": self._check_wording("ipv6", _is_ipv6),
            "CIDRv4": self._check_wording("CIDRv4", self._is_cidr4),
            "CIDRv6": self._check_wording("CIDRv6", self._is_cidr6),
            "ipv4mask": _check(_NETMASKS.__contains__, "value does not look like a valid IP netmask"),
            "pve-priv": _check(frozenset(privileges).__contains__, "invalid privilege '$value'"),
            "pve-storage-id": self._storage_id(),
            "pve-storage-server": self._either(
                "ip", "dns-name", wording="value does not look like a valid server name or IP address"
            ),
            "IPorCIDR": _check(_is_network, "value does not look like a valid IP address or CIDR network"),
            "IPorCIDRorAlias": _check(
                lambda text: firewall_formats.ALIAS.fullmatch(text) is not None or _is_network(text),
                "value does not look like a valid IP address or CIDR network",
            ),
            "lxc-ip-with-ll-iface": self._ip_with_interface(),
            "pve-ct-timezone": _check(_is_timezone, "invalid time zone '$value'"),
            "pve-fw-addr-spec": firewall_formats.address_problem,
            "pve-fw-dport-spec": lambda text: firewall_formats.port_problem(text, icmp_too=True),
            "pve-fw-sport-spec": lambda text: firewall_formats.port_problem(text, icmp_too=False),
            "pve-fw-protocol-spec": firewall_formats.protocol_problem,
            "pve-fw-icmp-type-spec": firewall_formats.icmp_type_problem,
            "pve-hotplug-features": _hotplug_problem,
            "pve-poolid": self._pool_id(),
            "pve-sdn-subnet-id": self._subnet_id(),
            "pve-vlan-id-or-range": _vlan_problem,
            "pem-certificate": _check(_is_pem("CERTIFICATE"), _NO_PEM),
            "pem-certificate-chain": _check(_is_pem("CERTIFICATE", several=True), _NO_PEM),
            "pem-string": _check(_is_pem("[^-]*?"), _NO_PEM),
            "storage-pair": self._pair("pve-storage-id"),
            "bridge-pair": self._pair("pve-bridge-id"),
            "pve-volume-id-or-absolute-path": self._volume_or(lambda text: text.startswith("/")),
            "pve-volume-id-or-qm-path": self._volume_or(lambda text: text.startswith("/") or text in ("none", "cdrom")),
        }

    def properties(self, name: str) -> Mapping[str, Mapping[str, Any]] | None:
        """The sub-schema of a format that is a property string."""
        sub_schema: Mapping[str, Mapping[str, Any]] | None = self._table.get(name, {}).get("props")
        return _PROPERTIES.get(name, sub_schema)

    def property_check(self, name: str) -> PropertyCheck | None:
        """The constraints between the keys of a property string."""
        return _PROPERTY_CHECKS.get(name)

    def check(self, name: str) -> FormatCheck | None:
        """The check of a format, its `-list` and `-opt` variants included; None if everything is accepted."""
        if name not in self._checks:
            self._checks[name] = self._make(name)
        return self._checks[name]

    def _make(self, name: str) -> FormatCheck | None:
        base, dash, variant = name.rpartition("-")
        if not dash or variant not in ("list", "opt"):
            return self._single(name)
        single = self._single(base)
        if single is None:
            return None
        return _each(single) if variant == "list" else _unless_empty(single)

    def _single(self, name: str) -> FormatCheck | None:
        if name in self._special:
            return self._special[name]
        if name in _MORE_PATTERNS:
            return _matching(*_MORE_PATTERNS[name])
        entry = self._table.get(name, {})
        if "alternatives" in entry:
            return self._either(*entry["alternatives"], wording=entry["err"])
        if "re" not in entry:
            return None
        return _matching(entry["re"], self._wording(name), entry.get("flags", ""))

    def _wording(self, name: str) -> str:
        return str(self._table.get(name, {}).get("err") or _WORDING.get(name, "value is not valid"))

    def _check_wording(self, name: str, accepts: Callable[[str], bool]) -> FormatCheck:
        return _check(accepts, self._wording(name))

    def _either(self, *names: str, wording: str) -> FormatCheck:
        """Accept a value of any of these formats; a name that is not a format matches itself."""

        def accepts_one(name: str, text: str) -> bool:
            check = self.check(name)
            return text == name if check is None else check(text) is None

        return _check(lambda text: any(accepts_one(name, text) for name in names), wording)

    def _is_cidr4(self, text: str) -> bool:
        match = re.fullmatch(r"([0-9.]+)/([0-9]{1,3})\n?", text)
        return match is not None and _is_ipv4(match[1]) and self._is_prefix("CIDRv4", match[2])

    def _is_cidr6(self, text: str) -> bool:
        match = re.fullmatch(r"([0-9a-fA-F:.]+)/([0-9]{1,3})\n?", text)
        return match is not None and _is_ipv6(match[1]) and self._is_prefix("CIDRv6", match[2])

    def _is_prefix(self, name: str, digits: str) -> bool:
        entry = self._table.get(name, {})
        return int(entry.get("prefix_min", 0)) <= int(digits) <= int(entry.get("prefix_max", 128))

    def _storage_id(self) -> FormatCheck:
        entry = self._table["pve-storage-id"]
        too_short = _check(lambda _text: False, entry["err_short"])
        spelled_right = _matching(entry["re"], entry["err"], entry["flags"])
        return lambda text: too_short(text) if len(text) < 2 else spelled_right(text)

    def _pool_id(self) -> FormatCheck:
        entry = self._table["pve-poolid"]
        spelled_right = _matching(entry["re"], entry["err"])
        too_deep = _check(lambda _text: False, "pool name '$value' nested too deeply (max levels = 3)")
        deep = re.compile(r"[A-Za-z0-9.\-_]+(?:/[A-Za-z0-9.\-_]+){3,}")
        return lambda text: too_deep(text) if deep.fullmatch(text) else spelled_right(text)

    def _subnet_id(self) -> FormatCheck:
        """A network, or the name that PVE makes of it: zone, address and length with dashes."""
        network = self._either("CIDRv4", "CIDRv6", wording="value does not look like a valid CIDR network")
        return lambda text: network(text if "/" in text else "/".join(text.split("-")[1:3]))

    def _ip_with_interface(self) -> FormatCheck:
        """An address, or a link-local one followed by a percent sign and the interface."""

        def accepts(text: str) -> bool:
            address, percent, interface = text.partition("%")
            plain = self.check("ipv6" if percent else "ip")
            return plain is not None and plain(address) is None and (bool(interface) or not percent)

        return _check(accepts, "value does not look like a valid IP address")

    def _pair(self, name: str) -> FormatCheck:
        """A mapping between clusters: `source:target`, one `target` for the rest, or `1` for "the same"."""

        def check(text: str) -> str | None:
            single = self.check(name)
            if text == "1" or single is None:
                return None
            source, colon, target = text.partition(":")
            is_mapping = bool(source and colon and target and ":" not in target)
            for identifier in (source, target) if is_mapping else (text,):
                rejection = single(identifier)
                if rejection is not None:
                    return f"entry '{text}' contains invalid ID - {rejection}\n\n"
            return None

        return check

    def _volume_or(self, accepts: Callable[[str], bool]) -> FormatCheck:
        def check(text: str) -> str | None:
            volume = self.check("pve-volume-id")
            return None if accepts(text) or volume is None else volume(text)

        return check


def _hotplug_problem(text: str) -> str | None:
    """Nothing, the usual, or a list of what may be plugged in while the VM runs."""
    known = ("network", "disk", "cpu", "memory", "usb", "cloudinit")
    wrong = () if text in ("0", "1") else [feature for feature in split_list(text) if feature not in known]
    return f"invalid hotplug feature '{wrong[0]}'\n" if wrong else None


def _is_pem(label: str, *, several: bool = False) -> Callable[[str], bool]:
    block = rf"-----BEGIN {label}-----\n[A-Za-z0-9+/=\s]+\n-----END {label}-----\s*"
    text = re.compile(rf"[^-]*(?:{block})+" if several else rf"[^-]*{block}")
    return lambda value: text.fullmatch(value) is not None


def _vlan_problem(text: str) -> str | None:
    """One VLAN or a range of them."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if match is None:
        return f"invalid VLAN configuration '{text}'\n"
    tags = [int(tag) for tag in match.groups() if tag]
    for tag in tags:
        if not _LOWEST_VLAN <= tag <= _HIGHEST_VLAN:
            return f"invalid VLAN tag '{tag}'\n"
    return f"VLAN range must go from lower to higher tag '{text}'\n" if tags != sorted(tags) else None


def _check(accepts: Callable[[str], bool], wording: str) -> FormatCheck:
    def check(text: str) -> str | None:
        return None if accepts(text) else wording.replace("$value", text) + "\n"

    return check


def _matching(pattern: str, wording: str, flags: str = "") -> FormatCheck:
    regex = perl_regex(f"(?:{pattern})", flags)
    return _check(lambda text: regex is None or regex.search(text) is not None, wording)


def _each(single: FormatCheck) -> FormatCheck:
    def check(text: str) -> str | None:
        rejections = (single(element) for element in split_list(text))
        return next((rejection for rejection in rejections if rejection is not None), None)

    return check


def _unless_empty(single: FormatCheck) -> FormatCheck:
    # Perl treats "0" as empty as well.
    return lambda text: None if text in ("", "0") else single(text)


def _is_network(text: str) -> bool:
    return _parses(lambda value: ipaddress.ip_network(value, strict=False), text)


def _is_timezone(text: str) -> bool:
    from zoneinfo import available_timezones  # calls that read do without it

    known = available_timezones()
    return text in ("host", "UTC") or not known or text in known


def _cpu_problem(values: Mapping[str, str]) -> str | None:
    model = values.get("cputype")
    if not model:
        return "CPU is missing cputype\n"
    if not model.startswith("custom-") and not any(model in names.split() for names in MODELS.values()):
        return f"Built-in cputype '{model}' is not defined (missing 'custom-' prefix?)\n"
    flags = values.get("flags", "")
    if flags and any(flag[1:] not in FLAGS for flag in flags.split(";")):
        return f"VM-specific CPU flags must be a subset of: {', '.join(FLAGS)}\n"
    if "reported-model" in values:
        return "Property 'reported-model' not allowed in VM-specific CPU config.\n"
    return None


def _retention_problem(values: Mapping[str, str]) -> str | None:
    others = any(int(value) > 0 for key, value in values.items() if key != "keep-all")
    return "keep-all cannot be set together with other options.\n" if others and values.get("keep-all") == "1" else None


def _fleecing_problem(values: Mapping[str, str]) -> str | None:
    lacks_storage = values.get("enabled") == "1" and "storage" not in values
    return "'storage' parameter is required when 'enabled' is set\n" if lacks_storage else None


_PROPERTY_CHECKS: Final[Mapping[str, PropertyCheck]] = {
    "pve-vm-cpu-conf": _cpu_problem,
    "prune-backups": _retention_problem,
    "backup-fleecing": _fleecing_problem,
}


def _is_ipv4(text: str) -> bool:
    return _parses(ipaddress.IPv4Address, text)


def _is_ipv6(text: str) -> bool:
    return "%" not in text and _parses(ipaddress.IPv6Address, text)


def _parses(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True
