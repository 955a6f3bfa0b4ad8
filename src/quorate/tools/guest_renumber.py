"""Renumbering a guest: PVE has no such request, so everything that has the old vmid in it is moved or made again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.operations.placement import choose_vmid
from quorate.operations.plan import Call, Plan, Target, guest_call
from quorate.operations.preconditions import refuse_locked, refuse_root_only, replication_jobs, snapshots_of
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.problems import Conflict, PermissionMissing, Problem, catch_problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.lookup import Resource
from quorate.tools.guest_power import power_call, state_of

_MADE_BY_PVE = frozenset({"digest", "meta", "vmgenid", "parent", "lock", "boot", "bootdisk", "protection", "template"})
_RULE_FIELDS = frozenset({"pos", "digest", "ipversion"})
_HA_RULE_FIELDS = ("affinity", "nodes", "strict", "comment", "disable")
_HA_FACTS = frozenset({"sid", "type", "digest"})
"""What PVE adds to the settings of a guest under HA; those differ by version, and all of them are kept."""
_MASKED = frozenset({"cipassword"})


@dataclass(slots=True)
class _Surroundings:
    """What refers to the guest by its id, outside its own configuration."""

    ha: Mapping[str, Any] | None = None
    rules: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    replication: list[dict[str, Any]] = field(default_factory=list)
    acl: list[dict[str, Any]] = field(default_factory=list)
    firewall: dict[str, Any] = field(default_factory=dict)
    not_read: list[str] = field(default_factory=list)


@operation(
    toolset="provision",
    risk=Risk.DESTROY,
    search_words="renumber change vmid id number of a vm container rename move to another id",
    example="guest=dev-sandbox vmid=150",
)
async def guest_renumber(
    pve: Cluster,
    guest: GuestRef,
    vmid: Annotated[int, Meta(description="The new one, which must be free")],
    restart: Annotated[bool, Meta(description="Shut it down for that and start it again")] = False,
) -> Plan:
    """Give a guest another vmid and keep its disks, MAC, UUID, firewall, pool, rights, jobs, HA and tags. A dry run
    says what cannot be kept."""
    old = await pve.guest(guest)
    config: dict[str, Any] = await old.get("config")
    await _refuse_impossible(old, config)
    state = await state_of(old)
    if state != "stopped" and not (state == "running" and restart):
        raise Conflict(
            f"{old} is {state}, and only a stopped guest can be renumbered",
            next_step=Advice("Give {restart} to shut it down and start it again", restart=True)
            if state == "running"
            else Advice("Resume it first", tools.guest_power(guest=old.vmid, action="resume")),
        )
    around, new_vmid = await asyncio.gather(_read_surroundings(pve, old), choose_vmid(pve, vmid))
    lost = [*_lost_options(pve, old, config), *around.not_read]
    row = Resource(**{**_fields(old.row), "vmid": new_vmid, "id": f"{old.row.type}/{new_vmid}", "status": "stopped"})
    new = Guest(pve, row)
    emptied = f"Delete the empty {old}" if old.is_vm else f"Delete {old}, which is ct {new_vmid} now"
    calls = [
        *_leave_ha(old, around),
        *([call] if state == "running" and (call := power_call(old, "shutdown", state, {})) else []),
        *(_rebuild_vm(old, new, config) if old.is_vm else _copy_container(old, new, config)),
        *(_firewall_calls(new, around.firewall) if old.is_vm else ()),  # a clone has that of its source
        *_acl_calls(new, around.acl),
        *_job_calls(old, new, around.jobs),
        guest_call(old, "DELETE", "", emptied, purge=1),
        *_enter_ha(old, new, around),
        *_replication_calls(new, around.replication),
        *([call] if state == "running" and (call := power_call(new, "start", "stopped", {})) else []),
    ]
    summary = f"Renumber {old} to {new_vmid}"
    return Plan(
        summary,
        tuple(calls),
        facts={"not_kept": lost, "disks": "renamed, not copied" if old.is_vm else "copied, then the old ones deleted"},
        warnings=("Backups and the task history stay under the old number",),
        if_it_fails=Advice(
            "Nothing is lost: what was not moved yet is still under the old number",
            tools.guest_diff(guest=new_vmid, other=old.vmid),
        ),
        after=partial(_report, new),
        about=(Target.of_guest(old),),
    )


def _fields(row: Resource) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


async def _refuse_impossible(guest: Guest, config: Mapping[str, Any]) -> None:
    refuse_locked(guest, config)
    if guest.row.template:
        raise Conflict(
            f"{guest} is a template, and PVE does not rename its disks",
            next_step=Advice("Clone it in full under the new number", tools.guest_clone(guest=guest.vmid, full=True)),
        )
    if snapshots := [str(row["name"]) for row in await snapshots_of(guest)]:
        raise Conflict(
            f"{guest} has the snapshots {', '.join(snapshots)}, which cannot move to another vmid",
            why="PVE does not rename disks that snapshots hold",
            next_step=Advice("Delete them first, if nobody needs them", tools.snapshot_delete(guest=guest.vmid)),
        )
    if values.is_on(config.get("protection", 0)):
        raise Conflict(
            f"{guest} is protected, so the old one could not be removed",
            next_step=Advice(
                "Its owner can switch protection off", tools.guest_configure(guest=guest.vmid, protection=False)
            ),
        )


def _lost_options(pve: Cluster, guest: Guest, config: Mapping[str, Any]) -> Iterator[str]:
    """What cannot be kept, with the reason."""
    if "vmgenid" in config:
        yield "vmgenid: PVE makes a new one, and Windows may see a copy"
    if "cipassword" in config:
        yield "cipassword: PVE does not show it; set it again"
    for name in sorted(config):
        if name in _MADE_BY_PVE or values.bus_of(name) == "unused":
            continue
        try:
            refuse_root_only(pve, {name: config[name]}, is_vm=guest.is_vm, way_out="", before=config)
        except PermissionMissing:
            yield f"{name}: only root@pam may set it"
    if not guest.is_vm:
        for name in sorted(config):
            if values.bus_of(name) == "unused":
                yield f"{name}: detached volumes are not copied, and go with the old container"


# -- what refers to it -------------------------------------------------------------------------------------------------


async def _read_surroundings(pve: Cluster, guest: Guest) -> _Surroundings:
    paths = ("/cluster/ha/resources", "/cluster/ha/rules", "/cluster/backup", "/access/acl")
    around = _Surroundings(replication=await replication_jobs(pve, guest))
    answers = await asyncio.gather(*(catch_problem(pve.get(path)) for path in paths))
    rows: dict[str, list[dict[str, Any]]] = {}
    for path, answer in zip(paths, answers, strict=True):
        if isinstance(answer, Problem):
            around.not_read.append(f"{path} could not be read: {answer.what}")
        rows[path] = [] if isinstance(answer, Problem) else answer or []
    sid = _sid(guest)
    around.ha = next((row for row in rows[paths[0]] if row.get("sid") == sid), None)
    around.rules = [row for row in rows[paths[1]] if sid in str(row.get("resources", "")).split(",")]
    around.jobs = [row for row in rows[paths[2]] if {str(guest.vmid)} & {*_ids(row, "vmid"), *_ids(row, "exclude")}]
    around.acl = [row for row in rows[paths[3]] if row.get("path") == f"/vms/{guest.vmid}"]
    kinds = ("options", "aliases", "ipset", "rules")
    parts = await asyncio.gather(*(guest.get(f"firewall/{kind}") for kind in kinds))
    around.firewall = dict(zip(kinds, parts, strict=True))
    around.firewall["members"] = {
        row["name"]: await guest.get(f"firewall/ipset/{row['name']}") for row in around.firewall["ipset"]
    }
    return around


def _sid(guest: Guest) -> str:
    return f"{guest.row.kind}:{guest.vmid}"


def _ids(job: Mapping[str, Any], name: str) -> list[str]:
    return [text for text in str(job.get(name) or "").split(",") if text]


# -- the guest itself --------------------------------------------------------------------------------------------------


def _rebuild_vm(old: Guest, new: Guest, config: Mapping[str, Any]) -> Iterator[Call]:
    """A VM without disks, then its disks, which PVE renames, then the order to boot from them."""
    settings: dict[str, Any] = {}
    disks = []
    for name, value in config.items():
        text = str(value)
        if name in _MADE_BY_PVE | _MASKED:
            continue
        if values.bus_of(name) in (*values.DISKS, "unused"):
            if values.is_cloudinit(text):
                settings[name] = f"{values.volume_of(text).partition(':')[0]}:cloudinit"
            elif values.bus_of(name) != "unused" and not values.is_disk(name, text):
                settings[name] = text
            else:
                disks.append(name)
        elif not _is_root_only(old, name, value, config):
            settings[name] = value
    target = Target.of_guest(new)
    path = f"/nodes/{old.row.node}/qemu"
    params = {"vmid": new.vmid, **({"pool": old.row.pool} if old.row.pool else {}), **settings}
    yield Call(f"Create vm {new.vmid} with the settings of {old}", "POST", path, params, target, task_id=str(new.vmid))
    for name in sorted(disks):
        handover: dict[str, Any] = {"disk": name, "target-vmid": new.vmid, "target-disk": name}
        summary = f"Give {name} of {old} ({values.volume_of(str(config[name]))}) to vm {new.vmid}"
        yield guest_call(old, "POST", "move_disk", summary, **handover)
    # The order needs the disks, and PVE pins the machine type of a new Windows VM to its newest version.
    last = {name: config[name] for name in ("boot", "machine") if name in config}
    if last:
        summary = f"Set {' and '.join(last)} of vm {new.vmid} as before"
        yield guest_call(new, "PUT", "config", summary, **last)


def _is_root_only(guest: Guest, name: str, value: Any, config: Mapping[str, Any]) -> bool:
    try:
        refuse_root_only(guest.cluster, {name: value}, is_vm=guest.is_vm, way_out="", before=config)
    except PermissionMissing:
        return True
    return False


def _copy_container(old: Guest, new: Guest, config: Mapping[str, Any]) -> Iterator[Call]:
    """PVE hands over no root disks, so a container is copied; its network cards get their addresses back."""
    summary = f"Copy {old} to ct {new.vmid}"
    name = config.get("hostname")
    yield guest_call(old, "POST", "clone", summary, newid=new.vmid, full=1, hostname=name, pool=old.row.pool or None)
    cards = {key: value for key, value in config.items() if values.bus_of(key) == "net"}
    kept = {key: config[key] for key in ("onboot", "startup", "description", "tags") if key in config}
    if cards or kept:
        yield guest_call(new, "PUT", "config", f"Give ct {new.vmid} the MAC addresses of {old}", **cards, **kept)


# -- around it ---------------------------------------------------------------------------------------------------------


def _firewall_calls(new: Guest, firewall: Mapping[str, Any]) -> Iterator[Call]:
    what = f"of {new.row.kind} {new.vmid}"
    for alias in firewall["aliases"]:
        params = {key: alias[key] for key in ("name", "cidr", "comment") if alias.get(key)}
        yield guest_call(new, "POST", "firewall/aliases", f"Add the alias {alias['name']} {what}", **params)
    for row in firewall["ipset"]:
        params = {key: row[key] for key in ("name", "comment") if row.get(key)}
        yield guest_call(new, "POST", "firewall/ipset", f"Add the IP set {row['name']} {what}", **params)
        for member in firewall["members"][row["name"]]:
            entry = {key: member[key] for key in ("cidr", "comment", "nomatch") if member.get(key)}
            summary = f"Add {member['cidr']} to the IP set {row['name']} {what}"
            yield guest_call(new, "POST", f"firewall/ipset/{row['name']}", summary, **entry)
    for rule in sorted(firewall["rules"], key=lambda rule: -int(rule.get("pos", 0))):  # a new rule goes to the top
        params = {key: value for key, value in rule.items() if key not in _RULE_FIELDS}
        yield guest_call(new, "POST", "firewall/rules", f"Add the firewall rule {rule.get('pos')} {what}", **params)
    options = {key: value for key, value in firewall["options"].items() if key != "digest"}
    if options:
        yield guest_call(new, "PUT", "firewall/options", f"Set the firewall options {what}", **options)


def _acl_calls(new: Guest, acl: list[dict[str, Any]]) -> Iterator[Call]:
    for row in acl:
        holder = {f"{row['type']}s": row["ugid"]}
        params = {
            "path": f"/vms/{new.vmid}",
            "roles": row["roleid"],
            "propagate": int(row.get("propagate", 1)),
            **holder,
        }
        summary = f"Grant {row['roleid']} on {new.row.kind} {new.vmid} to {row['ugid']}"
        yield Call(summary, "PUT", "/access/acl", params, Target.of_guest(new))


def _job_calls(old: Guest, new: Guest, jobs: list[dict[str, Any]]) -> Iterator[Call]:
    for job in jobs:
        changed = {
            name: ",".join(str(new.vmid) if text == str(old.vmid) else text for text in _ids(job, name))
            for name in ("vmid", "exclude")
            if str(old.vmid) in _ids(job, name)
        }
        summary = f"Put {new.vmid} in the place of {old.vmid} in the backup job {job['id']}"
        yield Call(summary, "PUT", f"/cluster/backup/{job['id']}", changed, Target("backup job", str(job["id"])))


def _leave_ha(old: Guest, around: _Surroundings) -> Iterator[Call]:
    if around.ha is None:
        return
    target = Target.of_guest(old)
    for rule in around.rules:
        others = [sid for sid in _members(rule) if sid != _sid(old)]
        path = f"/cluster/ha/rules/{rule['rule']}"
        if _has_enough(rule, others):
            params = {"type": rule["type"], "resources": ",".join(others)}
            yield Call(f"Take {old} out of the HA rule {rule['rule']}", "PUT", path, params, target)
        else:
            yield Call(f"Delete the HA rule {rule['rule']}, which is made again afterwards", "DELETE", path, {}, target)
    yield Call(f"Take {old} out of HA", "DELETE", f"/cluster/ha/resources/{_sid(old)}", {}, target)


def _enter_ha(old: Guest, new: Guest, around: _Surroundings) -> Iterator[Call]:
    if around.ha is None:
        return
    target = Target.of_guest(new)
    kept = {key: value for key, value in around.ha.items() if key not in _HA_FACTS and value not in (None, "")}
    params = {"sid": _sid(new), **kept}
    yield Call(f"Put {new.row.kind} {new.vmid} under HA", "POST", "/cluster/ha/resources", params, target)
    for rule in around.rules:
        members = [_sid(new) if sid == _sid(old) else sid for sid in _members(rule)]
        params = {"type": rule["type"], "resources": ",".join(members)}
        name = rule["rule"]
        if _has_enough(rule, members[1:]):
            summary = f"Put {new.row.kind} {new.vmid} into the HA rule {name}"
            yield Call(summary, "PUT", f"/cluster/ha/rules/{name}", params, target)
        else:
            whole = {key: rule[key] for key in _HA_RULE_FIELDS if key in rule}
            summary = f"Make the HA rule {name} again with {new.row.kind} {new.vmid}"
            yield Call(summary, "POST", "/cluster/ha/rules", {"rule": name, **whole, **params}, target)


def _members(rule: Mapping[str, Any]) -> list[str]:
    return str(rule["resources"]).split(",")


def _has_enough(rule: Mapping[str, Any], members: list[str]) -> bool:
    """Whether PVE keeps the rule with these members only: it takes no rule about guests together that has one."""
    return len(members) >= (2 if rule["type"] == "resource-affinity" else 1)


def _replication_calls(new: Guest, jobs: list[dict[str, Any]]) -> Iterator[Call]:
    for job in jobs:
        number = str(job["id"]).rpartition("-")[2]
        kept = {key: job[key] for key in ("schedule", "rate", "comment", "disable") if job.get(key)}
        params = {"id": f"{new.vmid}-{number}", "type": "local", "target": job["target"], **kept}
        summary = f"Replicate {new.row.kind} {new.vmid} to {job['target']} from the beginning"
        yield Call(summary, "POST", "/cluster/replication", params, Target.of_guest(new))


async def _report(new: Guest) -> Mapping[str, Any]:
    config = await new.get("config")
    volumes = {key: values.volume_of(str(config[key])) for key in sorted(config) if values.bus_of(key) in values.DISKS}
    return {"vmid": new.vmid, "volumes": volumes}
