"""What protects stays: a change by which a stored object protects less is a destruction, however it is written."""

import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quorate.config import Access
from quorate.config.policy import read_policy
from quorate.config.sources import Rank, Source
from tests.pipeline.test_safety_table import tries
from tests.rigs.mcp_session import Rig, in_one_order, rig, second_server

pytestmark = pytest.mark.anyio

NOTHING_IS_DESTROYED = '[[rules]]\nname = "nothing is destroyed"\ndeny = "destroy"\n'
JOB, KEEPING_JOB, OFF_JOB = "/cluster/backup/nightly", "/cluster/backup/keeping", "/cluster/backup/paused"
REPLICATION = "/cluster/replication/103-0"
MATCHER, ANY_MATCHER = "/cluster/notifications/matchers/alerts", "/cluster/notifications/matchers/some"
MAIL = "/cluster/notifications/endpoints/sendmail/operators"
RULE, RESOURCE = "/cluster/ha/rules/apart", "/cluster/ha/resources/vm:102"
VM, FIREWALL = "/nodes/pve1/qemu/108", "/nodes/pve1/qemu/108/firewall"
NAS = "/storage/nas"
TEMPLATE = "/nodes/pve1/qemu/9000"

SETUP: list[tuple[str, str, dict[str, Any]]] = [
    (
        "POST",
        "/cluster/backup",
        {
            "id": "nightly",
            "schedule": "02:00",
            "all": 1,
            "exclude": "107",
            "storage": "nas",
            "prune-backups": "keep-last=3",
            "mailto": "ops@example.org",
            "repeat-missed": 1,
        },
    ),
    (
        "POST",
        "/cluster/backup",
        {"id": "keeping", "schedule": "02:00", "vmid": "102,108", "storage": "nas", "remove": 0},
    ),
    (
        "POST",
        "/cluster/backup",
        {"id": "paused", "schedule": "02:00", "vmid": "102", "storage": "nas", "enabled": 0},
    ),
    ("POST", "/cluster/replication", {"id": "103-0", "type": "local", "target": "pve1", "schedule": "*/15"}),
    (
        "POST",
        "/cluster/notifications/endpoints/sendmail",
        {"name": "operators", "mailto": ["ops@example.org", "boss@example.org"]},
    ),
    ("POST", "/cluster/notifications/endpoints/sendmail", {"name": "spare", "mailto": ["spare@example.org"]}),
    ("POST", "/cluster/notifications/matchers", {"name": "alerts", "target": ["operators", "mail-to-root"]}),
    (
        "POST",
        "/cluster/notifications/matchers",
        {"name": "some", "mode": "any", "target": ["operators"], "match-severity": ["warning,error"]},
    ),
    ("POST", "/cluster/ha/resources", {"sid": "vm:102", "max_restart": 3}),
    ("POST", "/storage", {"storage": "block", "type": "lvm", "vgname": "block", "content": "images"}),
    ("POST", "/cluster/ha/resources", {"sid": "vm:103"}),
    ("POST", "/cluster/ha/resources", {"sid": "vm:104"}),
    (
        "POST",
        "/cluster/ha/rules",
        {"rule": "apart", "type": "resource-affinity", "affinity": "negative", "resources": "vm:102,vm:103,vm:104"},
    ),
    ("PUT", f"{VM}/config", {"protection": 1, "watchdog": "model=i6300esb,action=reset"}),
    ("PUT", "/nodes/pve1/qemu/102/config", {"watchdog": "model=i6300esb,action=reset"}),
    ("PUT", f"{VM}/config", {"net0": "virtio=BC:24:11:00:01:08,bridge=vmbr0,firewall=1"}),
    ("PUT", f"{FIREWALL}/options", {"enable": 1, "policy_out": "DROP", "ipfilter": 1}),
    ("POST", f"{FIREWALL}/rules", {"type": "in", "action": "ACCEPT", "dport": "22", "proto": "tcp", "enable": 1}),
    (
        "POST",
        f"{FIREWALL}/rules",
        {"type": "in", "action": "REJECT", "dport": "23", "proto": "tcp", "enable": 1, "pos": 1},
    ),
    ("POST", f"{FIREWALL}/rules", {"type": "in", "action": "DROP", "enable": 1, "pos": 0}),
]

