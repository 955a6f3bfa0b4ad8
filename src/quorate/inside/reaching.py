"""Which way leads into a guest, and if none does, why not and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.inside.agent import AgentWay
from quorate.inside.guest_ssh import ssh_way
from quorate.inside.pct import pct_way
from quorate.inside.way import Way
from quorate.problems import BadArgument, Conflict, Problem, ServerFailed
from quorate.pve.cluster import Cluster, Guest

_WINDOWS = ("mswindows", "win")


async def way_into(cluster: Cluster, guest: Guest, *, prefer: str | None = None) -> Way:
    """SSH where it is preferred or configured for this very guest; else the agent of a VM, pct for a container."""
    _refuse_misfit(guest, prefer)
    if guest.row.template:
        raise Conflict(
            f"{guest} is a template and never runs", next_step="Clone it with guest_clone and start the clone"
        )
    chosen = prefer or ("ssh" if cluster.ssh.guest(guest.vmid) else "agent" if guest.is_vm else "pct")
    if chosen == "ssh":
        return await ssh_way(cluster, guest)
    await _ensure_running(guest)
    if chosen == "pct":
        return await pct_way(cluster, guest)
    try:
        return await agent_way(cluster, guest)
    except Conflict:
        if prefer is None and cluster.ssh.has_login_for_guests():
            return await ssh_way(cluster, guest)
        raise


async def agent_way(cluster: Cluster, guest: Guest) -> AgentWay:
    """The agent, if it answers; with the system that it says it runs on."""
    try:
        told = await guest.get("agent/get-osinfo")
    except (Conflict, ServerFailed) as problem:
        raise await _no_agent(guest, problem) from None
    return AgentWay(cluster, guest, _system(told))


def _system(told: Mapping[str, Any]) -> str:
    result = told.get("result") or {}
    return "windows" if str(result.get("id", "")).lower().startswith(_WINDOWS) else "posix"


def _refuse_misfit(guest: Guest, prefer: str | None) -> None:
    if prefer == "agent" and not guest.is_vm:
        raise BadArgument(f"{guest} is a container and has no agent", next_step="Leave way out, or use pct or ssh")
    if prefer == "pct" and guest.is_vm:
        raise BadArgument(f"{guest} is a VM and pct is for containers", next_step="Leave way out, or use agent or ssh")


async def _ensure_running(guest: Guest) -> None:
    """By its own node, because the cluster's view lags behind."""
    status = await guest.get("status/current")
    if status.get("status") != "running":
        raise Conflict(
            f"{guest} is {status.get('status', 'not running')}",
            why="Nothing can be done inside a guest that does not run",
            next_step=f"Start it with guest_power guest={guest.vmid} action=start, then guest_wait",
        )
    if status.get("qmpstatus") in ("paused", "suspended"):
        raise Conflict(f"{guest} is paused", next_step=f"Resume it with guest_power guest={guest.vmid} action=resume")


async def _no_agent(guest: Guest, problem: Problem) -> Problem:
    """What to do about PVE's short words, for the system that the guest is."""
    words = str(problem)
    config = await guest.get("config")
    install = _install(str(config.get("ostype", "")))
    if "No QEMU guest agent configured" in words:
        return Conflict(
            f"{guest} has no guest agent configured, so there is no way into it",
            why="Proxmox VE gives a VM the agent's line only if its option `agent` is on",
            next_step=f"On {guest.row.node} run `qm set {guest.vmid} --agent enabled=1`; inside {install}; then shut "
            "the VM down and start it again (a reboot from inside is not enough). Or configure SSH for it: "
            f"PROXMOX_VM_{guest.vmid}_SSH_HOST",
        )
    if "agent is not running" in words:
        switched_off = str(config.get("agent", "1")).startswith("0") or "enabled=0" in str(config.get("agent"))
        option = (
            f"; the option is off, too: `qm set {guest.vmid} --agent enabled=1` and a full stop and start"
            * switched_off
        )
        return Conflict(
            f"The guest agent of {guest} does not answer",
            why="It is not installed or not running inside, the guest still boots, or the VM has not been stopped and "
            "started since the option `agent` was switched on",
            next_step=f"guest_wait waits for it; else inside {install}{option}. "
            f"Or configure SSH for it: PROXMOX_VM_{guest.vmid}_SSH_HOST",
        )
    return problem


def _install(ostype: str) -> str:
    if ostype.startswith("w"):
        return "install the virtio-win guest tools (virtio-win-guest-tools.exe of the virtio-win ISO)"
    return (
        "run `apt install qemu-guest-agent && systemctl enable --now qemu-guest-agent` (Debian, Ubuntu), "
        "`dnf install qemu-guest-agent && systemctl enable --now qemu-guest-agent` (Fedora, RHEL) or "
        "`apk add qemu-guest-agent && rc-update add qemu-guest-agent && rc-service qemu-guest-agent start` (Alpine)"
    )
