"""Which transport to use for a guest, and if none works, why and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.hints import Advice, tools
from quorate.inside.agent import AgentTransport
from quorate.inside.guest_addresses import read_interfaces, usable_addresses
from quorate.inside.pct import node_addresses, pct_transport
from quorate.inside.ssh_transport import SshTransport, start_problem
from quorate.inside.transport import Transport
from quorate.problems import (
    AgentNotConfigured,
    AgentSilent,
    BadArgument,
    Conflict,
    NotConfigured,
    Problem,
    Refused,
    ServerFailed,
)
from quorate.pve.cluster import Cluster, Guest
from quorate.ssh.process import ExecutionTarget, ExitStatus
from quorate.ssh.target import SshTarget

_WINDOWS = ("mswindows", "win")


async def select_transport(cluster: Cluster, guest: Guest, *, prefer: str | None = None) -> Transport:
    """SSH if requested or configured for this guest; else the agent of a VM, or pct for a container."""
    _refuse_misfit(guest, prefer)
    if guest.row.template:
        raise Conflict(
            f"{guest} is a template and never runs",
            next_step=Advice("Clone it and start the clone", tools.guest_clone(guest=guest.vmid)),
        )
    chosen = prefer or ("ssh" if cluster.ssh.guest(guest.vmid) else "agent" if guest.is_vm else "pct")
    if chosen == "ssh":
        return await guest_ssh_transport(cluster, guest)
    await _ensure_running(guest)
    if chosen == "pct":
        return await pct_transport(cluster, guest)
    try:
        return await agent_transport(cluster, guest)
    except Conflict:
        if prefer is None and cluster.ssh.has_login_for_guests():
            return await guest_ssh_transport(cluster, guest)
        raise


async def agent_transport(cluster: Cluster, guest: Guest) -> AgentTransport:
    """The agent, if it answers, with the kind of system that it reports."""
    try:
        osinfo = await guest.get("agent/get-osinfo")
    except (Conflict, ServerFailed) as problem:
        raise await _no_agent(guest, problem) from None
    return AgentTransport(cluster, guest, _system(osinfo))


def _system(osinfo: Mapping[str, Any]) -> str:
    result = osinfo.get("result") or {}
    return "windows" if str(result.get("id", "")).lower().startswith(_WINDOWS) else "posix"


def _refuse_misfit(guest: Guest, prefer: str | None) -> None:
    if prefer == "agent" and not guest.is_vm:
        raise BadArgument(f"{guest} is a container and has no agent", next_step="Omit way, or use pct or ssh")
    if prefer == "pct" and guest.is_vm:
        raise BadArgument(f"{guest} is a VM and pct is for containers", next_step="Omit way, or use agent or ssh")


async def _ensure_running(guest: Guest) -> None:
    """Refuse a guest that does not run. Its node is asked, because the cluster's view lags."""
    status = await guest.get("status/current")
    if status.get("status") != "running":
        raise Conflict(
            f"{guest} is {status.get('status', 'not running')}",
            why="A guest has to run before anything can happen inside it",
            next_step=Advice(
                "Start it", tools.guest_power(guest=guest.vmid, action="start"), tools.guest_wait(guest=guest.vmid)
            ),
        )
    if status.get("qmpstatus") in ("paused", "suspended"):
        resume = tools.guest_power(guest=guest.vmid, action="resume")
        raise Conflict(f"{guest} is paused", next_step=Advice("Resume it", resume))


async def _no_agent(guest: Guest, problem: Problem) -> Problem:
    """PVE's short message, with what to do about it for this kind of guest."""
    config = await guest.get("config")
    install = _install(str(config.get("ostype", "")))
    if isinstance(problem, AgentNotConfigured):
        return Conflict(
            f"{guest} has no guest agent configured, so it cannot be entered",
            why="Proxmox VE connects a VM to the agent only if its option `agent` is on",
            next_step=f"On {guest.row.node} run `qm set {guest.vmid} --agent enabled=1`; inside {install}; then shut "
            "the VM down and start it again (a reboot from inside is not enough). Or configure SSH for it: "
            f"PROXMOX_VM_{guest.vmid}_SSH_HOST",
        )
    if isinstance(problem, AgentSilent):
        switched_off = str(config.get("agent", "1")).startswith("0") or "enabled=0" in str(config.get("agent"))
        option = (
            f"; the option is off, too: run `qm set {guest.vmid} --agent enabled=1`, then stop and start the VM"
            * switched_off
        )
        return Conflict(
            f"The guest agent of {guest} does not answer",
            why="It is not installed or not running inside, the guest is still booting, or the VM has not been stopped "
            "and started since the option `agent` was turned on",
            next_step=Advice(
                f"Inside {install}{option}. Or configure SSH for it (PROXMOX_VM_{guest.vmid}_SSH_HOST). If it is still "
                "booting, wait for it",
                tools.guest_wait(guest=guest.vmid),
            ),
        )
    return problem


def _install(ostype: str) -> str:
    if ostype.startswith("w"):
        return "install the virtio-win guest tools (virtio-win-guest-tools.exe on the virtio-win ISO)"
    return (
        "run `apt install qemu-guest-agent && systemctl enable --now qemu-guest-agent` (Debian, Ubuntu), "
        "`dnf install qemu-guest-agent && systemctl enable --now qemu-guest-agent` (Fedora, RHEL) or "
        "`apk add qemu-guest-agent && rc-update add qemu-guest-agent && rc-service qemu-guest-agent start` (Alpine)"
    )


async def guest_ssh_transport(cluster: Cluster, guest: Guest) -> SshTransport:
    target = await ssh_of_guest(cluster, guest)
    place = ExecutionTarget(cluster.ssh.pool, target)

    def explain(ended: ExitStatus) -> Problem:
        return start_problem(guest, ended.exit_code, ended.message)

    return SshTransport("ssh", f"ssh to {target}", place, explain, max_output=cluster.ssh.settings.max_output)


async def ssh_of_guest(cluster: Cluster, guest: Guest) -> SshTarget:
    """The configured address of the guest, else the one that PVE reports."""
    if configured := cluster.ssh.guest(guest.vmid):
        return configured
    reported = await _reported_address(guest)
    if reported is None:
        raise NotConfigured(
            f"The address of {guest} is unknown",
            why="Proxmox VE reports none: the guest is off, or its agent does not answer",
            next_step=f"Set it in the configuration: [clusters.{cluster.name}.ssh.guests.{guest.vmid}] "
            f'host = "ADDRESS", or PROXMOX_VM_{guest.vmid}_SSH_HOST',
        )
    cluster.ssh.require_allowed(reported)
    if reported in await node_addresses(cluster):
        raise Refused(
            f"{guest} claims the address {reported}, which belongs to a node",
            why="An address that a guest reports must not lead its commands to another machine",
            next_step="Check its network; the operator can set its real address in the configuration",
        )
    return cluster.ssh.reported_login(guest.vmid).at(reported)


async def _reported_address(guest: Guest) -> str | None:
    """The guest's own report. Addresses in its configuration do not count: anyone who may edit it could set them."""
    try:
        addresses = usable_addresses(await read_interfaces(guest), await guest.get("config"))
    except Problem:
        return None
    return next(iter(addresses), None)