WEAKER: dict[str, tuple[str, dict[str, Any]]] = {
    "empty backups": (JOB, {"exclude-path": ["/*"]}),
    "empty backups of a job that keeps all": (KEEPING_JOB, {"exclude-path": ["/*"]}),
    "job off": (JOB, {"enabled": 0}),
    "job in 2030": (JOB, {"schedule": "2030-1-1 02:00"}),
    "job once a week": (JOB, {"schedule": "sat 02:00"}),
    "job once a week, in the old spelling": (JOB, {"starttime": "02:00", "dow": "sat"}),
    "job so often that it prunes everything old": (JOB, {"schedule": "*/5"}),
    "job of one guest": (JOB, {"vmid": "108", "remove": 0}),
    "job without a guest": (KEEPING_JOB, {"vmid": "102", "remove": 0}),
    "job without a guest, as an exclusion": (KEEPING_JOB, {"all": 1, "exclude": "102", "remove": 0}),
    "job of a pool": (KEEPING_JOB, {"pool": "production", "remove": 0}),
    "job on one node": (KEEPING_JOB, {"node": "pve3", "remove": 0}),
    "one more exclusion": (JOB, {"exclude": "102,107", "remove": 0}),
    "job that nobody hears": (JOB, {"delete": "mailto"}),
    "job too slow to finish": (JOB, {"bwlimit": 1}),
    "job that does not catch up": (JOB, {"repeat-missed": 0}),
    "job that prunes elsewhere": (JOB, {"storage": "pbs"}),
    "job that prunes more guests": (JOB, {"delete": "exclude"}),
    "job that does not wait for guests to stop": (JOB, {"stopwait": 0}),
    "job that gives up on containers": (JOB, {"performance": "pbs-entries-max=1"}),
    "paused job that prunes, on": (OFF_JOB, {"enabled": 1}),
    "replication off": (REPLICATION, {"disable": 1}),
    "replication once a year": (REPLICATION, {"schedule": "yearly"}),
    "replication too slow to finish": (REPLICATION, {"rate": 1}),
    "storage off": (NAS, {"disable": 1}),
    "storage without backups": (NAS, {"content": "iso"}),
    "storage on one node": (NAS, {"nodes": "pve3"}),
    "storage that is not mounted": ("/storage/local", {"is_mountpoint": "yes"}),
    "storage without protected backups": (NAS, {"max-protected-backups": 0}),
    "storage of tagged volumes": ("/storage/block", {"tagged_only": 1}),
    "matcher off": (MATCHER, {"disable": 1}),
    "matcher without a target": (MATCHER, {"delete": ["target"]}),
    "matcher with another target": (MATCHER, {"target": ["mail-to-root"]}),
    "matcher for nothing": (MATCHER, {"match-field": ["exact:type=nothing"]}),
    "matcher upside down": (MATCHER, {"invert-match": 1}),
    "matcher of less severities": (ANY_MATCHER, {"match-severity": ["error"]}),
    "endpoint off": (MAIL, {"disable": 1}),
    "endpoint without a recipient": (MAIL, {"mailto": ["boss@example.org"]}),
    "HA rule off": (RULE, {"type": "resource-affinity", "disable": 1}),
    "HA rule without a guest": (RULE, {"type": "resource-affinity", "resources": "vm:102,vm:103"}),
    "HA gives up at once": (RESOURCE, {"max_restart": 0}),
    "guest unprotected": (f"{VM}/config", {"protection": 0}),
    "guest unprotected by deletion": (f"{VM}/config", {"delete": "protection"}),
    "template that runs again": (f"{TEMPLATE}/config", {"template": 0}),
    "template that runs again, by deletion": (f"{TEMPLATE}/config", {"delete": "template"}),
    "pending watchdog": ("/nodes/pve1/qemu/102/config", {"revert": "watchdog"}),
    "guest without watchdog": (f"{VM}/config", {"delete": "watchdog"}),
    "card without firewall": (f"{VM}/config", {"net0": "virtio=BC:24:11:00:01:08,bridge=vmbr0"}),
    "guest firewall off": (f"{FIREWALL}/options", {"enable": 0}),
    "guest firewall off by deletion": (f"{FIREWALL}/options", {"delete": "enable"}),
    "guest firewall open": (f"{FIREWALL}/options", {"policy_in": "ACCEPT"}),
    "guest firewall without address filter": (f"{FIREWALL}/options", {"ipfilter": 0}),
    "blocking rule off": (f"{FIREWALL}/rules/0", {"enable": 0}),
    "blocking rule turned": (f"{FIREWALL}/rules/0", {"action": "ACCEPT"}),
    "blocking rule for one address": (f"{FIREWALL}/rules/0", {"source": "192.0.2.1"}),
    "blocking rule last": (f"{FIREWALL}/rules/0", {"moveto": 2}),
}

