"""What must not happen to the world below `admin`, by any caller and in any way: the oracle's own judgment.

It knows nothing of risks, rules or plans of the product. It reads two states of the world and says what was lost, what
was touched that is protected, and what was given away. Whatever it does not know how to judge, it reports.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.oracle.estate import GUESTS_PER_CALL, HIDDEN, PROTECTED_NODE, PROTECTED_POOL, SECRETS, UNTOUCHABLE
from tests.oracle.state import ABSENT, Difference, State, differences
from tests.rigs.in_memory_wire import Sent

DRIVE: Final = re.compile(r"(?:ide|sata|scsi|virtio)\d+|efidisk0|tpmstate0|rootfs|mp\d+|unused\d+|vmstate")
_DISK: Final = re.compile(r"(?:ide|sata|scsi|virtio)\d+|efidisk0|tpmstate0|rootfs|mp\d+")
_OWNER: Final = re.compile(r"(?:^|/)(?:vm|base|subvol|basevol)-(\d+)-[^/]*$")
_GUEST_PATH: Final = re.compile(r"/nodes/([^/?]+)/(?:qemu|lxc)/(\d+)(/[^?]*)?")
_SPENT: Final = re.compile(r"-cloudinit(?:\.\w+)?$|-state-suspend-")
"""Volumes that are made from the configuration, or used up by a start."""


@dataclass(frozen=True, slots=True)
class Deed:
    """One call that reached the cluster: the operations that ran, what was sent, and the two moments."""

    operations: frozenset[str]
    sent: tuple[Sent, ...]
    before: State
    after: State


def objections(deed: Deed) -> list[str]:
    changed = differences(deed.before, deed.after)
    objections = [
        *_about_volumes(changed, deed),
        *_about_disks(changed, deed),
        *_stopped_by_force(changed, deed),
        *(said for difference in changed if (said := _objection(difference, deed))),
        *_too_many(changed),
        *_sent_to_protected(deed),
    ]
    return list(dict.fromkeys(objections))


# -- volumes and disks -------------------------------------------------------------------------------------------------


def _about_volumes(changed: Iterable[Difference], deed: Deed) -> Iterator[str]:
    """A volume is kept if it is where it was, or if the disk that had it has another one that is not smaller."""
    for difference in changed:
        if difference.path[0] != "storages" or len(difference.path) != 7 or difference.path[4] != "volumes":
            continue
        place, volid, name = difference.path[3], difference.path[5], difference.path[6]
        facts = {key: deed.before.get((*difference.path[:6], key)) for key in ("content", "size", "vmid")}
        if difference.before is ABSENT:
            if name == "vmid" and difference.after in UNTOUCHABLE:
                yield f"volume {volid} of a protected guest was made"
            if name == "volid" and place == PROTECTED_NODE:
                yield f"volume {volid} was made on a protected node"
        elif difference.after is ABSENT:
            if name == "volid" and not _SPENT.search(volid) and not _went_along(deed, volid, facts):
                yield f"volume {volid} on {place or 'all nodes'} is gone"
        elif name in ("content", "format", "vmid", "parent", "ctime"):
            yield f"volume {volid}: {name} was {difference.before} and is {difference.after}"
        elif name == "size" and (difference.after < difference.before or facts["content"] not in _GROW):
            yield f"volume {volid}: its size was {difference.before} and is {difference.after}"


_GROW: Final = ("images", "rootdir")


def _went_along(deed: Deed, volid: str, facts: dict[str, Any]) -> bool:
    """With its guest to another node, or with its disk to another storage."""
    owner = str(facts["vmid"])
    keys = [key for key, held in _drives(deed.before, owner) if _volume(held) == volid]
    if facts["content"] not in _GROW or not keys:
        return False
    sizes = {
        path[5]: value
        for path, value in deed.after.items()
        if path[0] == "storages" and path[-1] == "size" and deed.after.get((*path[:-1], "vmid")) == facts["vmid"]
    }
    now = dict(_drives(deed.after, owner))
    return all(sizes.get(_volume(now.get(key, "")), -1) >= facts["size"] for key in keys)


def _drives(state: State, vmid: str) -> Iterator[tuple[str, str]]:
    for path, value in state.items():
        if path[0] == "guests" and path[1] == vmid and path[2] == "config" and DRIVE.fullmatch(path[3]):
            yield path[3], str(value)


def _volume(drive: str) -> str:
    first = drive.split(",", 1)[0]
    return first.partition("=")[2] if first.startswith(("file=", "volume=")) else first


def _about_disks(changed: Iterable[Difference], deed: Deed) -> Iterator[str]:
    for difference in changed:
        if difference.path[0] != "guests" or difference.path[2] not in ("config", "pending", "pending_delete"):
            continue
        if not DRIVE.fullmatch(difference.path[3]):
            continue
        if difference.after is not ABSENT and difference.path[2] != "pending_delete":
            yield from _strange_disk(difference)
        if _DISK.fullmatch(difference.path[3]) and "disk_change" not in deed.operations:
            yield from _lost_disk(difference, deed)


def _strange_disk(difference: Difference) -> Iterator[str]:
    """Guests that run on the volume of another, or on a path of the host."""
    vmid, volid = difference.path[1], _volume(str(difference.after))
    if volid.startswith("/"):
        yield f"guest {vmid} has a path of its node at {difference.path[3]}: {difference.after}"
    owner = _OWNER.search(volid.partition(":")[2])
    if owner is not None and owner[1] != vmid:
        yield f"guest {vmid} has at {difference.path[3]} what belongs to {owner[1]}: {difference.after}"


def _lost_disk(difference: Difference, deed: Deed) -> Iterator[str]:
    """A disk that leaves its place. Only disk_change may do that: the volume stays, as an unused disk."""
    _, vmid, part, key = difference.path
    before = deed.before.get(("guests", vmid, "config", key))
    if before is None or "media=cdrom" in str(before) or ("guests", vmid, "vmid") not in deed.after:
        return
    if part == "pending_delete" and difference.after is not ABSENT:
        yield f"disk {key} of {vmid} waits to be taken away: {before}"
    elif part == "config" and difference.after is ABSENT:
        yield f"disk {key} of {vmid} was taken away: {before}"
    elif (
        difference.after is not ABSENT
        and _volume(str(difference.after)) != _volume(str(before))
        and not _moved(deed, difference, str(before))
    ):
        yield f"disk {key} of {vmid} was {before} and is or will be {difference.after}"


def _moved(deed: Deed, difference: Difference, before: str) -> bool:
    """To another storage or node: then the old volume is gone, or is kept by its owner as an unused disk."""
    if not any(
        word in sent.target for sent in deed.sent for word in ("move_disk", "move_volume", "migrate", "relocate")
    ):
        return False
    unused = [value for key, value in _drives(deed.after, difference.path[1]) if key.startswith("unused")]
    # On another node, a volume of the same name is another one.
    home = deed.before["guests", difference.path[1], "node"]
    elsewhere = {node for path, node in deed.after.items() if path[0] == "guests" and path[2:] == ("node",)} - {home}
    here = [path for path in deed.after if path[0] == "storages" and not elsewhere.intersection(path[1:5])]
    kept = any(path[5:] == (_volume(before), "volid") for path in here)
    return not kept or _volume(before) in unused


def _stopped_by_force(changed: Iterable[Difference], deed: Deed) -> Iterator[str]:
    """Those that ignore the power button go down only if their own system does it, asked by the agent."""
    if any("/agent" in request.target for request in deed.sent):
        return
    for difference in changed:
        if (
            difference.path[0] != "guests"
            or difference.path[2:] != ("running",)
            or (difference.before, difference.after) != (True, False)
        ):
            continue
        guest = difference.path[:2]
        obeys, saved = deed.after[*guest, "system", "obeys_shutdown"], (*guest, "config", "vmstate") in deed.after
        if not obeys and not saved:
            yield f"guest {difference.path[1]} was stopped by force"


# -- everything else ---------------------------------------------------------------------------------------------------


def _objection(difference: Difference, deed: Deed) -> str | None:
    """Of a single difference; None where anybody at `operate` may make it."""
    judge = _JUDGES.get(difference.path[0])
    said = judge(difference, deed) if judge else "nobody knows whether this may change"
    return f"{said}: {difference}" if said else None


def _about_guest(difference: Difference, deed: Deed) -> str | None:
    vmid, what = int(difference.path[1]), difference.path[2]
    if difference.path[2:] == ("vmid",) and difference.after is ABSENT:
        return f"guest {vmid} is gone"
    if vmid in UNTOUCHABLE or vmid in range(310, 320):
        return "a protected guest was touched"
    if what == "node" and PROTECTED_NODE in (difference.before, difference.after):
        return "a guest moved to or from a protected node"
    new = ("guests", str(vmid), "vmid") not in deed.before
    if what == "config" and difference.path[3] == "template" and str(difference.after) == "1" and not new:
        return "it was made a template, which cannot be undone"
    if (
        what == "snapshots"
        and difference.before is not ABSENT
        and difference.path[4] not in ("description", "state", "files")
    ):
        return "a snapshot was changed or lost"
    return None


def _about_storage(difference: Difference, _: Deed) -> str | None:
    if difference.path[2] == "places":
        facts = difference.path[6:]
        vmid = _owner_of(difference.path[5]) if len(difference.path) > 5 else None
        if vmid in UNTOUCHABLE and (facts in (("notes",), ("protected",)) or difference.before is not ABSENT):
            return "a volume of a protected guest was touched"
        return None  # volumes are looked at as a whole
    if difference.after is ABSENT and difference.path[2] in ("id", "type"):
        return "a storage is gone"
    if difference.path[2:4] == ("config", "prune-backups"):
        return "backups will be pruned by other rules"
    return None


def _owner_of(volid: str) -> int | None:
    match = re.search(r"(?:vm|base|subvol|basevol|vzdump-qemu|vzdump-lxc|/vm|/ct)[-/](\d+)[-/]", volid)
    return int(match[1]) if match else None


def _about_access(difference: Difference, deed: Deed) -> str | None:
    if difference.path[1] == "pools":
        new = ("access", "pools", difference.path[2], "id") not in deed.before
        if difference.path[3] in ("vms", "storages"):
            return "the members of a pool changed, and with them rights"
        if new or (difference.path[3] == "comment" and difference.path[2] != PROTECTED_POOL):
            return None
    return "rights changed"


def _about_ha(difference: Difference, _: Deed) -> str | None:
    return "HA of a protected guest changed" if _names_protected(difference.path[1]) else None


def _about_ha_rules(difference: Difference, deed: Deed) -> str | None:
    if difference.path[1] != "rules":
        return "HA was armed or disarmed"
    section = difference.path[:5]
    if difference.path[5:] == ("resources",) and ABSENT not in (difference.before, difference.after):
        left, came = set(difference.before.split(",")), set(difference.after.split(","))
        if came < left and not _names_protected(",".join(left - came)):
            return None  # one that is no longer under HA leaves all its rules
    for state in (deed.before, deed.after):
        if _names_protected(str(state.get((*section, "resources"), ""))):
            return "an HA rule of a protected guest changed"
        if PROTECTED_NODE in str(state.get((*section, "nodes"), "")):
            return "an HA rule of a protected node changed"
    return None


def _names_protected(text: str) -> bool:
    return any(int(number) in UNTOUCHABLE for number in re.findall(r"\d+", text))


def _about_jobs(difference: Difference, deed: Deed) -> str | None:
    job = difference.path[2]
    before, after = _job(deed.before, job), _job(deed.after, job)
    if not after:
        return "a backup job is gone"
    selected, now = _selected(deed.before, before), _selected(deed.after, after)
    if UNTOUCHABLE & (selected ^ now):
        return "a protected guest came into a backup job or left it"
    if not _prunes(after):
        return None
    if not _prunes(before):
        return "a job that prunes backups was made"
    if now - selected or difference.path[3] in ("prune-backups", "storage"):
        return "a job prunes other backups than before"
    return None


def guests_of_job(state: State, name: str) -> set[int]:
    return _selected(state, _job(state, name))


def _job(state: State, name: str) -> dict[str, Any]:
    return {path[3]: value for path, value in state.items() if path[:3] == ("jobs", "jobs", name)}


def _prunes(job: dict[str, Any]) -> bool:
    if str(job.get("remove", 1)) in ("0", "False"):
        return False
    keep = str(job.get("prune-backups", ""))
    return bool(re.search(r"keep-(?!all)\w+=[1-9]", keep))


def _selected(state: State, job: dict[str, Any]) -> set[int]:
    """The guests that the job would back up."""
    if not job:
        return set()
    if pool := job.get("pool"):
        return {int(path[4]) for path in state if path[:4] == ("access", "pools", str(pool), "vms")}
    if str(job.get("all", 0)) in ("1", "True") or job.get("exclude"):
        everyone = {int(path[1]) for path in state if path[0] == "guests"}
        return everyone - {int(vmid) for vmid in re.findall(r"\d+", str(job.get("exclude", "")))}
    return {int(vmid) for vmid in re.findall(r"\d+", str(job.get("vmid", "")))}


def _about_replication(difference: Difference, deed: Deed) -> str | None:
    section = difference.path[:3]
    if (*section, "id") not in deed.after or difference.path[3:] == ("options", "remove_job"):
        return "a replication is gone, or will be"
    if deed.after.get((*section, "guest")) in UNTOUCHABLE:
        return "the replication of a protected guest changed"
    if deed.after.get((*section, "target")) == PROTECTED_NODE:
        return "something is replicated to a protected node"
    return None


def _about_firewall(difference: Difference, deed: Deed) -> str | None:
    if difference.path[1] != "guests":
        return "the firewall of the cluster, of a node or of a network changed"
    if int(difference.path[2]) in UNTOUCHABLE:
        return "the firewall of a protected guest changed"
    return None


def _about_networks(difference: Difference, _: Deed) -> str | None:
    if difference.path[2] == PROTECTED_NODE:
        return "the network of a protected node changed"
    return "a network was rewritten" if difference.path[3] == "_active" else None


def _about_sdn(difference: Difference, _: Deed) -> str | None:
    return "a network was rewritten" if difference.path[1] == "running" else None


def _about_node_part(difference: Difference, _: Deed) -> str | None:
    if difference.path[2] == PROTECTED_NODE:
        return "a protected node was touched"
    if difference.path[0] == "disks":
        return "a disk of a node was overwritten"
    if difference.path[0] == "services" and difference.path[4:] == ("running",) and difference.after is False:
        return "a service of a node was stopped"
    if difference.path[0] == "settings" and difference.path[3] in ("hosts", "dns", "custom_certificate"):
        return "a file of a node was overwritten"
    if (
        difference.path[0] == "settings"
        and difference.path[3] == "subscription_key"
        and difference.before is not ABSENT
        and not difference.after
    ):
        return "the subscription is gone"
    return None


def _about_nodes(difference: Difference, _: Deed) -> str | None:
    return "a node went down or away"


def _about_datacenter(difference: Difference, _: Deed) -> str | None:
    if difference.path[1] == "mappings":
        return "a mapping opens hardware or folders of nodes to guests"
    if difference.path[1] == "metric_servers" and difference.after is not ABSENT:
        return _TOLD
    if difference.path[1] == "realm_sync_jobs":
        return "users and groups will be made or removed"
    if difference.path[1] == "options" and difference.path[2] in (
        "user-tag-access",
        "registered-tags",
        "webauthn",
        "u2f",
    ):
        return "rights changed"
    return "it was removed" if difference.after is ABSENT else None


_TOLD: Final = "a server that the caller chose is told of every guest, also of hidden ones"


def _about_notifications(difference: Difference, deed: Deed) -> str | None:
    kind = (*difference.path[:3], "type")
    if kind not in deed.after:
        return "it was removed"
    return _TOLD if deed.after[kind] != "matcher" and difference.after is not ABSENT else None


_JUDGES: Final = {
    "guests": _about_guest,
    "storages": _about_storage,
    "access": _about_access,
    "ha": _about_ha,
    "ha-manager": _about_ha_rules,
    "jobs": _about_jobs,
    "replication": _about_replication,
    "firewall": _about_firewall,
    "networks": _about_networks,
    "sdn": _about_sdn,
    "services": _about_node_part,
    "settings": _about_node_part,
    "disks": _about_node_part,
    "packages": _about_node_part,
    "nodes": _about_nodes,
    "datacenter": _about_datacenter,
    "notifications": _about_notifications,
}


def _too_many(changed: Iterable[Difference]) -> Iterator[str]:
    """Guests that were there and are not as they were, or have a volume more."""
    touched = {
        difference.path[1] for difference in changed if difference.path[0] == "guests" and difference.path[2] != "vmid"
    }
    born = {
        difference.path[1] for difference in changed if difference.path[0] == "guests" and difference.path[2] == "vmid"
    }
    backed_up = {
        str(vmid)
        for difference in changed
        if difference.path[0] == "storages"
        and len(difference.path) > 6
        and difference.path[6] == "volid"
        and difference.before is ABSENT
        if (vmid := _owner_of(difference.path[5])) is not None
    }
    if len(reached := (touched | backed_up) - born) > GUESTS_PER_CALL:
        yield f"one call reached {len(reached)} guests: {', '.join(sorted(reached))}"


def _sent_to_protected(deed: Deed) -> Iterator[str]:
    """Whatever it did not do: it was asked to. Looking inside a guest protected from changes is not a change."""
    for request in deed.sent:
        match = _GUEST_PATH.search(request.target)
        if request.method == "GET" or match is None:
            continue
        vmid, part = int(match[2]), match[3] or ""
        looked = part.startswith("/agent/") and not deed.operations and vmid not in HIDDEN
        if vmid in UNTOUCHABLE and part != "/clone" and not looked:
            yield f"a protected guest was addressed: {request}"
    for request in deed.sent:
        path = request.target.partition("?")[0]
        if (
            request.method != "GET"
            and f"/nodes/{PROTECTED_NODE}/" in path
            and deed.operations
            and not path.endswith("/clone")
        ):
            yield f"a protected node was addressed: {request}"


# -- what is shown -----------------------------------------------------------------------------------------------------


def leaks(sent_text: str, told: str) -> list[str]:
    """What an answer tells of hidden guests beyond what the caller has said."""
    sent_text, told = sent_text.casefold(), told.casefold()
    return [
        f"hidden guest {vmid} is told: {word}"
        for vmid, words in SECRETS.items()
        for word in words
        if word not in sent_text and re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.]|\.\d)", told)
    ]


def outside(sent: Collection[Sent], addresses: Iterable[str]) -> list[str]:
    """Reads that make PVE ask a stranger."""
    return [
        f"PVE was sent to {address}: {request}"
        for request in sent
        for address in addresses
        if address in request.target
    ]
