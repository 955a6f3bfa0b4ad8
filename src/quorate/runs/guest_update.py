"""Updating the packages of a guest, with a rollback if it is not healthy afterwards."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.inside.maintenance import UNCHANGED, any_manager_script, explain_failure
from quorate.inside.transport_selection import select_transport
from quorate.operations.plan import Plan, Target
from quorate.operations.preconditions import has_feature, refuse_locked, snapshots_of
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.problems import Conflict, NotFound, Unreachable
from quorate.pve.cluster import Cluster, Guest
from quorate.runs.kind import Next, Step, StepResult, Work, declare, fail, finish
from quorate.runs.start import At, Outline, Window, number_lines, start_plan
from quorate.runs.steps import count_failed_start, power_step, start_again
from quorate.runs.store import Bound, Pending, Run, literal
from quorate.secret import shown_line
from quorate.tools.storages import survey
from quorate.units import duration

KIND = "guest_update"
HEALTH_SECONDS = 120.0
CHECK_INTERVAL = 10.0
ROLLBACK_TRIES = 3
KEPT_OUTPUT = 4000
WINDOWS = (
    "$ErrorActionPreference = 'Stop'; "  # a search without a network would look like one that found nothing
    "$session = New-Object -ComObject Microsoft.Update.Session; "
    "$found = $session.CreateUpdateSearcher().Search('IsInstalled=0 and IsHidden=0').Updates; "
    "if ($found.Count -eq 0) { 'nothing to install'; exit 0 }; "
    "$get = $session.CreateUpdateDownloader(); $get.Updates = $found; [void]$get.Download(); "
    "$put = $session.CreateUpdateInstaller(); $put.Updates = $found; $done = $put.Install(); "
    "$found | ForEach-Object { $_.Title }; if ($done.ResultCode -ne 2) { exit 1 }"
)

Keep = Literal["failure", "always", "never"]


@operation(
    toolset="runs",
    risk=Risk.DESTROY,
    plans_later=True,
    search_words="update upgrade packages guest vm container apt dnf apk zypper windows rollback snapshot safe patch",
    example="guest=docker01 dry_run=true",
    shown_by=("run_list",),
)
async def run_guest_update(
    pve: Cluster,
    guest: GuestRef,
    services: Annotated[list[str], Meta(description="Restart these afterwards")] | None = None,
    check: Annotated[str, Meta(description="Command inside that must succeed")] | None = None,
    port: Annotated[int, Meta(ge=1, le=65535, description="TCP port inside that must be open")] | None = None,
    url: Annotated[str, Meta(description="URL that must answer, requested from inside")] | None = None,
    health_seconds: Annotated[float, Meta(ge=0, le=3600, description="Time to become healthy")] = HEALTH_SECONDS,
    keep: Annotated[Keep, Meta(description="When to keep the snapshot")] = "failure",
    backup_storage: Annotated[str, Meta(description="For a backup, if it cannot be snapshotted")] | None = None,
    at: At | None = None,
    window: Window | None = None,
) -> Plan:
    """Start a run that updates the packages of a guest and rolls it back if it is not healthy afterwards."""
    target = await pve.guest(guest)
    status = await target.get("status/current")
    refuse_locked(target, status)
    if status.get("status") != "running":
        raise Conflict(
            f"{target} is not running",
            next_step=Advice("Start it first", tools.guest_power(guest=target.vmid, action="start")),
        )
    into = await select_transport(pve, target)
    windows = into.system == "windows"
    by_snapshot = await has_feature(target, "snapshot")
    checks = _checks(check, port, url, windows=windows)
    update = WINDOWS if windows else any_manager_script()
    restart = _restart(services or (), windows=windows)
    commands = [update, *([restart] if restart else []), *checks]
    way_back = "snapshot" if by_snapshot else "backup"
    outline = Outline(
        KIND,
        "run_guest_update",
        f"Update {target} with rollback",
        f"take a {way_back} of {target}, update its packages"
        + (f", restart {', '.join(services)}" if services else "")
        + (f", check {'; '.join(checks)}" if checks else "")
        + ", roll back if that fails",
        {
            "vmid": target.vmid,
            "type": target.row.type,
            "update": update,
            "restart": restart,
            "checks": checks,
            "health_seconds": health_seconds,
            "keep": keep,
            "by_snapshot": by_snapshot,
            "backup_storage": backup_storage,
        },
        lambda run: _bounds(run, target, commands, by_snapshot=by_snapshot),
        Target.of_guest(target),
        facts={
            "steps": number_lines(
                [
                    f"Take a {way_back}",
                    f"Update packages by {into.description}",
                    *([f"Restart {', '.join(services)}"] if services else []),
                    *(f"Check: {command}" for command in checks),
                    f"If {'anything' if checks else 'the update'} fails after a change, go back to the {way_back}",
                    {"failure": f"Keep the {way_back} after a failure only", "always": f"Keep the {way_back}",
                     "never": f"Remove the {way_back} in any case"}[keep],
                ]
            ),
            "may_destroy": [f"what is written in {target} during the update, if it is rolled back"],
        },
        warnings=() if checks else ("No check was specified: only a failing update is rolled back",),
        risk=Risk.DESTROY,
        risk_because="a rollback discards what the guest writes during the update",
    )  # fmt: skip
    return start_plan(pve, outline, at, window)


def _checks(check: str | None, port: int | None, url: str | None, *, windows: bool) -> list[str]:
    commands = [check] if check else []
    if port is not None:
        commands.append(
            f"if (-not (Test-NetConnection -ComputerName localhost -Port {port} -InformationLevel Quiet)) {{ exit 1 }}"
            if windows
            else f"nc -z 127.0.0.1 {port} 2>/dev/null || bash -c '</dev/tcp/127.0.0.1/{port}'"
        )
    if url is not None:
        quoted = shlex.quote(url)
        commands.append(
            f"Invoke-WebRequest -UseBasicParsing -Uri {_quote_for_powershell(url)} | Out-Null"
            if windows
            else f"curl -fsS -o /dev/null {quoted} || wget -q -O /dev/null {quoted}"
        )
    return commands


def _restart(services: Sequence[str], *, windows: bool) -> str:
    if not services:
        return ""
    if windows:
        return f"Restart-Service -Name {','.join(map(_quote_for_powershell, services))}"
    names = " ".join(map(shlex.quote, services))
    return (
        f"if command -v systemctl >/dev/null 2>&1; then systemctl restart {names}; "
        f'else for one in {names}; do rc-service "$one" restart || exit 1; done; fi'
    )


def _quote_for_powershell(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _bounds(run: str, guest: Guest, commands: Sequence[str], *, by_snapshot: bool) -> list[Bound]:
    base, name = f"/nodes/*/{guest.row.type}/{guest.vmid}", _snapshot(run)
    target = literal(guest.row.name)
    bounds = [Bound("RUN", f"*: {literal(shown_line(command))}*", target=target) for command in commands]
    bounds.append(Bound("POST", f"{base}/status/start", {"*": []}, target=target))
    if by_snapshot:
        return [
            *bounds,
            Bound("POST", f"{base}/snapshot", {"snapname": [name], "description": ["*"]}, target=target),
            Bound("POST", f"{base}/snapshot/{name}/rollback", {"*": []}, target=target),
            Bound("DELETE", f"{base}/snapshot/{name}", {"*": []}, target=target),
        ]
    archive = {"archive": ["*"], "ostemplate": ["*"], "restore": ["1"], "storage": ["*"]}
    return [
        *bounds,
        Bound("POST", "/nodes/*/vzdump", {"vmid": [str(guest.vmid)], "remove": ["0"], "storage": ["*"], "mode": ["*"],
                                          "compress": ["*"], "notes-template": ["*"]}),
        Bound("POST", f"{base}/status/stop", {"*": []}, target=target),
        Bound("POST", f"/nodes/*/{guest.row.type}", {"vmid": [str(guest.vmid)], "force": ["1"], **archive}),
        Bound("DELETE", "/nodes/*/storage/*/content/*", {"*": []}, target=f"*{guest.vmid}*"),
    ]  # fmt: skip


def _snapshot(run: str) -> str:
    return f"update-{run}"


@dataclass(frozen=True, slots=True)
class GuestUpdate:
    name: str = KIND

    async def next(self, work: Work) -> Next:
        if work.busy:
            return Next()
        scope, memory = work.scope, work.memory
        if work.aborting:
            work.run.report = {"output": memory["output"]} if memory.get("output") else {}
            return await start_again(work, [int(scope["vmid"])] if memory.get("stopped") else []) or Next()
        if work.closing and not memory.get("begun"):
            return Next()
        work.pve.inventory.forget()
        guest = await work.pve.guest(int(scope["vmid"]))
        status = await guest.get("status/current")
        if status.get("lock"):
            return Next(waits_for=f"{guest} is locked ({status['lock']})")
        if not await self._is_protected(work, guest):
            if memory.get("protected"):
                return Next(pause=f"What {guest} could be rolled back to is gone; it is left as it is")
            if "verdict" in memory:
                return self._end(work)
            return Next((self._protect(work, guest),))
        memory["protected"] = True
        if "verdict" not in memory:
            step = self._change(work, guest, running=status.get("status") == "running")
            if step is not None:
                return step
            memory["verdict"], memory["why"] = "healthy", ""
        if memory["verdict"] == "failed" and not (memory.get("rolled_back") or memory.get("unchanged")):
            return self._roll_back(work, guest, running=status.get("status") == "running")
        if status.get("status") != "running":
            if error := memory.pop("start_error", ""):  # shown once; when the run is resumed, it is tried again
                return Next(pause=f"{guest} could not be started: {error}")
            return Next((power_step(guest.row, "start"),))
        return self._drop(work, guest) or self._end(work)

    async def _is_protected(self, work: Work, guest: Guest) -> bool:
        """Whether there is a snapshot or backup, or there was one that the run removed as requested."""
        if work.memory.get("dropped"):
            return True
        if work.scope["by_snapshot"]:
            name = _snapshot(work.run.id)
            return any(row["name"] == name and not row.get("snapstate") for row in await snapshots_of(guest))
        volumes, trouble = await survey(work.pve, content="backup")
        own = [
            backup for backup in volumes if backup.vmid == guest.vmid and f"run {work.run.id}" in (backup.notes or "")
        ]
        if not own and trouble and work.memory.get("protected"):
            raise Unreachable(f"The backup of {guest} cannot be found now", why="; ".join(trouble))
        work.memory["backup"] = own[0].volid if own else ""
        return bool(own)

    def _protect(self, work: Work, guest: Guest) -> Step:
        run = work.run.id
        if work.scope["by_snapshot"]:
            arguments = {
                "guest": guest.vmid,
                "snapshot": _snapshot(run),
                "description": f"before the update, run {run}",
            }
            return Step("protect", "snapshot_create", arguments, f"Take a snapshot of {guest}")
        storage = {"storage": work.scope["backup_storage"]} if work.scope["backup_storage"] else {}
        arguments = {"guest": guest.vmid, "notes": f"before the update, run {run}", **storage}
        return Step("protect", "backup_create", arguments, f"Back up {guest}")

    def _change(self, work: Work, guest: Guest, *, running: bool) -> Next | None:
        """Update, restart, check; None when everything is fine."""
        scope, memory = work.scope, work.memory
        if not running:
            memory["verdict"], memory["why"] = "failed", "it stopped during the update"
            return Next(seconds=0.0)
        if not memory.get("updated"):
            return Next((_command("update", guest, scope["update"], f"Update the packages of {guest}"),))
        if scope["restart"] and not memory.get("restarted"):
            return Next((_command("restart", guest, scope["restart"], f"Restart services of {guest}"),))
        now = work.pve.clock.time()
        since = float(memory.setdefault("checking_since", now))
        for number, check in enumerate(scope["checks"]):
            state = memory.setdefault("checks", {}).setdefault(str(number), {})
            if state.get("passed"):
                continue
            if state.get("error") and now - since >= float(scope["health_seconds"]):
                memory["verdict"] = "failed"
                memory["why"] = f"it was not healthy within {duration(now - since)}: {check}: {state['error']}"
                return Next(seconds=0.0)
            if state.get("error") and now - float(state["at"]) < CHECK_INTERVAL:
                return Next(waits_for=f"{guest} is not healthy yet: {state['error']}", seconds=CHECK_INTERVAL)
            limit = max(CHECK_INTERVAL, float(scope["health_seconds"]))  # one that hangs is not healthy
            return Next((_command(f"check-{number}", guest, check, f"Check {guest}", timeout=limit),))
        return None

    def _roll_back(self, work: Work, guest: Guest, *, running: bool) -> Next:
        memory = work.memory
        if int(memory.get("rollback_tries", 0)) >= ROLLBACK_TRIES:
            del memory["rollback_tries"]  # a resumed run tries again
            return Next(pause=f"{guest} could not be rolled back: {memory.get('rollback_error', '')}")
        if work.scope["by_snapshot"]:
            arguments: dict[str, Any] = {"guest": guest.vmid, "snapshot": _snapshot(work.run.id)}
            return Next((Step("rollback", "snapshot_rollback", arguments, f"Roll {guest} back"),))
        if running:
            return Next((Step("stop", "guest_stop", {"guest": guest.vmid}, f"Stop {guest}"),))
        arguments = {"backup": memory["backup"], "vmid": guest.vmid, "overwrite": True}
        return Next((Step("rollback", "backup_restore", arguments, f"Restore {guest} from its backup"),))

    def _drop(self, work: Work, guest: Guest) -> Next | None:
        """Remove the snapshot or backup, if the rule says so."""
        memory, keep = work.memory, work.scope["keep"]
        changed_and_failed = memory["verdict"] == "failed" and not memory.get("unchanged")
        kept = keep == "always" or (keep == "failure" and changed_and_failed)
        if kept or memory.get("dropped") or memory.get("drop_error"):
            return None
        if work.scope["by_snapshot"]:
            arguments = {"guest": guest.vmid, "snapshot": _snapshot(work.run.id)}
            return Next((Step("drop", "snapshot_delete", arguments, f"Remove the snapshot of {guest}"),))
        step = Step("drop", "volume_delete", {"volume": memory["backup"]}, f"Remove the backup of {guest}")
        return Next((step,))

    def _end(self, work: Work) -> Next:
        memory = work.memory
        left = memory.get("drop_error")
        work.run.report = {
            "verdict": memory["verdict"],
            **({"why": memory["why"]} if memory.get("why") else {}),
            **({"rolled_back": True} if memory.get("rolled_back") else {}),
            **({"output": memory["output"]} if memory.get("output") else {}),
            **({"not_removed": left} if left else {}),
            **self._describe_rollback(work),
        }
        if memory["verdict"] == "healthy":
            return finish("updated and healthy")
        return fail("rolled back: " + memory["why"] if memory.get("rolled_back") else memory["why"])

    def _describe_rollback(self, work: Work) -> dict[str, str]:
        """The snapshot or backup that is still there, by its kind."""
        if not work.memory.get("protected") or work.memory.get("dropped"):
            return {}
        if work.scope["by_snapshot"]:
            return {"kept_snapshot": _snapshot(work.run.id)}
        return {"kept_backup": str(work.memory["backup"])}

    def settle(self, run: Run, key: str, step: Pending, result: StepResult) -> None:
        memory = run.memory
        if not result.was_sent:
            return
        what = key.partition("-")[0]
        if what in ("stop", "rollback"):
            memory["stopped"] = True  # or it may be, even if that failed: the run has to start it again
        if what == "update":
            memory["begun"] = True  # from here on it is not left as it is until the next window
        if what in ("update", "restart", "check") and result.lost_output:
            return  # it is run again
        if what == "protect":
            if result.is_done:
                memory["protected"] = True  # never a second one, even if it cannot be seen for a while
            else:
                memory["verdict"], memory["why"] = "failed", f"nothing was changed: {result.error}"
        elif what in ("update", "restart"):
            if what == "update":
                output = f"{result.data.get('stdout', '')}\n{result.data.get('stderr', '')}".strip()
                memory["output"] = output[-KEPT_OUTPUT:]
            if not result.failure:
                memory[f"{what}d" if what == "update" else "restarted"] = True
            else:
                memory["verdict"], memory["why"] = "failed", f"{step.says}: {result.failure}"
            if what == "update" and result.failure:
                unchanged = UNCHANGED.get(result.data.get("exit_code", 0))
                words = explain_failure(output)
                if unchanged:
                    memory["unchanged"], memory["why"] = True, f"nothing was changed: {unchanged}"
                memory["why"] += f" ({words})" if words else ""
        elif what == "check":
            state = memory.setdefault("checks", {}).setdefault(key.partition("-")[2], {})
            state |= {"passed": not result.failure, "error": result.failure, "at": run.changed}
        elif what == "rollback":
            if result.is_done:
                memory["rolled_back"] = True
            else:
                memory["rollback_tries"] = int(memory.get("rollback_tries", 0)) + 1
                memory["rollback_error"] = result.error
        elif what == "drop":
            memory["dropped" if result.is_done else "drop_error"] = result.error or True
        elif what == "start" and not result.is_done:
            memory["start_error"] = result.error
            count_failed_start(run, int(run.scope["vmid"]), result)

    async def list_unfinished(self, work: Work) -> list[str]:
        memory = work.memory
        try:
            guest = await work.pve.guest(int(work.scope["vmid"]))
        except NotFound:
            return [f"guest {work.scope['vmid']} is gone"]
        unfinished = []
        if memory.get("stopped") and (await guest.get("status/current")).get("status") != "running":
            unfinished.append(
                f"{guest} is stopped and could not be started: {memory.get('start_error') or 'it is locked'}"
            )
        if await self._is_protected(work, guest) and not memory.get("dropped"):
            how = "is rolled back" if memory.get("rolled_back") else "stays as it is"
            what = f"the snapshot {_snapshot(work.run.id)}" if work.scope["by_snapshot"] else memory["backup"]
            unfinished.append(f"{guest} {how}; {what} from before the update is kept")
        return unfinished


def _command(key: str, guest: Guest, command: str, summary: str, **limits: float) -> Step:
    return Step(key, "guest_exec", {"guest": guest.vmid, "command": command, **limits}, summary)


declare(GuestUpdate())
