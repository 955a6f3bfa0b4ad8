"""The firewall configuration of the cluster, its nodes, guests and vnets, and what PVE accepts in a rule."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pve_schema.firewall_formats import ALIAS, MACRO_SETTINGS, family_of
from pve_simulator.cluster.config_files import digest_of
from pve_simulator.http.refusals import Refusal, bad_parameters, existing, failure
from pve_simulator.http.routing import Call
from pve_simulator.routes.sdn import require_vnet
from pve_simulator.world import World

Entry = dict[str, Any]


@dataclass(slots=True)
class FirewallFile:
    """What one `.fw` file holds. Only the cluster's has security groups."""

    rules: list[Entry] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    aliases: dict[str, Entry] = field(default_factory=dict)  # by name in lower case
    ipsets: dict[str, list[Entry]] = field(default_factory=dict)
    ipset_comments: dict[str, str] = field(default_factory=dict)
    groups: dict[str, list[Entry]] = field(default_factory=dict)
    group_comments: dict[str, str] = field(default_factory=dict)


class Firewalls:
    """All firewall files of a cluster; a missing file counts as empty."""

    def __init__(self, world: World) -> None:
        self.cluster = FirewallFile()
        self._nodes: dict[str, FirewallFile] = {}
        self._guests: dict[int, FirewallFile] = {}
        self._vnets: dict[str, FirewallFile] = {}
        world.on_guest_removed.append(self.forget_guest)

    def node(self, name: str) -> FirewallFile:
        return self._nodes.setdefault(name, FirewallFile())

    def guest(self, vmid: int) -> FirewallFile:
        return self._guests.setdefault(vmid, FirewallFile())

    def vnet(self, name: str) -> FirewallFile:
        return self._vnets.setdefault(name, FirewallFile())

    def copy_guest(self, source: int, target: int) -> None:
        """A clone starts with the rules of its source."""
        if source in self._guests:
            self._guests[target] = copy.deepcopy(self._guests[source])

    def forget_guest(self, vmid: int) -> None:
        """Delete the guest's file."""
        self._guests.pop(vmid, None)