NOT_WEAKER: dict[str, tuple[str, dict[str, Any]]] = {
    "comment of a job": (JOB, {"comment": "by night"}),
    "one more recipient": (JOB, {"mailto": "ops@example.org,boss@example.org"}),
    "another hour": (JOB, {"schedule": "01:00"}),
    "the same days in the old spelling": (JOB, {"starttime": "03:00"}),
    "one more guest": (KEEPING_JOB, {"vmid": "102,103,108", "remove": 0}),
    "one more guest of a job that keeps all": (KEEPING_JOB, {"vmid": "102,103,108"}),
    "notes, with the storage that the job has": (JOB, {"notes-template": "{{guestname}}", "storage": "nas"}),
    "a longer wait": (JOB, {"stopwait": 20}),
    "any number of protected backups": (NAS, {"max-protected-backups": -1}),
    "all guests": (KEEPING_JOB, {"all": 1, "exclude": "107", "remove": 0}),
    "twice a day without pruning": (KEEPING_JOB, {"schedule": "2,14:00"}),
    "replication more often": (REPLICATION, {"schedule": "*/5"}),
    "more content": (NAS, {"content": "images,iso,backup,vztmpl,rootdir,snippets,import"}),
    "one more target": (MATCHER, {"target": ["operators", "mail-to-root", "spare"]}),
    "more severities": (ANY_MATCHER, {"match-severity": ["warning,error", "info"]}),
    "comment of a matcher": (MATCHER, {"comment": "everything"}),
    "one more restart": (RESOURCE, {"max_restart": 5}),
    "card on another bridge": (f"{VM}/config", {"net0": "virtio=BC:24:11:00:01:08,bridge=vmbr1,firewall=1"}),
    "still protected": (f"{VM}/config", {"protection": 1, "cores": 2}),
    "stricter firewall": (f"{FIREWALL}/options", {"policy_in": "REJECT"}),
    "blocking rule first": (f"{FIREWALL}/rules/1", {"moveto": 0}),
    "accepting rule off": (f"{FIREWALL}/rules/2", {"enable": 0}),
}


def rules(text: str) -> Any:
    return read_policy(tomllib.loads(text), Source(Rank.TOML))


@asynccontextmanager
async def without_destroy(admin: Rig, tmp_path: Path) -> AsyncIterator[tuple[Rig, Rig]]:
    """Two servers that must not destroy anything: by their access level, and by a rule."""
    policy = rules(NOTHING_IS_DESTROYED)
    async with (
        second_server(admin, tmp_path / "operate.jsonl", in_memory=True, access=Access.OPERATE) as operate,
        second_server(admin, tmp_path / "ruled.jsonl", in_memory=True, policy=policy) as ruled,
    ):
        yield operate, ruled


async def set_up(quorate) -> None:
    for method, path, params in SETUP:
        await quorate.write(method, path, params)


async def read(quorate, path: str) -> Any:
    where = path.rpartition("/")[0] if "/firewall/rules/" in path else path
    shown = await quorate.facts("api_call", method="GET", path=where)
    return {name: value for name, value in in_one_order(shown).items() if name not in ("took", "digest")}


@tries(
    "a job that prunes is edited so that its backups are empty: `exclude-path=/*`, a guest less, a disabled job, "
    "a schedule in 2030",
    "an alert, storage, replication, HA rule, guest firewall or `protection` is switched off or narrowed by an edit "
    "that looks harmless",
)
@pytest.mark.parametrize("attack", WEAKER)
async def test_what_protects_less_is_a_destruction(tmp_path, attack):
    path, params = WEAKER[attack]
    arguments = {"method": "PUT", "path": path, "params": params}
    async with rig(tmp_path, in_memory=True) as admin:
        await set_up(admin)
        before = await read(admin, path)
        async with without_destroy(admin, tmp_path) as (operate, ruled):
            for dry_run in (True, False):
                refused = await operate.refusal("api_call", **arguments, dry_run=dry_run)
                assert "access level operate" in refused
                assert "nothing is destroyed" in await ruled.refusal("api_call", **arguments, dry_run=dry_run)
        assert await read(admin, path) == before
        shown = await admin.facts("api_call", **arguments, dry_run=True)
        assert shown["risk"].startswith(f"destroy: PUT {path}: ")
        await admin.facts("api_call", **arguments)
        assert await read(admin, path) != before


