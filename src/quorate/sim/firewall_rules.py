"""What a firewall rule may say, and PVE's words where it may not."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any, Final

from quorate.sim.firewall import FirewallFile
from quorate.sim.firewall_macros import PREFERRED_NAMES
from quorate.sim.refusals import bad_parameters, failure

_RULE_NAMES: Final = "type action macro iface source dest proto dport sport icmp-type log enable comment"
RULE_KEYS: Final = _RULE_NAMES.split()

_TYPES_OF_PLACE: Final = {
    "cluster": ("in", "out", "forward", "group"),
    "host": ("in", "out", "forward", "group"),
    "group": ("in", "out", "forward"),
    "vm": ("in", "out", "group"),
    "ct": ("in", "out", "group"),
    "vnet": ("forward", "group"),
}
_ACTIONS: Final = ("ACCEPT", "DROP", "REJECT")
_GROUP_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9\-_]+")
_ALIAS: Final = re.compile(r"(?:(?:dc|guest)/)?[A-Za-z][A-Za-z0-9\-_]+")
_IPSET: Final = re.compile(r"\+((?:(?:dc|guest)/)?[A-Za-z][A-Za-z0-9\-_]+)")
_PORT_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9\-]*")
_WITH_PORTS: Final = frozenset({"tcp", "udp", "udplite", "sctp", "dccp", "6", "17", "33", "132", "136"})
_ICMP: Final = frozenset({"icmp", "icmpv6", "ipv6-icmp"})
_PROTOCOL_NAMES: Final = (
    "ip icmp igmp ggp ipencap st tcp egp igp pup udp hmp xns-idp rdp iso-tp4 dccp xtp ddp idpr-cmtp ipv6"
    " ipv6-route ipv6-frag idrp rsvp gre esp ah skip ipv6-icmp icmpv6 ipv6-nonxt ipv6-opts vmtp eigrp ospf ax.25"
    " ipip etherip encap pim ipcomp vrrp l2tp isis sctp fc mobility-header udplite mpls-in-ip hip shim6 wesp rohc"
)
_PROTOCOLS: Final = frozenset(_PROTOCOL_NAMES.split())


def check_formats(params: Mapping[str, Any]) -> None:
    """The named formats of a rule's parameters, which PVE checks before anything else."""
    errors: dict[str, str] = {}
    for name in ("source", "dest"):
        errors |= _format_error(name, params.get(name), _address_error)
    for name in ("dport", "sport"):
        if params.get("proto") not in _ICMP:
            errors |= _format_error(name, params.get(name), _port_error)
    errors |= _format_error("proto", params.get("proto"), _protocol_error)
    if errors:
        raise bad_parameters(errors)


def check_rule(rule: dict[str, Any], place: str, own: FirewallFile | None, cluster: FirewallFile) -> None:
    """Refuse a rule that makes no sense in this place; writes a macro in its usual spelling."""
    _check_type(rule, place)
    _check_interface(rule, place)
    if "macro" in rule:
        preferred = PREFERRED_NAMES.get(rule["macro"].lower())
        if preferred is None:
            raise bad_parameters({"macro": f"unknown macro '{rule['macro']}'"})
        rule["macro"] = preferred
    _check_ports(rule)
    for name in ("source", "dest"):
        _check_reference(name, rule.get(name), own, cluster)
    _check_families(rule)


def copy_rule(rule: dict[str, Any], params: Mapping[str, Any]) -> None:
    """Take over what was given; an empty text removes a setting."""
    for key in RULE_KEYS:
        if key in params:
            if params[key] in ("", "-"):
                rule.pop(key, None)
            else:
                rule[key] = params[key]


def _check_type(rule: dict[str, Any], place: str) -> None:
    for name in ("type", "action"):
        if name not in rule:
            raise bad_parameters({name: "missing property"})
    kind, action = rule["type"], rule["action"]
    if kind == "group" and place == "group":
        raise bad_parameters({"type": "security groups not allowed"})
    if kind not in _TYPES_OF_PLACE[place]:
        raise bad_parameters({"type": f"invalid rule type '{kind}' for rule_env '{place}'"})
    if kind == "group":
        if not _GROUP_NAME.fullmatch(action):
            raise bad_parameters({"action": "invalid characters in security group name"})
    elif action not in _ACTIONS:
        raise bad_parameters({"action": f"unknown action '{action}'"})


