"""The named formats of parameter values, with the words in which PVE rejects a value.

A check takes a text and returns None, or the rejection as PVE words it, line feeds included. A format that is
not known here accepts everything: PVE itself remains the judge.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, Final

FormatCheck = Callable[[str], str | None]

# Formats of the table that give no wording of their own.
_WORDING: Final = {
    "pve-realm": "value '$value' does not look like a valid realm",
    "pve-userid": "value '$value' does not look like a valid user name",
    "pve-hotplug-features": "unable to parse hotplug option",
}

# Formats that a pattern describes but the table lacks: name -> (pattern, wording).
_MORE_PATTERNS: Final = {
    "email": (
        r"[\w+~-]+(\.[\w+~-]+)*@[a-zA-Z0-9-]+(\.[a-zA-Z0-9-]+)*",
        "value does not look like a valid email address",
    ),
    "email-or-username": (
        r"[\w+~-]+(\.[\w+~-]+)*(@[a-zA-Z0-9-]+(\.[a-zA-Z0-9-]+)*)?",
        "value does not look like a valid email address or user name",
    ),
    "ldap-simple-attr": (r"[a-zA-Z0-9-]+", "value '$value' does not look like a simple ldap attribute name"),
    "pve-bridge-id": (r"[-_.\w]+", "invalid bridge ID '$value'"),
}

# How Perl prints a compiled pattern: `(?^i:...)`. Of its flags, only these mean something in Python.
_PERL_GROUP: Final = re.compile(r"\(\?\^([a-z]*):")
_SHARED_FLAGS: Final = frozenset("imsx")

# The pattern of image references allows words with nothing between them, so a long word that fails is tried in
# exponentially many splits. At least one dash between words accepts the same texts and is quick.
_EMPTY_SEPARATOR: Final = (r"|[-]*)[a-z\d]+", r"|[-]+)[a-z\d]+")

_NETMASKS: Final = frozenset(str(ipaddress.IPv4Network((0, length)).netmask) for length in range(33))


def split_list(text: str) -> list[str]:
    """The elements of a list: separated by commas, semicolons or blanks, or else by NUL."""
    if "\0" in text:
        elements = text.rstrip("\0")
        return elements.split("\0") if elements else []
    return text.replace(",", " ").replace(";", " ").split()


@cache
def perl_regex(pattern: str, flags: str = "") -> re.Pattern[str] | None:
    """A pattern written for Perl, anchored the way PVE anchors it. None if it cannot be said in Python."""
    spelled = _PERL_GROUP.sub(_python_group, pattern).replace(r"\z", r"\Z").replace(*_EMPTY_SEPARATOR)
    try:
        return re.compile(f"^{spelled}$", re.IGNORECASE if "i" in flags else 0)
    except re.error:
        return None


def _python_group(perl_group: re.Match[str]) -> str:
    return "(?" + "".join(flag for flag in perl_group[1] if flag in _SHARED_FLAGS) + ":"


class FormatBook:
    """The checks of all named formats, made from the table as they are asked for."""

    def __init__(self, table: Mapping[str, Mapping[str, Any]], privileges: Collection[str]) -> None:
        self._table = table
        self._checks: dict[str, FormatCheck | None] = {}
        self._special: dict[str, FormatCheck] = {
            "ip": self._either("ipv4", "ipv6", wording="value does not look like a valid IP address"),
            "CIDR": self._either("CIDRv4", "CIDRv6", wording="value does not look like a valid CIDR network"),
            "address": self._either("ip", "dns-name", wording="value does not look like a valid address: $value"),
            "ipv6": self._worded("ipv6", _is_ipv6),
            "CIDRv4": self._worded("CIDRv4", self._is_cidr4),
            "CIDRv6": self._worded("CIDRv6", self._is_cidr6),
            "ipv4mask": _judged(_NETMASKS.__contains__, "value does not look like a valid IP netmask"),
            "pve-priv": _judged(frozenset(privileges).__contains__, "invalid privilege '$value'"),
            "pve-storage-id": self._storage_id(),
            "storage-pair": self._pair("pve-storage-id"),
            "bridge-pair": self._pair("pve-bridge-id"),
            "pve-volume-id-or-absolute-path": self._volume_or(lambda text: text.startswith("/")),
            "pve-volume-id-or-qm-path": self._volume_or(lambda text: text.startswith("/") or text in ("none", "cdrom")),
        }

    def properties(self, name: str) -> Mapping[str, Mapping[str, Any]] | None:
        """The sub-schema of a format that is a property string."""
        sub_schema: Mapping[str, Mapping[str, Any]] | None = self._table.get(name, {}).get("props")
        if sub_schema is None and name == "proxmox-remote":
            return _PROXMOX_REMOTE
        return sub_schema

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

    def _worded(self, name: str, accepts: Callable[[str], bool]) -> FormatCheck:
        return _judged(accepts, self._wording(name))

    def _either(self, *names: str, wording: str) -> FormatCheck:
        """Accept a value of any of these formats; a name that is no format stands for itself."""

        def accepts_one(name: str, text: str) -> bool:
            check = self.check(name)
            return text == name if check is None else check(text) is None

        return _judged(lambda text: any(accepts_one(name, text) for name in names), wording)

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
        too_short = _judged(lambda _text: False, entry["err_short"])
        spelled_right = _matching(entry["re"], entry["err"], entry["flags"])
        return lambda text: too_short(text) if len(text) < 2 else spelled_right(text)

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


_PROXMOX_REMOTE: Final[Mapping[str, Mapping[str, Any]]] = {
    "host": {"type": "string", "format": "address"},
    "port": {"type": "integer", "optional": 1},
    "apitoken": {"type": "string"},
    "fingerprint": {"type": "string", "optional": 1, "pattern": "([A-Fa-f0-9]{2}:){31}[A-Fa-f0-9]{2}"},
}


def _judged(accepts: Callable[[str], bool], wording: str) -> FormatCheck:
    def check(text: str) -> str | None:
        return None if accepts(text) else wording.replace("$value", text) + "\n"

    return check


def _matching(pattern: str, wording: str, flags: str = "") -> FormatCheck:
    regex = perl_regex(f"(?:{pattern})", flags)
    return _judged(lambda text: regex is None or regex.search(text) is not None, wording)


def _each(single: FormatCheck) -> FormatCheck:
    def check(text: str) -> str | None:
        rejections = (single(element) for element in split_list(text))
        return next((rejection for rejection in rejections if rejection is not None), None)

    return check


def _unless_empty(single: FormatCheck) -> FormatCheck:
    # Perl takes "0" for empty as well.
    return lambda text: None if text in ("", "0") else single(text)


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
