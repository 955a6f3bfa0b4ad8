"""What PVE refuses without quorum, and in which of its words.

`/etc/pve` is read-only then. Some methods check first; those that change a file of the whole cluster wait ten seconds
for its lock; those that write a guest's file fail while writing it, many of them only in their task. Reads, what a node
does to itself, and stopping guests still work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pve_simulator.guests import drives
from pve_simulator.guests.guest import Guest, config_path, task_type
from pve_simulator.http.refusals import failure
from pve_simulator.http.routing import Call
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.world import World

NOT_READY = "cluster not ready - no quorum?"
LOCK_SECONDS = 9.9
_LOCK_LINES = 6  # of a task that waits for a lock

_GUEST = r"/nodes/\{node\}/(?:qemu|lxc)/\{vmid\}"


@dataclass(frozen=True, slots=True)
class _SharedFile:
    """Changes of a file of the whole cluster: the lock they wait for, and how the refusal begins."""

    pattern: str
    lock: str
    prefix: str = ""


_USERS = "file-user_cfg"
_SHARED_FILES = (
    _SharedFile("POST /access/users", _USERS, "create user failed"),
    _SharedFile(r"PUT /access/users/\{userid\}", _USERS, "update user failed"),
    _SharedFile(r"DELETE /access/users/\{userid\}", _USERS, "delete user failed"),
    _SharedFile("POST /access/groups", _USERS, "create group failed"),
    _SharedFile("PUT /access/groups/.*", _USERS, "update group failed"),
    _SharedFile("DELETE /access/groups/.*", _USERS, "delete group failed"),
    _SharedFile("POST /access/roles", _USERS, "create role failed"),
    _SharedFile("PUT /access/roles/.*", _USERS, "update role failed"),
    _SharedFile("DELETE /access/roles/.*", _USERS, "delete role failed"),
    _SharedFile("PUT /access/acl", _USERS, "ACL update failed"),
    _SharedFile("POST /pools", _USERS, "create pool failed"),
    _SharedFile("PUT /pools.*", _USERS, "update pools failed"),
    _SharedFile("DELETE /pools.*", _USERS, "delete pool failed"),
    _SharedFile("POST /access/domains", "file-domains_cfg", "add auth server failed"),
    _SharedFile(r"PUT /access/domains/\{realm\}", "file-domains_cfg", "update auth server failed"),
    _SharedFile(r"DELETE /access/domains/\{realm\}", "file-domains_cfg", "delete auth server failed"),
    _SharedFile("POST /storage", "file-storage_cfg", "create storage failed"),
    _SharedFile("PUT /storage/.*", "file-storage_cfg", "update storage failed"),
    _SharedFile("DELETE /storage/.*", "file-storage_cfg", "delete storage failed"),
    _SharedFile("PUT /cluster/options", "file-datacenter_cfg"),
    _SharedFile(r"\w+ /cluster/backup.*", "file-jobs_cfg"),
    _SharedFile(r"\w+ /cluster/replication.*", "file-replication_cfg"),
    _SharedFile(r"\w+ /cluster/firewall/.*", "firewall-cluster"),
    _SharedFile(r"\w+ /cluster/ha/resources/\{sid\}.*", "domain-ha"),
    _SharedFile("POST /cluster/ha/rules", "domain-ha", "create ha rule failed"),
    _SharedFile("PUT /cluster/ha/rules/.*", "domain-ha", "update HA rules failed"),
    _SharedFile("DELETE /cluster/ha/rules/.*", "domain-ha", "delete HA rules failed"),
)

_UNAFFECTED = (
    rf"POST {_GUEST}/status/(?:stop|shutdown|reboot|reset|suspend)",
    r"POST /nodes/\{node\}/(?:stopall|suspendall)",
    r"POST /nodes/\{node\}/storage/\{storage\}/(?:upload|download-url)",
    r"\w+ /nodes/\{node\}/(?:apt|network|dns|time|hosts|subscription|aplinfo)\b.*",
)
"""What only the node itself or a running guest has to do with."""

_GUEST_FILE = rf"(?:PUT {_GUEST}/(?:config|unlink|snapshot/\{{snapname\}}/config)|POST {_GUEST}/template)"
"""Calls that write the guest's file before they answer."""
_GUEST_TASKS = {
    rf"POST {_GUEST}/snapshot": "snapshot",
    rf"DELETE {_GUEST}/snapshot/\{{snapname\}}": "delsnapshot",
    rf"POST {_GUEST}/snapshot/\{{snapname\}}/rollback": "rollback",
    rf"POST {_GUEST}/config": "config",
    rf"PUT {_GUEST}/resize": "resize",
}
"""Calls whose task fails to write the guest's file."""