@pytest.mark.parametrize("edit", NOT_WEAKER)
async def test_wider_and_neutral_edits_stay_a_change(tmp_path, edit):
    path, params = NOT_WEAKER[edit]
    async with rig(tmp_path, in_memory=True) as admin:
        await set_up(admin)
        before = await read(admin, path)
        policy = rules(NOTHING_IS_DESTROYED)
        async with second_server(
            admin, tmp_path / "o.jsonl", in_memory=True, access=Access.OPERATE, policy=policy
        ) as operate:
            await operate.facts("api_call", method="PUT", path=path, params=params)
            assert operate.audit()[-1]["risk"] == "change"
        if edit != "still protected":
            assert await read(admin, path) != before


TOOLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "job off": (JOB, "backup_job_set", {"job": "nightly", "enabled": False}),
    "job in 2030": (JOB, "backup_job_set", {"job": "nightly", "schedule": "2030-1-1 02:00"}),
    "job of fewer guests": (KEEPING_JOB, "backup_job_set", {"job": "keeping", "guest": [102]}),
    "replication once a year": (REPLICATION, "replication_set", {"guest": 103, "target": "pve1", "schedule": "yearly"}),
    "guest unprotected": (f"{VM}/config", "guest_configure", {"guest": 108, "options": {"protection": 0}}),
    "guest firewall off": (
        f"{FIREWALL}/options",
        "firewall_options_set",
        {"scope": "guest", "of": 108, "enable": False},
    ),
    "blocking rule off": (
        f"{FIREWALL}/rules/0",
        "firewall_rule_set",
        {"scope": "guest", "of": 108, "pos": 0, "enable": False},
    ),
}


@pytest.mark.parametrize("attack", TOOLS)
async def test_the_named_tools_follow(tmp_path, attack):
    path, tool, arguments = TOOLS[attack]
    async with rig(tmp_path, in_memory=True) as admin:
        await set_up(admin)
        before = await read(admin, path)
        async with without_destroy(admin, tmp_path) as (operate, ruled):
            refused = await operate.refusal(tool, **arguments)
            assert "access level operate" in refused
            assert "stops protecting" in refused
            assert "nothing is destroyed" in await ruled.refusal(tool, **arguments)
        assert await read(admin, path) == before
        assert (
            "it stops protecting something that is protected now"
            in (await admin.facts(tool, **arguments, dry_run=True))["risk"]
        )
        assert await read(admin, path) == before
        await admin.facts(tool, **arguments)
        assert await read(admin, path) != before


async def test_a_guest_leaves_ha_only_with_admin(tmp_path):
    async with rig(tmp_path, in_memory=True) as admin:
        await set_up(admin)
        async with without_destroy(admin, tmp_path) as (operate, ruled):
            for arguments in ({"guest": 102}, {"rule": "apart"}):
                assert "access level operate" in await operate.refusal("ha_remove", **arguments)
                assert "nothing is destroyed" in await ruled.refusal("ha_remove", **arguments)
        assert "vm:102" in admin.sim.world.ha
        await admin.facts("ha_remove", guest=102)
        assert "vm:102" not in admin.sim.world.ha


async def test_what_cannot_be_read_counts_as_protected(tmp_path):
    async with rig(tmp_path, in_memory=True) as admin:
        await set_up(admin)
        before = await read(admin, JOB)
        async with second_server(admin, tmp_path / "operate.jsonl", in_memory=True, access=Access.OPERATE) as operate:
            await operate.facts("api_call", method="GET", path="/cluster/backup")
            admin.sim.faults.add(f"500:disk I/O error:GET:{JOB}")
            arguments = {"method": "PUT", "path": JOB, "params": {"schedule": "01:00"}}
            assert "cannot be read" in await operate.refusal("api_call", **arguments)
            admin.sim.faults.clear()
        assert await read(admin, JOB) == before


async def test_only_options_that_may_protect_cost_a_request(tmp_path):
    async with rig(tmp_path, in_memory=True) as quorate:
        await set_up(quorate)

        async def count_reads(**params) -> int:
            mark = len(quorate.sim.requests)
            await quorate.facts("api_call", method="PUT", path=JOB, params=params)
            return quorate.requests_since(mark).count(("GET", JOB))

        assert await count_reads(comment="x") + 1 == await count_reads(schedule="01:00")
