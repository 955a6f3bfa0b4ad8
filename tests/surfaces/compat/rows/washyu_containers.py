"""washyu's rows about containers on devices, and infrastructure plans for them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.rigs.compat_session import Done, Row
from tests.surfaces.compat.rows import homelabs
from tests.surfaces.compat.rows.homelabs import HomelabRig

# -- workloads ---------------------------------------------------------------------------------------------------------

ON_ONE = {"device_id": 1, "platform": "docker", "vm_name": "web"}
CONFIG = {
    "image": "redis:7",
    "ports": ["6380:6379"],
    "environment": {"MODE": "calm"},
    "command": "redis-server --save ''",
    "type": "container",
    "profiles": ["default"],
    "config": {},
}


def container_is_made(done: Done) -> None:
    engine = done.homelab.engines["one"]
    assert done.homelab.running("one") == {"web": "nginx:1.27", "cache": "redis:7"}
    body = engine.bodies[-1]
    assert (body["Env"], body["Cmd"]) == (["MODE=calm"], ["redis-server", "--save", ""])
    assert body["HostConfig"]["PortBindings"] == {"6379/tcp": [{"HostIp": "", "HostPort": "6380"}]}


def container_is_stopped(done: Done) -> None:
    assert done.homelab.engines["one"].containers["web"]["State"]["Status"] == "exited"


def container_is_told(done: Done) -> None:
    text = json.dumps(done.facts)
    assert "nginx:1.27" in text
    assert '"running"' in text
    assert '"web"' in text


def log_is_told(done: Done) -> None:
    assert "no such file" in json.dumps(done.facts)


def container_is_gone(done: Done) -> None:
    assert done.homelab.engines["one"].containers == {}


WORKLOADS = [
    Row(
        "deploy_vm",
        {"device_id": 1, "platform": "docker", "vm_name": "cache", "vm_config": CONFIG},
        container_is_made,
        homelab=homelabs.with_one_docker,
    ),
    Row("control_vm", {**ON_ONE, "action": "stop"}, container_is_stopped, homelab=homelabs.with_one_docker),
    Row("get_vm_status", ON_ONE, container_is_told, homelab=homelabs.with_docker),
    Row("list_vms", {"device_id": 1, "platforms": ["docker"]}, container_is_told, homelab=homelabs.with_docker),
    Row("get_vm_logs", {**ON_ONE, "lines": 10}, log_is_told, homelab=homelabs.with_docker),
    Row("remove_vm", {**ON_ONE, "force": True}, container_is_gone, homelab=homelabs.with_one_docker),
]

# -- infrastructure ----------------------------------------------------------------------------------------------------

CACHE = {"name": "cache", "type": "docker", "target_device_id": 1, "config": {"image": "redis:7"}}
DOCUMENT = {"name": "lab", "workloads": {"cache": {"host": "one", "image": "redis:7"}}}


def plan_is_done(done: Done) -> None:
    assert done.homelab.running("one") == {"web": "nginx:1.27", "cache": "redis:7"}


def plan_holds(done: Done) -> None:
    assert '"valid": true' in json.dumps(done.facts)
    assert done.homelab.running("one") == {"web": "nginx:1.27"}


async def apply(homelab: HomelabRig) -> None:
    await homelab.quorate.facts("infra_apply", document=DOCUMENT)


def copies_run(done: Done) -> None:
    assert sorted(done.homelab.running("one")) == ["cache", "cache-2", "cache-3", "web"]


def image_is_newer(done: Done) -> None:
    assert done.homelab.running("one") == {"web": "nginx:1.28"}


async def device_is_retired(done: Done) -> None:
    assert (done.homelab.running("one"), done.homelab.running("two")) == ({}, {"web": "nginx:1.27"})
    assert list(await done.homelab.registered()) == ["two"]
    assert {device.id: device.state for device in await done.homelab.devices()} == {1: "retired", 2: "up"}


def archives(homelab: HomelabRig) -> list[Path]:
    return list((homelab.folder / "work" / "backups").glob("*"))


def archive_is_there(done: Done) -> None:
    (archive,) = archives(done.homelab)
    assert archive.name.startswith("before-")
    assert archive.stat().st_mode & 0o077 == 0
    assert archive.stem in json.dumps(done.facts)


async def back_up_and_change(homelab: HomelabRig) -> None:
    await homelab.quorate.facts("infra_backup", devices=["one"], scope=["workloads"], name="before")
    await homelab.quorate.facts("workload_remove", host="one", name="web")
    assert homelab.running("one") == {}


def backup_id(homelab: HomelabRig) -> str:
    (archive,) = archives(homelab)
    return archive.stem


def container_is_back(done: Done) -> None:
    assert done.homelab.running("one") == {"web": "nginx:1.27"}


INFRASTRUCTURE = [
    Row(
        "deploy_infrastructure",
        {"deployment_plan": {"services": [CACHE]}, "validate_only": False},
        plan_is_done,
        homelab=homelabs.with_one_docker,
    ),
    Row(
        "update_device_config",
        {
            "device_id": 1,
            "config_changes": {"services": {"web": {"type": "docker", "image": "nginx:1.28"}}},
            "backup_before_change": False,
            "validate_only": False,
        },
        image_is_newer,
        homelab=homelabs.with_one_docker,
    ),
    Row(
        "decommission_device",
        {"device_id": 1, "migration_plan": {"target_devices": [2]}, "force_removal": False, "validate_only": False},
        device_is_retired,
        homelab=homelabs.with_docker,
    ),
    Row(
        "scale_services",
        {
            "scaling_plan": {"scale_up": [{"device_id": 1, "service_name": "cache", "target_replicas": 3}]},
            "validate_only": False,
        },
        copies_run,
        prepare=apply,
        homelab=homelabs.with_one_docker,
    ),
    Row(
        "validate_infrastructure_changes",
        {"change_plan": {"services": [CACHE]}, "validation_level": "simulation"},
        plan_holds,
        homelab=homelabs.with_docker,
    ),
    Row(
        "create_infrastructure_backup",
        {"backup_scope": "device_specific", "device_ids": [1], "include_data": False, "backup_name": "before"},
        archive_is_there,
        homelab=homelabs.with_one_docker,
    ),
    Row(
        "rollback_infrastructure_changes",
        {"backup_id": backup_id, "rollback_scope": "device_specific", "device_ids": [1], "validate_only": False},
        container_is_back,
        prepare=back_up_and_change,
        homelab=homelabs.with_one_docker,
    ),
]

ROWS = [*WORKLOADS, *INFRASTRUCTURE]
