"""The system services of the nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pve_simulator.http.routing import Call, Handler, route
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.world import Node, PerNode

# The API needs these, so it could not start them again.
ESSENTIAL = frozenset({"pve-cluster", "pvedaemon", "pveproxy"})

_DESCRIPTIONS = {
    "chrony": "chrony, an NTP client/server", "corosync": "Corosync Cluster Engine",
    "cron": "Regular background program processing daemon", "ksmtuned": "Kernel Samepage Merging (KSM) Tuning Daemon",
    "lxcfs": "FUSE filesystem for LXC", "postfix": "Postfix Mail Transport Agent",
    "proxmox-firewall": "Proxmox nftables firewall", "pve-cluster": "The Proxmox VE cluster filesystem",
    "pve-firewall": "Proxmox VE firewall", "pve-ha-crm": "PVE Cluster HA Resource Manager Daemon",
    "pve-ha-lrm": "PVE Local HA Resource Manager Daemon", "pve-lxc-syscalld": "Proxmox VE LXC Syscall Daemon",
    "pvedaemon": "PVE API Daemon", "pvefw-logger": "Proxmox VE firewall logger", "pveproxy": "PVE API Proxy Server",
    "pvescheduler": "Proxmox VE scheduler", "pvestatd": "PVE Status Daemon", "qmeventd": "PVE Qemu Event Daemon",
    "spiceproxy": "PVE SPICE Proxy Server", "sshd": "OpenBSD Secure Shell server", "syslog": "System Logging Service",
    "systemd-journald": "Journal Service", "systemd-timesyncd": "Network Time Synchronization",
}  # fmt: skip
# Installed, but replaced by another service on a normal node.
_NOT_RUNNING = {"syslog": "not-found", "systemd-timesyncd": "not-found"}
_CANNOT_RELOAD = frozenset({"chrony", "corosync", "cron", "ksmtuned", "pve-cluster", "pvefw-logger", "qmeventd"})


@dataclass(slots=True)
class Service:
    """A systemd unit."""

    name: str
    running: bool = True
    unit_state: str = "enabled"

    def row(self) -> dict[str, Any]:
        return {
            "service": self.name,
            "name": self.name,
            "desc": _DESCRIPTIONS[self.name],
            "state": "running" if self.running else "dead",
            "active-state": "active" if self.running else "inactive",
            "unit-state": self.unit_state,
        }


class Services(PerNode[dict[str, Service]]):
    """The services of every node."""

    def make(self, _node: Node) -> dict[str, Service]:
        return {
            name: Service(name, name not in _NOT_RUNNING, _NOT_RUNNING.get(name, "enabled")) for name in _DESCRIPTIONS
        }


def service_work(service: Service, action: str) -> Work:
    """Start, stop, restart or reload, inside the task."""

    async def work(context: TaskContext) -> None:
        if service.name in ESSENTIAL and action == "stop":
            raise TaskError(f"invalid service cmd '{service.name} stop': refusing to stop essential service!")
        if service.unit_state == "not-found":
            context.log(f"Failed to {action} {service.name}.service: Unit {service.name}.service not found.")
            raise TaskError(f"command 'systemctl {action} {service.name}' failed: exit code 5")
        if action == "reload" and (service.name in _CANNOT_RELOAD or not service.running):
            context.log(f"Failed to reload {service.name}.service: Job type reload is not applicable for unit.")
            raise TaskError(f"command 'systemctl reload {service.name}' failed: exit code 1")
        await context.sleep(1.0)
        service.running = action != "stop"

    return work


_SERVICES = "/nodes/{node}/services"
_ACTIONS = ("start", "stop", "restart", "reload")


def _service(call: Call) -> Service:
    return call.world.part(Services).of(call.node)[call.values["service"]]


@route(f"GET {_SERVICES}")
def services(call: Call) -> list[dict[str, Any]]:
    return [service.row() for service in call.world.part(Services).of(call.node).values()]


@route(f"GET {_SERVICES}/{{service}}/state")
def state(call: Call) -> dict[str, Any]:
    return _service(call).row()


def _action(action: str) -> Handler:
    def handler(call: Call) -> str:
        service = _service(call)
        return call.start_task(f"srv{action}", service.name, service_work(service, action))

    return handler


for _name in _ACTIONS:
    route(f"POST {_SERVICES}/{{service}}/{_name}", needs_quorum=False)(_action(_name))