async def refuse_or_fail(call: Call) -> str | None:
    """Refuse a change in PVE's words, or return the task that fails; nothing if quorum does not matter to it."""
    spec = f"{call.endpoint.method} {call.endpoint.template}"
    if any(re.fullmatch(pattern, spec) for pattern in _UNAFFECTED):
        return None
    if spec == "POST /nodes/{node}/vzdump":
        return None  # each guest fails in the task, as its lock is written to its file
    if re.fullmatch(f"DELETE {_GUEST}", spec):
        return _failing_task(call, "destroy", _destroy(call))
    for pattern, action in _GUEST_TASKS.items():
        if re.fullmatch(pattern, spec):
            return _failing_task(call, action, _write(call))
    if re.fullmatch(_GUEST_FILE, spec):
        guest = call.guest()
        guest.check_lock()
        raise failure(denied_write(call.world, call.vmid))
    for shared in _SHARED_FILES:
        if re.fullmatch(shared.pattern, spec):
            await call.world.clock.sleep(LOCK_SECONDS)
            text = lock_error(shared.lock)
            raise failure(f"{shared.prefix}: {text}" if shared.prefix else text)
    raise failure(NOT_READY)


def lock_error(lock: str) -> str:
    return f"cfs-lock '{lock}' error: no quorum!"


def denied_write(world: World, vmid: int) -> str:
    """The failure to write a guest's file, which names the writing process."""
    guest = world.guests[vmid]
    pid = world.nodes[guest.node].next_pid()
    return f"unable to open file '/etc/pve/{config_path(guest.node, guest.kind, vmid)}.tmp.{pid}' - Permission denied"


def check_writable(world: World, vmid: int) -> None:
    """End a task that has to write this guest's file, if there is no quorum."""
    if not world.quorate:
        raise TaskError(denied_write(world, vmid))


def _failing_task(call: Call, action: str, work: Work) -> str:
    guest = call.guest()
    return call.start_task(task_type(guest.kind, action), str(guest.vmid), work)


def _write(call: Call) -> Work:
    async def work(context: TaskContext) -> None:
        guest = call.guest()
        async with context.config_lock(guest):
            guest.check_lock()
            await context.sleep(0.4)
            raise TaskError(denied_write(call.world, guest.vmid))

    return work


def _destroy(call: Call) -> Work:
    """The disks go first: those of shared storages wait for a lock and stay. The guest's file stays too."""

    async def work(context: TaskContext) -> None:
        guest = call.guest()
        async with context.config_lock(guest):
            if guest.running and not call.params.get("force"):
                running = f"VM {guest.vmid} is running - destroy failed"
                if guest.kind == "lxc":
                    running = f"unable to destroy CT {guest.vmid} - container is running"
                raise TaskError(running)
            guest.check_lock()
            for volid in _shared_disks(call.world, guest):
                storage = volid.partition(":")[0]
                for _ in range(_LOCK_LINES):
                    context.log(f"trying to acquire cfs lock 'storage-{storage}' ...")
                    await context.sleep(LOCK_SECONDS / _LOCK_LINES)
                context.log(f"Could not remove disk '{volid}', check manually: {lock_error(f'storage-{storage}')}")
            raise TaskError(denied_write(call.world, guest.vmid))

    return work


def _shared_disks(world: World, guest: Guest) -> list[str]:
    shared = {storage.id for storage in world.storages.values() if storage.shared}
    return [drive.volid for drive in drives.disks(guest.config) if drive.storage in shared]