def _check_interface(rule: dict[str, Any], place: str) -> None:
    if "iface" not in rule:
        return
    if place in ("group", "vnet"):
        raise bad_parameters({"type": "parameter -i not allowed for this rule type"})
    if place in ("vm", "ct") and not re.fullmatch(r"net\d+", rule["iface"]):
        raise bad_parameters({"iface": r"value does not match the regex pattern 'net\d+'"})


def _check_ports(rule: dict[str, Any]) -> None:
    proto = rule.get("proto")
    if "dport" in rule:
        if not proto:
            raise bad_parameters({"proto": "missing property - 'dport' requires this property"})
        if proto not in _WITH_PORTS and proto not in _ICMP:
            raise bad_parameters({"dport": f"protocol '{proto}' does not support ports"})
    if "icmp-type" in rule:
        if proto not in _ICMP:
            raise bad_parameters({"proto": "missing property - 'icmp-type' requires this property"})
        if "dport" in rule:
            raise bad_parameters({"icmp-type": "'icmp-type' cannot be specified together with 'dport'"})
    if "sport" in rule:
        if not proto:
            raise bad_parameters({"proto": "missing property - 'sport' requires this property"})
        if proto not in _WITH_PORTS:
            raise bad_parameters({"sport": f"protocol '{proto}' does not support ports"})


def _check_reference(name: str, value: str | None, own: FirewallFile | None, cluster: FirewallFile) -> None:
    """An IP set or alias that a rule names has to be there, in the guest's own file or in the cluster's."""
    if value is None:
        return
    files = [file for file in (own, cluster) if file is not None]
    if value.startswith("+"):
        match = _IPSET.fullmatch(value)
        if match is None:
            raise bad_parameters({name: f"invalid ipset name '{value}'"})
        wanted = _without_scope(match[1])
        if not any(wanted in file.ipsets for file in files):
            raise bad_parameters({name: f"no such ipset '{match[1]}'"})
    elif _ALIAS.fullmatch(value):
        wanted = _without_scope(value).lower()
        if not any(wanted in file.aliases for file in files):
            raise bad_parameters({name: f"no such alias '{value}'"})


def _check_families(rule: dict[str, Any]) -> None:
    families = {_family(part) for name in ("source", "dest") for part in str(rule.get(name, "")).split(",")}
    if rule.get("proto") == "icmp":
        families.add(4)
    elif rule.get("proto") in _ICMP:
        families.add(6)
    if {4, 6} <= families:
        raise failure("detected mixed ipv4/ipv6 addresses in rule")


def _family(address: str) -> int | None:
    try:
        return ipaddress.ip_network(address.split("-")[0], strict=False).version
    except ValueError:
        return None


def _without_scope(name: str) -> str:
    return name.removeprefix("dc/").removeprefix("guest/")


def _format_error(name: str, value: Any, problem: Any) -> dict[str, str]:
    text = None if value in (None, "", "-") else problem(str(value))
    return {} if text is None else {name: f"invalid format - {text}\n"}


def _address_error(value: str) -> str | None:
    if _IPSET.fullmatch(value) or _ALIAS.fullmatch(value):
        return None
    if value.startswith("+"):
        return f"invalid characters in ipset name '{value}'"
    for part in value.split(","):
        first, dash, last = part.partition("-")
        try:
            if dash:
                if ipaddress.ip_address(first) > ipaddress.ip_address(last):  # type: ignore[operator]
                    return f"invalid IP range '{part}'"
            else:
                ipaddress.ip_network(first, strict=False)
        except (ValueError, TypeError):
            return f"invalid IP address '{part}'"
    return None


def _port_error(value: str) -> str | None:
    for part in value.split(","):
        first, colon, last = part.partition(":")
        if colon:
            if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) <= 65535):
                return f"invalid port range '{part}'"
        elif first.isdecimal():
            if int(first) > 65535:
                return f"invalid port '{part}'"
        elif not _PORT_NAME.fullmatch(part):
            return f"invalid port '{part}'"
    return None


def _protocol_error(value: str) -> str | None:
    if value in _PROTOCOLS or (value.isdecimal() and int(value) < 256):
        return None
    return f"unknown protocol '{value}'"