def with_digest(entries: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """The entries as the API lists them: each has the digest of the whole list."""
    listed = [dict(entry) for entry in entries]
    digest = digest_of(listed)
    return [{**entry, "digest": digest} for entry in listed]


CLUSTER = "/cluster/firewall"
GROUP = "/cluster/firewall/groups/{group}"
NODE = "/nodes/{node}/firewall"
QEMU = "/nodes/{node}/qemu/{vmid}/firewall"
LXC = "/nodes/{node}/lxc/{vmid}/firewall"
VNET = "/cluster/sdn/vnets/{vnet}/firewall"


@dataclass(frozen=True, slots=True)
class FirewallScope:
    """One firewall file and PVE's name for its scope."""

    kind: str
    file: FirewallFile
    rules: list[Entry]
    cluster: FirewallFile

    @property
    def own(self) -> FirewallFile | None:
        """The file whose aliases and IP sets apply in addition to the cluster's."""
        return self.file if self.kind in ("vm", "ct") else None


def scope_of(call: Call, *, changes: bool = False) -> FirewallScope:
    """The scope in the path. For vnets the permission is checked here, as in PVE."""
    template = call.endpoint.template
    firewalls = call.world.part(Firewalls)
    cluster = firewalls.cluster
    if template.startswith(GROUP):
        group = call.values["group"]
        if group not in cluster.groups:
            raise failure(f"no such security group '{group}'")
        return FirewallScope("group", cluster, cluster.groups[group], cluster)
    if template.startswith(CLUSTER):
        return _scope("cluster", cluster, cluster)
    if template.startswith(VNET):
        vnet = call.values["vnet"]
        require_vnet(call, *(("SDN.Allocate",) if changes else ("SDN.Audit", "SDN.Allocate")))
        return _scope("vnet", firewalls.vnet(vnet), cluster)
    if template.startswith(NODE):
        return _scope("host", firewalls.node(call.node), cluster)
    return _scope("vm" if template.startswith(QEMU) else "ct", firewalls.guest(call.vmid), cluster)


def _scope(kind: str, file: FirewallFile, cluster: FirewallFile) -> FirewallScope:
    return FirewallScope(kind, file, file.rules, cluster)


MACROS = {
    "Amanda": "Amanda Backup", "Auth": "Auth (identd) traffic", "BGP": "Border Gateway Protocol traffic",
    "BitTorrent": "BitTorrent traffic for BitTorrent 3.1 and earlier",
    "BitTorrent32": "BitTorrent traffic for BitTorrent 3.2 and later",
    "CVS": "Concurrent Versions System pserver traffic",
    "Ceph": "Ceph Storage Cluster traffic (Ceph Monitors, OSD & MDS Daemons)",
    "Citrix": "Citrix/ICA traffic (ICA, ICA Browser, CGP)",
    "DAAP": "Digital Audio Access Protocol traffic (iTunes, Rythmbox daemons)",
    "DCC": "Distributed Checksum Clearinghouse spam filtering mechanism", "DHCPfwd": "Forwarded DHCP traffic",
    "DHCPv6": "DHCPv6 traffic", "DNS": "Domain Name System traffic (upd and tcp)",
    "Distcc": "Distributed Compiler service", "FTP": "File Transfer Protocol", "Finger": "Finger protocol (RFC 742)",
    "GNUnet": "GNUnet secure peer-to-peer networking traffic",
    "GRE": "Generic Routing Encapsulation tunneling protocol", "Git": "Git distributed revision control traffic",
    "HKP": "OpenPGP HTTP key server protocol traffic", "HTTP": "Hypertext Transfer Protocol (WWW)",
    "HTTPS": "Hypertext Transfer Protocol (WWW) over SSL", "ICPV2": "Internet Cache Protocol V2 (Squid) traffic",
    "ICQ": "AOL Instant Messenger traffic", "IMAP": "Internet Message Access Protocol",
    "IMAPS": "Internet Message Access Protocol over SSL", "IPIP": "IPIP capsulation traffic",
    "IPsec": "IPsec traffic", "IPsecah": "IPsec authentication (AH) traffic",
    "IPsecnat": "IPsec traffic and Nat-Traversal", "IRC": "Internet Relay Chat traffic",
    "Jetdirect": "HP Jetdirect printing", "L2TP": "Layer 2 Tunneling Protocol traffic",
    "LDAP": "Lightweight Directory Access Protocol traffic",
    "LDAPS": "Secure Lightweight Directory Access Protocol traffic", "MDNS": "Multicast DNS",
    "MSNP": "Microsoft Notification Protocol", "MSSQL": "Microsoft SQL Server",
    "Mail": "Mail traffic (SMTP, SMTPS, Submission)", "Munin": "Munin networked resource monitoring traffic",
    "MySQL": "MySQL server", "NNTP": "NNTP traffic (Usenet).", "NNTPS": "Encrypted NNTP traffic (Usenet)",
    "NTP": "Network Time Protocol (ntpd)",
    "NeighborDiscovery": "IPv6 neighbor solicitation, neighbor and router advertisement",
    "OSPF": "OSPF multicast traffic", "OpenVPN": "OpenVPN traffic", "PCA": "Symantec PCAnywere (tm)",
    "PMG": "Proxmox Mail Gateway web interface", "POP3": "POP3 traffic", "POP3S": "Encrypted POP3 traffic",
    "PPtP": "Point-to-Point Tunneling Protocol", "Ping": "ICMP echo request", "PostgreSQL": "PostgreSQL server",
    "Printer": "Line Printer protocol printing", "RDP": "Microsoft Remote Desktop Protocol traffic",
    "RIP": "Routing Information Protocol (bidirectional)", "RNDC": "BIND remote management protocol",
    "Razor": "Razor Antispam System", "Rdate": "Remote time retrieval (rdate)", "Rsync": "Rsync server",
    "SANE": "SANE network scanning", "SMB": "Microsoft SMB traffic", "SMBswat": "Samba Web Administration Tool",
    "SMTP": "Simple Mail Transfer Protocol", "SMTPS": "Encrypted Simple Mail Transfer Protocol",
    "SNMP": "Simple Network Management Protocol", "SPAMD": "Spam Assassin SPAMD traffic",
    "SPICEproxy": "Proxmox VE SPICE display proxy traffic", "SSH": "Secure shell traffic",
    "SVN": "Subversion server (svnserve)", "SixXS": "SixXS IPv6 Deployment and Tunnel Broker",
    "Squid": "Squid web proxy traffic", "Submission": "Mail message submission traffic",
    "Syslog": "Syslog protocol (RFC 5424) traffic", "TFTP": "Trivial File Transfer Protocol traffic",
    "Telnet": "Telnet traffic", "Telnets": "Telnet over SSL", "Time": "RFC 868 Time protocol",
    "Trcrt": "Traceroute (for up to 30 hops) traffic", "VNC": "VNC traffic for VNC display's 0 - 99",
    "VNCL": "VNC traffic from Vncservers to Vncviewers in listen mode", "Web": "WWW traffic (HTTP and HTTPS)",
    "Webcache": "Web Cache/Proxy traffic (port 8080)", "Webmin": "Webmin traffic",
    "Whois": "Whois (nicname, RFC 3912) traffic",
}  # fmt: skip

PREFERRED_NAMES = {name.lower(): name for name in MACROS}
"""Macro names are case-insensitive; the rule stores the canonical spelling."""


_RULE_NAMES: Final = "type action macro iface source dest proto dport sport icmp-type log enable comment"
RULE_KEYS: Final = _RULE_NAMES.split()

_TYPES_BY_RULE_ENV: Final = {
    "cluster": ("in", "out", "forward", "group"),
    "host": ("in", "out", "forward", "group"),
    "group": ("in", "out", "forward"),
    "vm": ("in", "out", "group"),
    "ct": ("in", "out", "group"),
    "vnet": ("forward", "group"),
}
_ACTIONS: Final = ("ACCEPT", "DROP", "REJECT")
_GROUP_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9\-_]+")
_IPSET: Final = re.compile(r"\+((?:(?:dc|guest)/)?[A-Za-z][A-Za-z0-9\-_]+)")
_WITH_PORTS: Final = frozenset({"tcp", "udp", "udplite", "sctp", "dccp", "6", "17", "33", "132", "136"})
_ICMP: Final = frozenset({"icmp", "icmpv6", "ipv6-icmp"})


