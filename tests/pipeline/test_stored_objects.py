"""Rules hold for what a backup job or an HA rule is about, not only for what a change of it says."""

import tomllib
from typing import Any

import pytest

from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.storage.backup_jobs import BackupJobs
from pve_simulator.world import HaResource
from quorate.config.policy import read_policy
from quorate.config.sources import Rank, Source
from tests.rigs.mcp_session import rig, second_server

pytestmark = pytest.mark.anyio

RULES = """
[policy]
guests_per_call = 2
[[rules]]
name = "hands off"
deny = "change"
tags = ["db"]
"""  # postgres, 203


def ruled(tmp_path, **more):
    return rig(tmp_path, more={"policy": read_policy(tomllib.loads(RULES), Source(Rank.TOML))}, **more)


def with_jobs(quorate):
    jobs = quorate.sim.world.part(BackupJobs)
    jobs.add("named", {"schedule": "21:00", "vmid": "102,203", "storage": "nas"})
    jobs.add("pooled", {"schedule": "21:00", "pool": "production", "storage": "nas"})
    jobs.add("all-but", {"schedule": "21:00", "all": 1, "exclude": "102", "storage": "nas"})
    jobs.add("without-it", {"schedule": "21:00", "all": 1, "exclude": "203", "storage": "nas"})
    jobs.add("other", {"schedule": "21:00", "vmid": "102", "storage": "nas"})
    return jobs.all()


def with_rules(quorate):
    world = quorate.sim.world
    world.ha |= {sid: HaResource(sid) for sid in ("vm:102", "vm:103", "ct:203")}
    rules = world.part(HaManager).rules.rules.sections
    rules["apart"] = {"type": "resource-affinity", "affinity": "negative", "resources": "vm:102,ct:203"}
    rules["free"] = {"type": "resource-affinity", "affinity": "negative", "resources": "vm:102,vm:103"}
    return rules


@pytest.mark.parametrize("job", ["named", "pooled", "all-but"])
async def test_a_job_that_backs_up_a_protected_guest_is_left_alone(tmp_path, job):
    async with ruled(tmp_path) as quorate:
        jobs = with_jobs(quorate)
        before = {name: dict(options) for name, options in jobs.items()}
        path = f"/cluster/backup/{job}"
        calls: list[tuple[str, dict[str, Any]]] = [
            ("api_call", {"method": "PUT", "path": path, "params": {"enabled": False}}),
            ("api_call", {"method": "PUT", "path": path, "params": {"vmid": 104, "remove": 0}}),
            ("api_call", {"method": "DELETE", "path": path}),
            ("backup_job_set", {"job": job, "enabled": False}),
            ("backup_job_delete", {"job": job}),
        ]
        for tool, arguments in calls:
            assert "'hands off'" in await quorate.refusal(tool, **arguments), arguments
        assert jobs == before


@pytest.mark.parametrize("job", ["without-it", "other"])
async def test_a_job_without_it_may_be_changed_however_many_guests_it_has(tmp_path, job):
    async with ruled(tmp_path) as quorate:
        jobs = with_jobs(quorate)
        await quorate.facts("backup_job_set", job=job, enabled=False)
        assert not jobs[job]["enabled"]
        await quorate.facts("backup_job_set", job=job, keep="last=3")
        assert jobs[job]["prune-backups"] == "keep-last=3"
        await quorate.facts("backup_job_delete", job=job)
        assert job not in jobs


async def test_a_rule_of_ha_that_a_protected_guest_is_in_is_left_alone(tmp_path):
    async with ruled(tmp_path) as quorate:
        rules = with_rules(quorate)
        params = {"type": "resource-affinity", "affinity": "positive"}
        for arguments in (
            {"method": "PUT", "path": "/cluster/ha/rules/apart", "params": params},
            {"method": "DELETE", "path": "/cluster/ha/rules/apart"},
        ):
            assert "'hands off'" in await quorate.refusal("api_call", **arguments)
        assert "'hands off'" in await quorate.refusal("ha_remove", rule="apart")
        assert rules["apart"]["affinity"] == "negative"
        await quorate.facts("ha_remove", rule="free")
        assert "free" not in rules


async def test_a_group_of_ha_that_a_protected_guest_is_in_is_left_alone(tmp_path):
    async with ruled(tmp_path, version="8.4.14") as quorate:
        world = quorate.sim.world
        world.ha["ct:203"] = HaResource("ct:203", group="close", options={"group": "close"})
        groups = world.part(HaManager).rules.groups.sections
        groups |= {name: {"type": "group", "nodes": "pve1"} for name in ("close", "far")}
        for name, left in (("close", "pve1"), ("far", "pve2")):
            path = f"/cluster/ha/groups/{name}"
            await quorate.call("api_call", method="PUT", path=path, params={"nodes": "pve2"})
            assert groups[name]["nodes"] == left


async def test_of_something_that_is_not_there_pve_says_so(tmp_path):
    async with ruled(tmp_path) as quorate:
        for path in ("/cluster/backup/nothing", "/cluster/ha/rules/nothing"):
            params = {"comment": "x"} | ({"type": "resource-affinity"} if "rules" in path else {})
            text = await quorate.refusal("api_call", method="PUT", path=path, params=params)
            assert "nothing" in text
            assert f"PUT {path}" in text


NODE_RULE = """
[[rules]]
name = "vault"
deny = "change"
nodes = ["pve3"]
"""


async def test_a_device_mapping_that_names_a_protected_node_is_left_alone(tmp_path):
    async with rig(tmp_path) as free:
        for name, node in (("kept", "pve3"), ("free", "pve1")):
            mapped = {"id": name, "map": [f"node={node},path=/srv"]}
            await free.facts("api_call", method="POST", path="/cluster/mapping/dir", params=mapped)
        policy = read_policy(tomllib.loads(NODE_RULE), Source(Rank.TOML))
        async with second_server(free, tmp_path / "ruled.jsonl", policy=policy) as quorate:
            new = {"id": "new", "map": ["node=pve1,path=/srv", "path=/,node=pve3"]}
            for method, path, params in (
                ("POST", "/cluster/mapping/dir", new),
                ("PUT", "/cluster/mapping/dir/free", {"map": ["node=pve3,path=/"]}),
                ("PUT", "/cluster/mapping/dir/kept", {"map": ["node=pve1,path=/srv"]}),
                ("DELETE", "/cluster/mapping/dir/kept", {}),
            ):
                refused = await quorate.refusal("api_call", method=method, path=path, params=params)
                assert "refused by the rule 'vault'" in refused, (method, path)
            await quorate.facts("api_call", method="DELETE", path="/cluster/mapping/dir/free")
