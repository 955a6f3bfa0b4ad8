"""Proving backups: restore each one isolated from the network, boot it, check it, remove it."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import see, tools
from quorate.operations.placement import next_vmid, pick_bridge
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import GuestRefs, Risk, operation
from quorate.problems import BadArgument, Conflict, NoQuorum, NotFound, PermissionMissing, Problem, catch_problem
from quorate.pve import values
from quorate.pve.backups import excluded_volumes
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.errors import NO_QUORUM, QUORUM_ADVICE, lacks_quorum
from quorate.runs.boot_proof import has_screen, prove_without_agent, remember_screen
from quorate.runs.kind import Next, Step, StepResult, Work, declare, fail, finish
from quorate.runs.start import At, Outline, Window, number_lines, start_plan
from quorate.runs.steps import find_guest
from quorate.runs.store import Bound, Pending, Run, literal
from quorate.tools.backup_coverage import ITEMS, KIND, PASSED, PASSED_IN_PART, covering_jobs, drill_name, paths_left_out
from quorate.tools.backup_jobs import read_jobs
from quorate.tools.backup_restore import backup_restore
from quorate.tools.backups import archived_config
from quorate.tools.cluster import lost_quorum
from quorate.tools.storages import StoredVolume, survey
from quorate.units import duration

MOST_BACKUPS = 20
BOOT_SECONDS = 300.0
WAIT_SECONDS = 45
CLEAN_TRIES = 5
MOST_OUTAGES = 10
"""How often one backup is tried again because its node or the quorum was lost."""
STARTED = "started, not proven"
"""The verdict on a VM that runs but gave no sign of its own system: its screen may show no more than the firmware."""
_OUTAGE = re.compile(r"has no quorum|is offline")
_DEVICES = re.compile(r"hostpci\d+|usb\d+|virtiofs\d+|dev\d+")


@operation(
    toolset="runs",
    risk=Risk.DESTROY,
    plans_later=True,
    search_words="restore drill test backup prove verify disaster recovery boot check",
    example="guest=102 dry_run=true",
    shown_by=("run_list",),
)
async def run_restore_drill(
    pve: Cluster,
    guest: Annotated[GuestRefs, Meta(description="Prove the newest backup of these")] | None = None,
    backups: Annotated[list[str], Meta(description="Or these, as in backup_list")] | None = None,
    node: Annotated[str, Meta(description="Where to restore")] | None = None,
    storage: Annotated[str, Meta(description="For the disks; default: as they were")] | None = None,
    bridge: Annotated[str, Meta(description="An isolated bridge; default: no network")] | None = None,
    check: Annotated[str, Meta(description="Command inside that must succeed")] | None = None,
    boot_seconds: Annotated[float, Meta(ge=10, le=3600, description="Time to boot")] = BOOT_SECONDS,
    at: At | None = None,
    window: Window | None = None,
) -> Plan:
    """Start a run that proves backups: restore each under a new id without network, boot, check, remove it."""
    chosen = await _select_backups(pve, guest, backups)
    if bridge is not None:
        await pick_bridge(pve, node or chosen[0].node, bridge)
    items: list[dict[str, Any]] = []
    calls: list[Call] = []
    for volume in chosen:
        vmid = await next_vmid(pve)
        plan = await backup_restore(pve, volume.volid, vmid=vmid, node=node, storage=storage, unique=True)
        calls += [call for call in plan.calls if isinstance(call, Call)]
        items.append(
            {
                "backup": volume.volid,
                "of": volume.vmid,
                "vmid": vmid,
                "type": "lxc" if volume.is_container else "qemu",
                "node": str(calls[-1].path.split("/")[2]),
            }
        )
    pve.reserved_vmids -= {int(item["vmid"]) for item in items}
    excluded = await _list_exclusions(pve, chosen)
    items = [{**item, "not_included": excluded.get(item["backup"], [])} for item in items]
    network = f"on {bridge}" if bridge else "without network"
    guests = ", ".join(f"{_kind(item)} {item['of']}" for item in items)
    title = f"Prove {len(items)} {'backup' if len(items) == 1 else 'backups'}: {guests}"
    outline = Outline(
        KIND,
        "run_restore_drill",
        title,
        f"restore {', '.join(item['backup'] for item in items)} {network}, boot, "
        + (f"run {check!r}, " if check else "")
        + "remove",
        {
            ITEMS: items,
            "storage": storage,
            "bridge": bridge,
            "check": check,
            "boot_seconds": boot_seconds,
        },
        lambda run: [bound for item in items for bound in _bounds(run, item, check)],
        about=await _guests_of(pve, items),
        facts={
            "steps": number_lines(
                [
                    *(f"{item['backup']} as {_kind(item)} {item['vmid']} on {item['node']}, {network}"
                      for item in items),
                    "one after the other; each is removed before the next",
                ]
            ),
            **({"not_included": excluded} if excluded else {}),
            "may_destroy": ["only the guests that the run itself restores"],
            **({"check": check} if check else {}),
        },
        needs=tuple(calls),
        risk=Risk.DESTROY,
        risk_because="it deletes guests, but only the copies that it restores itself",
        destroys_only_its_own=True,
    )  # fmt: skip
    return start_plan(pve, outline, at, window)


async def _select_backups(
    pve: Cluster, guest: int | str | list[int | str] | None, backups: list[str] | None
) -> list[StoredVolume]:
    if (guest is None) == (backups is None):
        raise BadArgument("Give either guest or backups", next_step=see("See the backups", tools.backup_list))
    volumes, _ = await survey(pve, content="backup")
    if backups is not None:
        known = {volume.volid: volume for volume in volumes}
        if missing := [name for name in backups if name not in known]:
            raise NotFound(f"There is no backup {missing[0]!r}", next_step=see("See the backups", tools.backup_list))
        chosen = [known[name] for name in dict.fromkeys(backups)]
    else:
        refs = guest if isinstance(guest, list) else [guest]
        chosen = []
        for target in await pve.guests(ref for ref in refs if ref is not None):
            own = [volume for volume in volumes if volume.vmid == target.vmid and volume.is_container != target.is_vm]
            if not own:
                raise Conflict(f"{target} has no backup", next_step=see("See the backups", tools.backup_list))
            chosen.append(max(own, key=lambda volume: (volume.ctime, volume.volid)))
    if len(chosen) > MOST_BACKUPS:
        raise BadArgument(f"{len(chosen)} backups are too many for one run", next_step=f"Give at most {MOST_BACKUPS}")
    return chosen


async def _list_exclusions(pve: Cluster, backups: Sequence[StoredVolume]) -> dict[str, list[str]]:
    """volid -> what the backup leaves out of its guest, by the configuration in it and by the jobs of today."""
    jobs = await catch_problem(read_jobs(pve))
    covered = {} if isinstance(jobs, Problem) else covering_jobs(jobs, await pve.inventory.guests())
    excluded = {}
    for backup in backups:
        config = await catch_problem(archived_config(pve, backup))
        if isinstance(config, Problem):
            excluded[backup.volid] = [f"unknown: {config.why or config.what}"]
            continue
        paths = paths_left_out("ct" if backup.is_container else "vm", covered.get(backup.vmid or 0, ()))
        excluded[backup.volid] = [*excluded_volumes(config, is_vm=not backup.is_container), *paths]
    return {volid: parts for volid, parts in excluded.items() if parts}


async def _guests_of(pve: Cluster, items: Sequence[Mapping[str, Any]]) -> tuple[Target, ...]:
    """The guests whose backups are proven; a guest that is gone has only its vmid."""
    names = {row.vmid: row.name for row in await pve.inventory.guests()}
    return tuple(Target(_kind(item), str(item["of"]), names.get(int(item["of"]), "")) for item in items)


def _kind(item: Mapping[str, Any]) -> str:
    return "ct" if item["type"] == "lxc" else "vm"


def _bounds(run: str, item: Mapping[str, Any], check: str | None) -> list[Bound]:
    vmid, kind = str(item["vmid"]), str(item["type"])
    name = drill_name(run, int(vmid))
    archive = {"archive": [item["backup"]]} if kind == "qemu" else {"ostemplate": [item["backup"]], "restore": ["1"]}
    own_name = {"name" if kind == "qemu" else "hostname": [name]}
    bounds = [
        Bound("POST", f"/nodes/*/{kind}", {"vmid": [vmid], **archive, **own_name, "storage": ["*"], "unique": ["1"]}),
        *(
            Bound(method, f"/nodes/*/{kind}/{vmid}{rest}", {"*": []}, target=name)
            for method, rest in (("POST", "/status/*"), ("PUT", "/config"), ("POST", "/config"), ("DELETE", ""))
        ),
        *([Bound("PUT", f"/nodes/*/qemu/{vmid}/sendkey", {"key": ["ret"]}, target=name)] if kind == "qemu" else []),
        # what a failed restore leaves behind has no name
        *(Bound("DELETE", f"/nodes/*/qemu/{vmid}", {"*": []}, target=left) for left in ("", f"VM {vmid}")),
    ]
    if check:
        bounds.append(Bound("RUN", f"*{literal(check)}*", target=name))
    return bounds


@dataclass(frozen=True, slots=True)
class RestoreDrill:
    name: str = KIND

    async def next(self, work: Work) -> Next:
        """Work on the first unfinished backup; what it left behind is removed before the next one begins."""
        for number, item in enumerate(work.scope[ITEMS]):
            state = work.memory.setdefault(ITEMS, {}).setdefault(str(number), {})
            if state.get("over"):
                continue
            if work.aborting and "verdict" not in state:
                state["verdict"] = "aborted"
            if work.closing and not state.get("tried"):
                return Next()
            decision = await self._of_item(work, number, item, state)
            if decision is not None:
                return decision
        self._report(work)
        return Next() if work.aborting else self._end(work)

    async def _of_item(self, work: Work, number: int, item: Mapping[str, Any], state: dict[str, Any]) -> Next | None:
        guest = await find_guest(work.pve, int(item["vmid"]))
        ours = guest is not None and await _is_ours(guest, drill_name(work.run.id, int(item["vmid"])), state)
        if work.busy:
            return Next()
        if "verdict" in state:
            if guest is None or not ours:
                state["over"] = True
                return None
            return await self._clean(work, guest, number, item, state)
        if "trouble" in state:
            return await self._blame(work, item, state, str(state["trouble"]))
        if state.get("cut_off"):
            if guest is not None and ours:
                return await self._clean(work, guest, number, item, state)
            del state["cut_off"]
        if guest is None:
            if state.get("restored"):
                return await self._blame(work, item, state, "the restored guest disappeared")
            return self._restore(work, number, item)
        if not ours:
            return self._decide(state, "failed", f"the id {item['vmid']} was taken by another guest")
        return await self._prove(work, item, guest, number, state)

    async def _blame(self, work: Work, item: Mapping[str, Any], state: dict[str, Any], why: str) -> Next:
        """The backup has failed, unless the node or the quorum was lost: that says nothing about it, so begin again."""
        outages = int(state.get("outages", 0))
        was_away = await _was_away(work, str(item["node"]), state)  # while it is, this waits
        if outages < MOST_OUTAGES and (was_away or _OUTAGE.search(why)):
            await _require_quorum(work.pve)
            work.say(f"{item['backup']} is tried again, because of an outage: {why}")
            state.clear()
            state |= {"tried": True, "cut_off": True, "outages": outages + 1}
            return Next(seconds=0.0)
        state.pop("trouble", None)
        return self._decide(state, "failed", why)

    async def _clean(
        self, work: Work, guest: Guest, number: int, item: Mapping[str, Any], state: dict[str, Any]
    ) -> Next:
        await _require_quorum(work.pve)
        if int(state.get("clean_tries", 0)) >= CLEAN_TRIES:
            del state["clean_tries"]  # a resumed run tries again
            return Next(pause=f"{guest} on {guest.row.node} cannot be removed: {state.get('clean_error', '')}")
        status = await guest.get("status/current")
        if status.get("lock"):
            return Next(waits_for=f"{guest} is locked ({status['lock']})")
        if values.is_on((await guest.get("config")).get("protection", "0")):  # a copy of a protected guest is, too
            arguments = {"guest": guest.vmid, "protection": False}
            return Next((Step(f"clean-{number}-protection", "guest_configure", arguments, f"Unprotect {guest}"),))
        step = Step(
            f"clean-{number}",
            "guest_delete",
            {"guest": int(item["vmid"]), "stop": True, "destroy_unreferenced_disks": False},
            f"Remove {guest}",
        )
        return Next((step,))

    def _restore(self, work: Work, number: int, item: Mapping[str, Any]) -> Next:
        storage = {"storage": work.scope["storage"]} if work.scope["storage"] else {}
        arguments = {
            "backup": item["backup"],
            "vmid": item["vmid"],
            "node": item["node"],
            "name": drill_name(work.run.id, int(item["vmid"])),
            "unique": True,
            **storage,
        }
        summary = f"Restore {item['backup']} as {_kind(item)} {item['vmid']} on {item['node']}"
        return Next((Step(f"restore-{number}", "backup_restore", arguments, summary),))

    async def _prove(
        self, work: Work, item: Mapping[str, Any], guest: Guest, number: int, state: dict[str, Any]
    ) -> Next:
        status, config = await guest.get("status/current"), await guest.get("config")
        if status.get("lock"):
            return Next(waits_for=f"{guest} is locked ({status['lock']})")
        if status.get("status") != "running":
            if state.get("started"):
                return await self._blame(work, item, state, "it started and stopped again")
            return Next((self._prepare(work, guest, number, config),))
        if not state.get("booted"):
            return await self._wait_for_boot(work, item, guest, state, config)
        if work.scope["check"] and "check" not in state:
            arguments = {"guest": guest.vmid, "command": work.scope["check"], "timeout": 300.0}
            return Next((Step(f"check-{number}", "guest_exec", arguments, f"Run the check in {guest}"),))
        if guest.is_vm and has_screen(config) and "screenshot" not in state:
            return Next((self._picture(guest, number),))
        if state.get("unanswered") and "check" not in state:
            return self._decide(state, STARTED, state["unanswered"])
        if missing := work.scope[ITEMS][number].get("not_included"):
            return self._decide(state, PASSED_IN_PART, f"it does not hold {', '.join(missing)}")
        return self._decide(state, PASSED, "")

    def _prepare(self, work: Work, guest: Guest, number: int, config: Mapping[str, Any]) -> Step:
        """Cut it off from the network and from devices of the node, then start it."""
        vmid, bridge = guest.vmid, work.scope["bridge"]
        if devices := sorted(key for key in config if _DEVICES.fullmatch(key)):
            return Step(
                f"strip-{number}",
                "guest_configure",
                {"guest": vmid, "unset": devices},
                f"Take {', '.join(devices)} from {guest}",
            )
        for key in sorted(key for key in config if re.fullmatch(r"net\d+", key)):
            card = values.parse(str(config[key]), "model")
            apart = card.get("bridge") == bridge if bridge else values.is_on(card.get("link_down", "0"))
            if not apart:
                how = {"bridge": bridge} if bridge else {"link_down": True}
                summary = f"Put {key} of {guest} on {bridge}" if bridge else f"Disconnect {key} of {guest}"
                return Step(f"isolate-{number}-{key}", "nic_set", {"guest": vmid, "nic": key, **how}, summary)
        return Step(f"start-{number}", "guest_power", {"guest": vmid, "action": "start"}, f"Boot {guest}")

    async def _wait_for_boot(
        self, work: Work, item: Mapping[str, Any], guest: Guest, state: dict[str, Any], config: Mapping[str, Any]
    ) -> Next:
        number = work.scope[ITEMS].index(item)
        now = work.pve.clock.time()
        begun = float(state.setdefault("booting_since", now))
        agent = guest.is_vm and values.is_on(values.parse(str(config.get("agent", "0")), "enabled").get("enabled", "0"))
        if not agent and guest.is_vm:
            return await prove_without_agent(work, guest, number, state, config)
        if not guest.is_vm:
            state["booted"] = "container is running" + ("" if work.scope["check"] else "; no check was given")
            return Next(seconds=0.0)
        if now - begun >= float(work.scope["boot_seconds"]):
            if has_screen(config) and "screenshot" not in state:
                return Next((self._picture(guest, number),))
            return await self._blame(work, item, state, f"its agent was silent for {duration(now - begun)}")
        left = float(work.scope["boot_seconds"]) - (now - begun)
        arguments = {"guest": guest.vmid, "until": "agent", "wait": min(WAIT_SECONDS, max(1.0, left))}
        return Next((Step(f"boot-{number}", "guest_wait", arguments, f"Wait for the agent of {guest}"),))

    def _picture(self, guest: Guest, number: int) -> Step:
        return Step(
            f"picture-{number}", "guest_screenshot", {"guest": guest.vmid, "max_width": 640}, f"Look at {guest}"
        )

    def _decide(self, state: dict[str, Any], verdict: str, why: str) -> Next:
        state["verdict"], state["why"] = verdict, why
        return Next(seconds=0.0)

    def settle(self, run: Run, key: str, step: Pending, result: StepResult) -> None:
        what, _, rest = key.partition("-")
        state = run.memory.setdefault(ITEMS, {}).setdefault(rest.partition("-")[0], {})
        state.setdefault("since", step.begun)
        if what == "restore" and result.was_sent:
            state["tried"] = True
            state["took"] = run.changed - step.begun
        if what == "boot":
            if result.is_done and result.data.get("reached"):
                state["booted"] = f"its agent ({result.data.get('hostname', '')})"
        elif what == "look":
            remember_screen(state, result)
        elif what == "enter":
            state["entered" if result.is_done else "unseen"] = True
        elif what == "picture":
            state["screenshot"] = result.error or f"{result.data.get('size', '')} {result.data.get('note', '')}".strip()
            if result.pictures:
                run.memory.setdefault("pictures", {})[rest] = base64.b64encode(result.pictures[0]).decode()
        elif what == "check":
            if not result.was_sent or result.lost_output:
                return
            code = result.data.get("exit_code")
            state["check"] = {"exit_code": code, "output": str(result.data.get("stdout", ""))[:2000]}
            if result.failure:
                state["verdict"], state["why"] = "failed", f"the check failed: {result.failure}"
        elif what == "clean":
            if not result.is_done and result.was_sent and not lacks_quorum(result.error):
                state["clean_tries"] = int(state.get("clean_tries", 0)) + 1
                state["clean_error"] = result.error
        elif result.is_done:
            state |= {"restore": {"restored": True}, "start": {"started": True}}.get(what, {})
        elif result.was_sent and "verdict" not in state:
            state["trouble"] = f"{step.says}: {result.error}"

    def _report(self, work: Work) -> None:
        rows = {}
        for number, item in enumerate(work.scope[ITEMS]):
            state = work.memory.get(ITEMS, {}).get(str(number), {})
            rows[str(item["backup"])] = {
                "guest": item["of"],
                "verdict": state.get("verdict", "not tried"),
                **({"not_included": item["not_included"]} if item.get("not_included") else {}),
                **{name: state[name] for name in ("why", "booted", "check", "screenshot") if state.get(name)},
            }
        work.run.report = {"backups": rows}

    def _end(self, work: Work) -> Next:
        verdicts = [state.get("verdict") for state in work.memory.get(ITEMS, {}).values()]
        partly, started = verdicts.count(PASSED_IN_PART), verdicts.count(STARTED)
        passed = verdicts.count(PASSED) + partly
        summary = (
            f"{passed} of {len(work.scope[ITEMS])} backups proved"
            + (f", {partly} without all data" if partly else "")
            + (f", {started} {STARTED}" if started else "")
        )
        return finish(summary) if passed + started == len(work.scope[ITEMS]) else fail(summary)

    async def list_unfinished(self, work: Work) -> list[str]:
        return [
            f"{item['backup']} was not proved"
            for number, item in enumerate(work.scope[ITEMS])
            if work.memory.get(ITEMS, {}).get(str(number), {}).get("verdict")
            not in (PASSED, PASSED_IN_PART, STARTED, "failed")
        ]


async def _was_away(work: Work, node: str, state: Mapping[str, Any]) -> bool:
    """Whether the node was started since the first step for the backup."""
    try:
        status = await work.pve.get(f"/nodes/{node}/status")
    except PermissionMissing:
        return False
    return work.pve.clock.time() - float(status.get("uptime", 0)) > float(state.get("since", 0.0))


async def _require_quorum(pve: Cluster) -> None:
    """Raise without one, so that the run tries again later."""
    members = await catch_problem(pve.get("/cluster/status"))
    if not isinstance(members, Problem) and lost_quorum(members):
        raise NoQuorum(NO_QUORUM, next_step=QUORUM_ADVICE)


async def _is_ours(guest: Guest, name: str, state: Mapping[str, Any]) -> bool:
    """Whether the run restored it: it has the run's name, or is what a failed restore left, without name and disks."""
    config = await guest.get("config")
    label = str(config.get("name") or config.get("hostname") or "")
    if label:
        return label == name
    empty = not any(values.bus_of(key) in values.DISKS for key in config)
    return bool(state.get("tried")) and empty


declare(RestoreDrill())