def check_rule(rule: dict[str, Any], rule_env: str, own: FirewallFile | None, cluster: FirewallFile) -> None:
    """Refuse a rule that is invalid in this rule_env; normalizes the macro's spelling."""
    _check_type(rule, rule_env)
    _check_interface(rule, rule_env)
    if "macro" in rule:
        preferred = PREFERRED_NAMES.get(rule["macro"].lower())
        if preferred is None:
            raise bad_parameters({"macro": f"unknown macro '{rule['macro']}'"})
        rule["macro"] = preferred
    _check_ports(rule)
    for name in ("source", "dest"):
        _check_reference(name, rule.get(name), own, cluster)
    if len(_families(rule, own, cluster)) > 1:
        raise failure("detected mixed ipv4/ipv6 addresses in rule")
    fixed = [setting for part in MACRO_SETTINGS.get(rule.get("macro", ""), ()) for setting in part.items()]
    for name, value in fixed:
        if rule.get(name, value) != value:
            raise bad_parameters({name: f"parameter '{name}' already define in macro (value = '{value}')"})


def copy_rule(rule: dict[str, Any], params: Mapping[str, Any]) -> None:
    """Copy the parameters in the file's form; an empty text removes a setting."""
    for key in (key for key in RULE_KEYS if key in params):
        value = params[key]
        rule[key] = min(value, 1) if key == "enable" else value.strip() if key == "comment" else value
        if rule[key] in ("", "-"):
            del rule[key]


def _check_type(rule: dict[str, Any], rule_env: str) -> None:
    for name in ("type", "action"):
        if name not in rule:
            raise bad_parameters({name: "missing property"})
    kind, action = rule["type"], rule["action"]
    if kind not in _TYPES_BY_RULE_ENV[rule_env]:
        raise bad_parameters({"type": f"invalid rule type '{kind}' for rule_env '{rule_env}'"})
    if kind == "group":
        if not _GROUP_NAME.fullmatch(action):
            raise bad_parameters({"action": "invalid characters in security group name"})
    elif action not in _ACTIONS:
        raise bad_parameters({"action": f"unknown action '{action}'"})


def _check_interface(rule: dict[str, Any], rule_env: str) -> None:
    if "iface" not in rule:
        return
    if rule_env in ("group", "vnet"):
        raise bad_parameters({"type": "parameter -i not allowed for this rule type"})
    if rule_env in ("vm", "ct") and not re.fullmatch(r"net\d+", rule["iface"]):
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
    """An IP set or alias in a rule must exist, in the guest's own file or in the cluster's."""
    if value is None:
        return
    files = [file for file in (own, cluster) if file is not None]
    if value.startswith("+"):
        match = existing(_IPSET.fullmatch(value), bad_parameters({name: f"invalid ipset name '{value}'"}))
        referenced = _without_scope(match[1])
        if not any(referenced in file.ipsets for file in files):
            raise bad_parameters({name: f"no such ipset '{match[1]}'"})
    elif ALIAS.fullmatch(value):
        referenced = _without_scope(value).lower()
        if not any(referenced in file.aliases for file in files):
            raise bad_parameters({name: f"no such alias '{value}'"})


def about_rule(rule: Mapping[str, Any], own: FirewallFile | None, cluster: FirewallFile) -> dict[str, Any]:
    """The derived fields of a rule in lists: its address family, and references that no longer exist."""
    facts: dict[str, Any] = {}
    families = _families(rule, own, cluster)
    if families:
        facts["ipversion"] = min(families)
    errors: dict[str, str] = {}
    for name in ("source", "dest"):
        try:
            _check_reference(name, rule.get(name), own, cluster)
        except Refusal as refusal:
            errors |= refusal.errors or {}
    return facts | ({"errors": errors} if errors else {})


def _families(rule: Mapping[str, Any], own: FirewallFile | None, cluster: FirewallFile) -> set[int]:
    parts = [part for name in ("source", "dest") for part in str(rule.get(name, "")).split(",")]
    families = {family_of(_address_of(part, own, cluster)) for part in parts} - {None}
    if rule.get("proto") == "icmp":
        families.add(4)
    elif rule.get("proto") in _ICMP:
        families.add(6)
    return {family for family in families if family is not None}


def _address_of(text: str, own: FirewallFile | None, cluster: FirewallFile) -> str:
    """An address unchanged, an alias resolved."""
    name = _without_scope(text).lower()
    for file in (own, cluster):
        if file is not None and name in file.aliases:
            return str(file.aliases[name]["cidr"])
    return text


def _without_scope(name: str) -> str:
    return name.removeprefix("dc/").removeprefix("guest/")
