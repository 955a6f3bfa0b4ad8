"""washyu's rows about containers on devices, and infrastructure plans for them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.coverage import homes
from tests.coverage.homes import Home
from tests.coverage.rows import Done, Turned, native, row

ON_DEVICE = {"device_id": "a device is a host by its own name"}

# -- workloads ---------------------------------------------------------------------------------------------------------

ON_ONE = {"device_id": 1, "platform": "docker", "vm_name": "web"}
SAME = {"name": "vm_name", "engine": "platform"}
CONFIG = {
    "image": "redis:7",
    "ports": ["6380:6379"],
    "environment": {"MODE": "calm"},
    "command": "redis-server --save ''",
}


def container_is_made(done: Done) -> None:
    engine = done.home.engines["one"]
    assert done.home.running("one") == {"web": "nginx:1.27", "cache": "redis:7"}
    body = engine.bodies[-1]
    assert (body["Env"], body["Cmd"]) == (["MODE=calm"], ["redis-server", "--save", ""])
    assert body["HostConfig"]["PortBindings"] == {"6379/tcp": [{"HostIp": "", "HostPort": "6380"}]}


def container_is_stopped(done: Done) -> None:
    assert done.home.engines["one"].containers["web"]["State"]["Status"] == "exited"


def container_is_told(done: Done) -> None:
    text = json.dumps(done.facts)
    assert "nginx:1.27" in text
    assert '"running"' in text
    assert '"web"' in text


def log_is_told(done: Done) -> None:
    assert "no such file" in json.dumps(done.facts)


def container_is_gone(done: Done) -> None:
    assert done.home.engines["one"].containers == {}


async def deploy(done: Done) -> None:
    config = dict(done.given["vm_config"])
    command = ["redis-server", "--save", ""]
    arguments = {"image": config["image"], "ports": config["ports"], "env": config["environment"], "command": command}
    await done.call(
        "workload_deploy", host="one", name=done.given["vm_name"], engine=done.given["platform"], **arguments
    )


WORKLOADS = [
    row(
        "deploy_vm",
        {"device_id": 1, "platform": "docker", "vm_name": "cache", "vm_config": CONFIG},
        deploy,
        container_is_made,
        uses=("platform", "vm_name", "vm_config"),
        without=ON_DEVICE,
        home=homes.docked,
    ),
    row(
        "control_vm",
        {**ON_ONE, "action": "stop"},
        native("workload_power", {**SAME, "action": "action"}, host="one"),
        container_is_stopped,
        without=ON_DEVICE,
        home=homes.docked,
    ),
    row("get_vm_status", ON_ONE, native("workload_get", SAME, host="one"), container_is_told, without=ON_DEVICE,
        home=homes.docked),
    row(
        "list_vms",
        {"device_id": 1, "platforms": ["docker"]},
        native("workload_list", {"engine": Turned("platforms", lambda names: names[0])}, host="one"),
        container_is_told,
        without=ON_DEVICE,
        home=homes.docked,
    ),
    row(
        "get_vm_logs",
        {**ON_ONE, "lines": 10},
        native("workload_logs", {**SAME, "lines": "lines"}, host="one"),
        log_is_told,
        without=ON_DEVICE,
        home=homes.docked,
    ),
    row(
        "remove_vm",
        {**ON_ONE, "force": True},
        native("workload_remove", SAME, host="one"),
        container_is_gone,
        without={**ON_DEVICE, "force": "it is stopped first in any case"},
        home=homes.docked,
    ),
]  # fmt: skip

# -- infrastructure ----------------------------------------------------------------------------------------------------

CACHE = {"name": "cache", "type": "docker", "target_device_id": 1, "config": {"image": "redis:7"}}
DOCUMENT = {"name": "lab", "workloads": {"cache": {"host": "one", "image": "redis:7"}}}
NO_PLAN = {"deployment_plan": "a document of ours says the same with names of hosts"}
DRY = {"validate_only": "dry_run, and infra_plan"}


def plan_is_done(done: Done) -> None:
    assert done.home.running("one") == {"web": "nginx:1.27", "cache": "redis:7"}


def plan_holds(done: Done) -> None:
    assert '"valid": true' in json.dumps(done.facts)
    assert done.home.running("one") == {"web": "nginx:1.27"}


async def apply(home: Home) -> None:
    await home.quorate.facts("infra_apply", document=DOCUMENT)


async def scale(done: Done) -> None:
    (wanted,) = done.given["scaling_plan"]["scale_up"]
    await done.call("infra_scale", name=wanted["service_name"], replicas=wanted["target_replicas"])


def copies_run(done: Done) -> None:
    assert sorted(done.home.running("one")) == ["cache", "cache-2", "cache-3", "web"]


async def update(done: Done) -> None:
    changes = {"workloads": {"web": {"image": "nginx:1.28"}}}
    await done.call("device_update", device=done.given["device_id"], changes=changes, backup=False)


def image_is_newer(done: Done) -> None:
    assert done.home.running("one") == {"web": "nginx:1.28"}


async def device_is_retired(done: Done) -> None:
    assert (done.home.running("one"), done.home.running("two")) == ({}, {"web": "nginx:1.27"})
    assert list(await done.home.registered()) == ["two"]
    assert {one.id: one.state for one in await done.home.devices()} == {1: "retired", 2: "up"}


def archives(home: Home) -> list[Path]:
    return list((home.folder / "work" / "backups").glob("*"))


def archive_is_there(done: Done) -> None:
    (archive,) = archives(done.home)
    assert archive.name.startswith("before-")
    assert archive.stat().st_mode & 0o077 == 0
    assert archive.stem in json.dumps(done.facts)


async def back_up_and_change(home: Home) -> None:
    await home.quorate.facts("infra_backup", devices=["one"], scope=["workloads"], name="before")
    await home.quorate.facts("workload_remove", host="one", name="web")
    assert home.running("one") == {}


def backup_id(home: Home) -> str:
    (archive,) = archives(home)
    return archive.stem


def container_is_back(done: Done) -> None:
    assert done.home.running("one") == {"web": "nginx:1.27"}


INFRASTRUCTURE = [
    row(
        "deploy_infrastructure",
        {"deployment_plan": {"services": [CACHE]}, "validate_only": False},
        native("infra_apply", document=DOCUMENT),
        plan_is_done,
        without={**NO_PLAN, **DRY},
        home=homes.docked,
    ),
    row(
        "update_device_config",
        {
            "device_id": 1, "config_changes": {"services": {"web": {"type": "docker", "image": "nginx:1.28"}}},
            "backup_before_change": False, "validate_only": False,
        },
        update,
        image_is_newer,
        uses=("device_id", "config_changes", "backup_before_change"),
        without=DRY,
        home=homes.docked,
    ),
    row(
        "decommission_device",
        {"device_id": 1, "migration_plan": {"target_devices": [2]}, "force_removal": False, "validate_only": False},
        native(
            "device_decommission",
            {"device": "device_id", "move_to": Turned("migration_plan", lambda _: "two"), "force": "force_removal"},
            data=True,
        ),
        device_is_retired,
        without=DRY,
        home=homes.docked,
    ),
    row(
        "scale_services",
        {"scaling_plan": {"scale_up": [{"device_id": 1, "service_name": "cache", "target_replicas": 3}]},
         "validate_only": False},
        scale,
        copies_run,
        uses=("scaling_plan",),
        without=DRY,
        prepare=apply,
        home=homes.docked,
    ),
    row(
        "validate_infrastructure_changes",
        {"change_plan": {"services": [CACHE]}, "validation_level": "simulation"},
        native("infra_validate", {"level": "validation_level"}, document=DOCUMENT),
        plan_holds,
        without={"change_plan": NO_PLAN["deployment_plan"]},
        home=homes.docked,
    ),
    row(
        "create_infrastructure_backup",
        {"backup_scope": "device_specific", "device_ids": [1], "include_data": False, "backup_name": "before"},
        native(
            "infra_backup",
            {"devices": Turned("device_ids", lambda _: ["one"]), "name": "backup_name", "data": "include_data"},
        ),
        archive_is_there,
        without={"backup_scope": "the devices say it"},
        home=homes.docked,
    ),
    row(
        "rollback_infrastructure_changes",
        {"backup_id": backup_id, "rollback_scope": "device_specific", "device_ids": [1], "validate_only": False},
        native("infra_rollback", {"backup": "backup_id", "devices": Turned("device_ids", lambda _: ["one"])}),
        container_is_back,
        without={"rollback_scope": "the devices say it", **DRY},
        prepare=back_up_and_change,
        home=homes.docked,
    ),
]  # fmt: skip

ROWS = [*WORKLOADS, *INFRASTRUCTURE]
