"""What containers tell about their addresses. What VMs tell comes from their agents."""

from __future__ import annotations

from typing import Any

from quorate.sim.guest_os.agent_facts import NO_MAC, by_interface, with_link_local
from quorate.sim.routing import Call, route


@route("GET /nodes/{node}/lxc/{vmid}/interfaces")
def container_interfaces(call: Call) -> list[dict[str, Any]] | None:
    guest = call.guest("lxc")
    if not guest.running:
        return None
    rows = [_container_interface("lo", NO_MAC, [("127.0.0.1", 8), ("::1", 128)])]
    for name, addresses in by_interface(guest).items():
        rows.append(_container_interface(name, addresses[0].mac.lower(), with_link_local(addresses)))
    return rows


def _container_interface(name: str, mac: str, addresses: list[tuple[str, int]]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "hwaddr": mac, "hardware-address": mac}
    row["ip-addresses"] = [
        {"ip-address": ip, "prefix": str(prefix), "ip-address-type": "inet6" if ":" in ip else "inet"}
        for ip, prefix in addresses
    ]
    for ip, prefix in addresses:
        row.setdefault("inet6" if ":" in ip else "inet", f"{ip}/{prefix}")
    return row
