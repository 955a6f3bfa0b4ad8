"""Interfaces, routes, name servers and listening ports."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from quorate.inside.facts.model import Interface, Network, Port
from quorate.inside.facts.script import Answers
from quorate.inside.facts.system import hexadecimal, json_objects, json_of, name, number, rows

_MAC = re.compile(r"[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}")
# They come and go with the guests and containers behind them, and are listed there.
_OF_GUESTS = re.compile(r"(?:veth|tap[0-9]|fwpr|fwln|fwbr|vnet[0-9]|cali|lxc[0-9a-f]|vif[0-9])")
_LOOPBACK = re.compile(r"lo[0-9]*")


@dataclass(slots=True)
class _Card:
    """An interface while it is being read."""

    mac: str | None = None
    up: bool | None = None
    addresses: list[str] = field(default_factory=list)
    speed: int | None = None


def network(answers: Answers) -> Network | None:
    readers = (
        ("ip_json", _ip_json),
        ("ip_text", _ip_text),
        ("ifconfig", _ifconfig),
    )
    cards: dict[str, _Card] = {}
    for source, read in readers:
        if cards := read(answers.get(source)):
            break
    else:
        cards = _of_kernel(answers)
    gateways, servers = _gateways(answers), _name_servers(answers.get("resolv"))
    if not cards and not gateways:
        return None
    _add_speeds(cards, answers.get("sys_net"))
    return Network(tuple(_interfaces(cards)), tuple(gateways), tuple(servers))


def _interfaces(cards: dict[str, _Card]) -> Iterable[Interface]:
    for label in sorted(cards):
        card = cards[label]
        if _LOOPBACK.fullmatch(label) or (_OF_GUESTS.match(label) and not card.addresses):
            continue
        state = None if card.up is None else "up" if card.up else "down"
        yield Interface(label, card.mac, state, tuple(sorted(set(card.addresses))), card.speed)


# -- interfaces --------------------------------------------------------------------------------------------------------


def _ip_json(text: str) -> dict[str, _Card]:
    cards: dict[str, _Card] = {}
    for link in json_objects(json_of(text)):
        label = name(link.get("ifname", ""))
        if label is None:
            continue
        flags = link.get("flags")
        card = _Card(_mac(str(link.get("address", ""))), _is_up(str(link.get("operstate", "")), flags))
        for address in json_objects(link.get("addr_info")):
            if address.get("temporary") is not True:
                card.addresses += _address(str(address.get("local", "")), str(address.get("prefixlen", "")))
        cards[label] = card
    return cards


def _is_up(state: str, flags: object) -> bool | None:
    """Interfaces without a cable, such as tunnels, call their state unknown."""
    if state.upper() in ("UP", "DOWN"):
        return state.upper() == "UP"
    return "LOWER_UP" in flags if isinstance(flags, list) else None


def _ip_text(text: str) -> dict[str, _Card]:
    cards: dict[str, _Card] = {}
    card = _Card()
    for line in text.splitlines():
        if head := re.match(r"[0-9]+: ([^:@\s]+)[^<]*<([^>]*)>", line):
            state = re.search(r"\bstate ([A-Z]+)", line)
            card = cards[head[1]] = _Card(None, _is_up(state[1] if state else "", head[2].split(",")))
            continue
        words = line.split()
        if len(words) > 1 and words[0].startswith("link/"):
            card.mac = _mac(words[1])
        elif len(words) > 1 and words[0] in ("inet", "inet6") and "temporary" not in words:
            card.addresses += _address(*words[1].partition("/")[::2])
    return cards


def _ifconfig(text: str) -> dict[str, _Card]:
    """In the formats of BSD, macOS, and old and new net-tools of Linux."""
    cards: dict[str, _Card] = {}
    card = _Card()
    for line in text.splitlines():
        if head := re.match(r"([A-Za-z][^\s:]*(?::[0-9]+)?):?\s+(?:flags=|Link encap)", line):
            card = cards[head[1]] = _Card(up="UP," in line and "RUNNING" in line if "flags=" in line else None)
        if mac := re.search(rf"(?:ether|HWaddr|lladdr) ({_MAC.pattern})", line):
            card.mac = _mac(mac[1])
        if "RUNNING" in line and re.search(r"\bUP\b", line):
            card.up = True
        if "status: " in line:
            card.up = "status: active" in line
        if inet := re.search(r"\binet (?:addr:)?([0-9.]+)(?:.*?(?:netmask |Mask:)(0x[0-9a-f]{8}|[0-9.]+))?", line):
            card.addresses += _address(inet[1], _prefix(inet[2] or ""))
        if (inet6 := re.search(r"\binet6 (?:addr: ?)?([0-9a-fA-F:.]+)(?:%\S+)?(?:/| +prefixlen )([0-9]+)", line)) and (
            "temporary" not in line
        ):
            card.addresses += _address(inet6[1], inet6[2])
        if speed := re.search(r"\(([0-9]{2,6})base", line):
            card.speed = int(speed[1])
    return cards


def _of_kernel(answers: Answers) -> dict[str, _Card]:
    """Read interfaces without a program: the kernel lists its addresses, and the networks on each interface."""
    cards = {}
    for line in answers.get("sys_net").splitlines():
        cells = [*line.split("\t"), "", ""]
        cards[cells[0]] = _Card(_mac(cells[1]), _is_up(cells[2], None))
    for words in rows(answers.get("proc_inet6"), 6):
        value, prefix = hexadecimal(words[0]), hexadecimal(words[2])
        if len(words[0]) == 32 and value is not None and prefix is not None:
            cards.setdefault(words[5], _Card()).addresses += _address(str(ipaddress.IPv6Address(value)), str(prefix))
    networks = [(card, net) for card, net in _attached_networks(answers.get("proc_route"))]
    for local in re.findall(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL", answers.get("fib_trie")):
        for label, net in networks:
            if _is_ipv4(local) and ipaddress.IPv4Address(local) in net:
                cards.setdefault(label, _Card()).addresses += _address(local, str(net.prefixlen))
    return cards


def _attached_networks(text: str) -> Iterable[tuple[str, ipaddress.IPv4Network]]:
    """Rows of Iface, Destination, Gateway, Flags, …, Mask; addresses in hexadecimal, last byte first."""
    for words in rows(text, 8):
        place, mask = _little_endian(words[1]), _little_endian(words[7])
        if place is not None and mask and words[2] == "00000000" and words[1] != "00000000":
            try:
                yield words[0], ipaddress.IPv4Network(f"{place}/{mask}", strict=False)
            except ValueError:
                continue


def _add_speeds(cards: dict[str, _Card], text: str) -> None:
    for line in text.splitlines():
        cells = [*line.split("\t"), "", "", ""]
        if (speed := number(cells[3])) and cells[0] in cards:
            cards[cells[0]].speed = speed


def _mac(text: str) -> str | None:
    return text.lower() if _MAC.fullmatch(text) and text != "00:00:00:00:00:00" else None


def _address(address: str, prefix: str) -> list[str]:
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])  # anything may follow the zone
    except ValueError:
        return []
    if ip.is_loopback:
        return []
    return [f"{ip}/{prefix}" if number(prefix) is not None and int(prefix) <= ip.max_prefixlen else str(ip)]


def _prefix(mask: str) -> str:
    value = hexadecimal(mask.removeprefix("0x")) if mask.startswith("0x") else None
    if value is None and _is_ipv4(mask):
        value = int(ipaddress.IPv4Address(mask))
    return "" if value is None else str(value.bit_count())


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _little_endian(text: str) -> ipaddress.IPv4Address | None:
    value = hexadecimal(text) if len(text) == 8 else None
    return None if value is None else ipaddress.IPv4Address(int.from_bytes(value.to_bytes(4, "little"), "big"))


# -- routes and name servers -------------------------------------------------------------------------------------------


def _gateways(answers: Answers) -> list[str]:
    routes = f"{answers.get('ip_route')}\n{answers.get('ip_route6')}"
    routed = re.findall(r"^default via (\S+) dev (\S+)", routes, re.M)
    if not routed:
        routed = [
            (str(gateway), words[0])
            for words in rows(answers.get("proc_route"), 8)
            if words[1] == words[7] == "00000000" and (gateway := _little_endian(words[2])) and int(gateway)
        ]
    if not routed:
        routed = [
            (words[1], words[3])
            for words in rows(answers.get("netstat_routes"), 4)
            if words[0] == "default" and not words[1].startswith("link#")
        ]
    return list(dict.fromkeys(f"{gateway.partition('%')[0][:50]} dev {card[:20]}" for gateway, card in routed))


def search_domains(answers: Answers) -> list[str]:
    return [domain for words in rows(answers.get("resolv"), 2) if words[0] == "search" for domain in words[1:]]


def _name_servers(text: str) -> list[str]:
    return list(dict.fromkeys(words[1][:50] for words in rows(text, 2) if words[0] == "nameserver"))


# -- ports -------------------------------------------------------------------------------------------------------------


def ports(answers: Answers) -> tuple[Port, ...] | None:
    for source, read in (("ss", _ss), ("sockstat", _sockstat), ("netstat", _netstat), ("lsof", _lsof)):
        text = "" if source in answers.late else answers.get(source)
        listening = list(read(text))
        if listening or (text and re.search(_HEADINGS[source], text)):
            return _merge_ports(listening)
    files = ("proc_tcp", "proc_tcp6", "proc_udp", "proc_udp6")
    if any(source in answers.texts for source in files):
        return _merge_ports([port for source in files for port in _proc_net(answers.get(source), source[5:8])])
    return None


_HEADINGS = {"ss": r"^Netid\b", "sockstat": r"^USER\b", "netstat": r"\bProto\b", "lsof": r"^COMMAND\b"}


def _merge_ports(listening: Iterable[Port]) -> tuple[Port, ...]:
    """One row for each port: a server that listens on all IPv4 and IPv6 addresses has two sockets."""
    rows: dict[tuple[str, int, str], set[str]] = {}
    for socket in listening:
        rows.setdefault((socket.protocol, socket.port, socket.address), set()).update(
            {socket.process} if socket.process else ()
        )
    return tuple(
        Port(protocol, address, port, ", ".join(sorted(names)) or None)
        for (protocol, port, address), names in sorted(rows.items())
    )


def _parse_socket_address(text: str) -> tuple[str, int] | None:
    """Address and port of `0.0.0.0:22`, `[::1%lo]:53`, `*:80`, `:::22`."""
    address, _, port = text.rpartition(":")
    count = number(port)
    if not count or count > 65535:
        return None
    address = address.strip("[]").partition("%")[0]
    return ("*" if address in ("", "0.0.0.0", "::", "*", ":") else address[:50]), count  # noqa: S104


def _ss(text: str) -> Iterable[Port]:
    for words in rows(text, 6):
        if words[0] in ("tcp", "udp") and (place := _parse_socket_address(words[4])):
            users = re.findall(r'\("([^"]{1,64})",pid=', " ".join(words[6:]))
            yield Port(words[0], *place, name(users[0]) if users else None)


def _netstat(text: str) -> Iterable[Port]:
    """tcp  0  0 0.0.0.0:22  0.0.0.0:*  LISTEN  812/sshd: /usr/sbin"""
    for words in rows(text, 5):
        if words[0][:3] in ("tcp", "udp") and (place := _parse_socket_address(words[3])):
            owner = next((word for word in words[5:] if re.match(r"[0-9]+/", word)), "")
            yield Port(words[0][:3], *place, name(owner.partition("/")[2].rstrip(":")))


def _sockstat(text: str) -> Iterable[Port]:
    """root  sshd  1234 3  tcp4  *:22  *:*"""
    for words in rows(text, 6):
        if words[4][:3] in ("tcp", "udp") and (place := _parse_socket_address(words[5])):
            yield Port(words[4][:3], *place, name(words[1]))


def _lsof(text: str) -> Iterable[Port]:
    """launchd  1 root  7u  IPv4 0x1f  0t0  TCP *:22 (LISTEN)"""
    for words in rows(text, 9):
        if words[7] == "TCP" and words[-1] == "(LISTEN)" and (place := _parse_socket_address(words[8])):
            yield Port("tcp", *place, name(words[0].replace("\\x20", " ")))


def _proc_net(text: str, protocol: str) -> Iterable[Port]:
    """Rows of number, local and remote address, state; 0A is listening, 07 is an unconnected UDP socket."""
    for words in rows(text, 4):
        host, _, port = words[1].partition(":")
        count, listening = hexadecimal(port), "0A" if protocol == "tcp" else "07"
        if count and count <= 65535 and words[3] == listening and (address := _hex_address(host)):
            yield Port(protocol, "*" if address in ("0.0.0.0", "::") else address, count)  # noqa: S104


def _hex_address(text: str) -> str | None:
    """Words of four bytes, each with its last byte first."""
    if hexadecimal(text) is None or len(text) not in (8, 32):
        return None
    data = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    return str(ipaddress.ip_address(data))
