"""A smoke test of a real cluster: it reads and, if requested, creates guests in one pool and removes them.

It uses the tools of solomonneas like a client, so all gates apply.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, NoReturn

from quorate.config.smoke import SmokeSettings
from quorate.pipeline.caller import Ask, Caller, Exchange
from quorate.problems import Problem
from quorate.pve.clock import Clock
from quorate.surfaces.compat.solomonneas.smoke import PRIVILEGES, SMOKE_PREFIX
from quorate.surfaces.compat.surface import CompatSurface

SURE = {"confirm": True, "destructive": True}
LOOK_AGAIN = 2.0
MARKER = "/root/mcp-smoke-marker"
SNAPSHOT = "mcp_smoke"
NOTE = "A smoke test; it removes itself"

Say = Callable[[str, bool, dict[str, Any]], None]
"""Receives each step: its name, whether it succeeded, and its facts."""


class _Failed(Exception):
    """A step failed and was reported."""


class Smoke:
    def __init__(
        self, tools: CompatSurface, settings: SmokeSettings, *, clock: Clock, say: Say, ask: Ask | None = None
    ) -> None:
        self._tools = tools
        self._settings = settings
        self._clock = clock
        self._say = say
        self._exchange = Exchange(Caller("quorate smoke", "cli", exposure=tools.exposure), None, ask)

    async def run(self) -> bool:
        """Whether every step succeeded. Created guests are removed in any case."""
        try:
            await self._look_around()
            if self._settings.makes_guests:
                await self._step("pool", "proxmox_list_pool_resources", pool=self._settings.pool)
            if self._settings.create:
                await self._container()
            if self._settings.source:
                await self._clone()
            if self._settings.inside:
                await self._service()
        except _Failed:
            return False
        return True

    # -- parts -----------------------------------------------------------------------------------------------------

    async def _look_around(self) -> None:
        await self._step("status", "proxmox_status")
        await self._step("storages", "proxmox_list_storage")
        await self._step("guests", "proxmox_list_vms")
        await self._step("containers", "proxmox_list_containers")
        await self._step("tasks", "proxmox_recent_tasks", limit=5)

    async def _container(self) -> None:
        chosen = self._settings
        found = await self._step("templates", "proxmox_list_templates", storage=chosen.template_storage, kind="vztmpl")
        if not found["container_templates"]:
            self._fail("templates", f"There is no container template on {chosen.template_storage} of {found['node']}")
        vmid = (await self._step("vmid", "proxmox_next_vmid"))["vmid"]
        name = f"{SMOKE_PREFIX}{vmid}"
        async with AsyncExitStack() as cleanup:
            cleanup.push_async_callback(self._remove, vmid, name)
            await self._step(
                "create", "proxmox_create_container", vmid=vmid, hostname=name, node=found["node"], pool=chosen.pool,
                ostemplate=found["container_templates"][0]["volid"], storage=chosen.root_storage, memory=256,
                rootfs_size="2", start=True, description=NOTE, confirm=True,
            )  # fmt: skip
            state = (await self._step("inspect", "proxmox_get_resource", vmid=vmid))["status"]["status"]
            if state != "running":
                self._fail("inspect", f"The new container is {state} instead of running")
            if chosen.backup_storage:
                await self._backup(vmid, chosen.backup_storage)
            if chosen.rollback:
                await self._rollback(vmid)
            await self._step("stop", "proxmox_stop_resource", vmid=vmid, timeoutSeconds=60, confirm=True)

    async def _backup(self, vmid: int, storage: str) -> None:
        await self._step(
            "backup", "proxmox_run_backup", vmid=vmid, storage=storage, mode=self._settings.backup_mode, confirm=True
        )
        listed = (await self._step("backup listed", "proxmox_list_backups", vmid=vmid))["backups"]
        ours = [one for one in listed if one["storage"] == storage]
        if not ours:
            self._fail("backup listed", f"The backup of {vmid} is not on {storage}")
        for one in ours:
            await self._remove_backup(one)

    async def _rollback(self, vmid: int) -> None:
        """A file written after the snapshot must be gone after the rollback."""
        about = {"vmid": vmid, "snapname": SNAPSHOT}
        await self._step("snapshot", "proxmox_snapshot_resource", **about, confirm=True)
        inside = await self._can_write(vmid)
        await self._step("stop for rollback", "proxmox_stop_resource", vmid=vmid, timeoutSeconds=60, confirm=True)
        await self._step("rollback", "proxmox_rollback_snapshot", **about, start=True, **SURE)
        if inside:
            gone = await self._step(
                "look inside", "proxmox_exec", vmid=vmid, command=f"test ! -e {MARKER}", confirm=True
            )
            if gone["exit_code"] != 0:
                self._fail("look inside", "What was written after the snapshot is still there")
        await self._step("delete snapshot", "proxmox_delete_snapshot", **about, **SURE)

    async def _can_write(self, vmid: int) -> bool:
        """Whether there is a transport into the container; without one the rollback is reported as not verified."""
        answer = await self._call("proxmox_write_file", vmid=vmid, path=MARKER, content="smoke\n", confirm=True)
        self._say(
            "write inside", True, {"vmid": vmid, **({"not_verified": answer["error"]} if "error" in answer else {})}
        )
        return "error" not in answer

    async def _clone(self) -> None:
        chosen = self._settings
        fit = await self._step(
            "source", "proxmox_validate_qemu_smoke_source", vmid=chosen.source, max_disk_gb=chosen.most_gib,
            allow_running=chosen.allow_running,
        )  # fmt: skip
        if not fit["ok"]:
            self._fail("source", "; ".join(fit["blockers"]))
        vmid = chosen.target or (await self._step("vmid", "proxmox_next_vmid"))["vmid"]
        name = chosen.clone_name or f"{SMOKE_PREFIX}qemu-{vmid}"
        async with AsyncExitStack() as cleanup:
            cleanup.push_async_callback(self._remove, vmid, name)
            cloned = await self._step(
                "clone", "proxmox_clone_resource", source_vmid=chosen.source, new_vmid=vmid, name=name, full=True,
                pool=chosen.pool, description=NOTE, confirm=True,
            )  # fmt: skip
            await self._wait_for_end(cloned)
            await self._step("start", "proxmox_start_resource", vmid=vmid, confirm=True)
            await self._address(vmid)
            await self._step("stop", "proxmox_stop_resource", vmid=vmid, timeoutSeconds=60, confirm=True)

    async def _wait_for_end(self, change: dict[str, Any]) -> None:
        """Wait for a change that outlasted its call."""
        if change["result"] == "running":
            waited = await self._step("wait", "proxmox_wait_task", upid=change["upid"], timeoutSeconds=1800)
            if waited["status"].get("exitstatus") != "OK":
                self._fail("wait", f"The task ended with {waited['status'].get('exitstatus', 'nothing')}")

    async def _address(self, vmid: int) -> None:
        until = self._clock.monotonic() + self._settings.network_seconds
        while True:
            answer = await self._call("proxmox_guest_network", vmid=vmid)
            if answer.get("ipv4"):
                self._say("address", True, {"vmid": vmid, "ipv4": [one["address"] for one in answer["ipv4"]]})
                return
            if self._clock.monotonic() >= until:
                self._fail("address", answer.get("error", "The guest has no address"))
            await self._clock.sleep(LOOK_AGAIN)

    async def _service(self) -> None:
        about = {"vmid": self._settings.inside, "service": self._settings.service, "confirm": True}
        await self._step("service", "proxmox_service_status", **about)
        if action := self._settings.service_action:
            await self._step(f"service {action}", f"proxmox_service_{action}", **about)

    # -- removing --------------------------------------------------------------------------------------------------

    async def _remove(self, vmid: int, name: str) -> None:
        """Delete the guest if id, name and note are ours: someone else may have taken the id first."""
        config = (await self._call("proxmox_get_resource", vmid=vmid)).get("config", {})
        if name in (config.get("name"), config.get("hostname")) and NOTE in config.get("description", ""):
            await self._step("remove", "proxmox_destroy_resource", vmid=vmid, purge=True, force=True, **SURE)

    async def _remove_backup(self, backup: dict[str, Any]) -> None:
        given = {"volume": backup["volid"], "node": backup["node"]}
        try:
            await self._tools.pipeline.run("volume_delete", given, self._exchange)
        except Problem as problem:
            self._fail("remove backup", str(problem))
        self._say("remove backup", True, {"volid": backup["volid"]})

    # -- steps -----------------------------------------------------------------------------------------------------

    async def _step(self, name: str, tool: str, /, **arguments: Any) -> dict[str, Any]:
        facts = await self._call(tool, **arguments)
        self._say(name, "error" not in facts, facts)
        if "error" in facts:
            raise _Failed
        return facts

    async def _call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        answer = await self._tools.call(tool, arguments, self._exchange)
        facts: dict[str, Any] = answer.structured_content or {}
        return facts

    def _fail(self, name: str, why: str) -> NoReturn:
        self._say(name, False, {"error": why})
        raise _Failed


def setup_commands(settings: SmokeSettings) -> list[str]:
    """Commands for a root shell on a node: a user that can do all of this in the pool, and nothing else."""
    user, role = "mcp-smoke@pve", "McpSmokeRole"
    more = ("Datastore.AllocateTemplate", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Cloudinit", "VM.Config.HWType")
    privileges = sorted({*PRIVILEGES, *more})
    paths = [
        f"/pool/{settings.pool}",
        f"/storage/{settings.template_storage}",
        f"/storage/{settings.root_storage}",
        "/sdn",
    ]
    return [
        f'pveum role add {role} --privs "{" ".join(privileges)}"',
        f"pveum pool add {settings.pool}",
        f"pveum user add {user}",
        *(f"pveum acl modify {path} --users {user} --roles {role}" for path in dict.fromkeys(paths)),
        f"pveum user token add {user} live-smoke --privsep 0",
    ]
