"""Names of arguments: synonyms are understood, slips get a suggestion, and a refusal lists what is valid."""

from pathlib import Path
from typing import Any

import pytest

from quorate.config import Access
from tests.rigs.argument_refusals import refusal_of
from tests.rigs.mcp_session import rig, text_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("guest_get", {"vmid": 102}, "docker01"),
        ("guest_get", {"id": "102"}, "docker01"),
        ("guest_get", {"name": "docker01"}, "docker01"),
        ("guest_migrate", {"vmid": "grafana", "target": "pve2", "dry_run": True}, "target=pve2"),
        ("guest_configure", {"guest": "test-vm", "ram": "3G", "cpus": 3, "dry_run": True}, "memory=3072"),
        ("guest_configure", {"guest": "test-vm", "hostname": "other", "dry_run": True}, "name=other"),
        ("container_create", {"template": "debian-13", "hostname": "web", "dry_run": True}, "hostname=web"),
        ("container_create", {"ostemplate": "debian-13", "name": "web", "dry_run": True}, "hostname=web"),
        ("guest_clone", {"guest": "docker01", "newid": 901, "name": "twin", "dry_run": True}, "newid=901"),
        ("snapshot_create", {"guest": "docker01", "name": "before", "dry_run": True}, "snapname=before"),
        ("guest_clone", {"source": 9000, "name": "web", "dry_run": True}, "/qemu/9000/clone"),
        ("guest_list", {"tags": "docker"}, "docker02"),
        ("guest_list", {"type": "lxc", "status": "Stopped"}, "old-wiki"),
        ("guest_list", {"type": "QEMU"}, "router"),
        ("api_call", {"method": "get", "path": "/version"}, "release"),
        ("firewall_get", {"guest": "docker01"}, "docker01"),
        ("guest_list", {"sort": "memory", "limit": 1}, "of 20"),
        ("metrics_top", {"by": "mem"}, "these_use"),
        ("access_list", {"kind": "user"}, "alice@pve"),
        ("disk_change", {"guest": 102, "action": "grow", "size": "+8G", "dry_run": True}, "/qemu/102/resize"),
        (
            "disk_change",
            {"guest": 109, "action": "move", "disk": "scsi0", "target_storage": "nas", "dry_run": True},
            "storage=nas",
        ),
        ("pool_set", {"pool": "web", "guests": [109], "dry_run": True}, "Add 109 to pool web"),
        (
            "acl_set",
            {"action": "grant", "path": "/", "user": "carol@pve", "role": "PVEAuditor", "dry_run": True},
            "Grant PVEAuditor on / to carol@pve",
        ),
        (
            "firewall_rule_set",
            {"guest": 100, "type": "in", "action": "accept", "protocol": "tcp", "port": 22, "dry_run": True},
            "action=ACCEPT proto=tcp dport=22",
        ),
        ("firewall_options_set", {"guest": 100, "enabled": True, "dry_run": True}, "enable=1"),
        (
            "backup_job_set",
            {"schedule": "02:00", "all": True, "storage": "nas", "retention": "last=3", "dry_run": True},
            "keep-last=3",
        ),
        ("firewall_rule_set", {"vmid": 100, "type": "in", "action": "DROP", "dry_run": True}, "/qemu/100/firewall"),
    ],
)
async def test_pves_names_and_common_synonyms_are_accepted(tmp_path, tool, arguments, named):
    async with rig(tmp_path) as quorate:
        answer = await quorate.call(tool, **arguments)
    assert not answer.is_error, answer.content
    assert named in text_of(answer)


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("guest_clone", {"guest": 9000, "tags": "app, prod"}, "tags=app;prod"),
        ("guest_clone", {"guest": 9000, "tags": '["app", "prod"]'}, "tags=app;prod"),
        ("guest_configure", {"guest": 108, "add_tags": "web"}, "tags=lab;web"),
        ("vm_create", {"name": "a", "boot": "order=net0;scsi0"}, "boot=order=net0;scsi0"),
        ("vm_create", {"name": "a", "networks": "vmbr0,tag=20"}, "net0=virtio,tag=20,bridge=vmbr0"),
        (
            "container_create",
            {"template": "debian-13", "name": "a", "mounts": "tank:8G,mp=/data"},
            "mp0=tank:8,mp=/data",
        ),
    ],
)
async def test_one_text_is_accepted_where_a_list_is_expected(tmp_path, tool, arguments, named):
    async with rig(tmp_path) as quorate:
        answer = await quorate.call(tool, **arguments, dry_run=True)
    assert not answer.is_error, answer.content
    assert named in text_of(answer)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("guest_bulk", {"action": "start", "guests": ""}),  # not the same as all of them
        ("vm_create", {"name": "a", "tags": '["web", ["x"]]'}),
        ("workload_deploy", {"host": "h", "name": "a", "image": "nginx", "command": "nginx -t"}),
    ],
)
def test_a_text_that_is_not_clearly_a_list_is_refused(tool, arguments):
    assert "It must be a list" in refusal_of(tool, {**arguments, "dry_run": True})


async def test_an_option_of_pve_is_pointed_to_the_argument_that_takes_it(tmp_path):
    async with rig(tmp_path) as quorate:
        refusal = await quorate.refusal("vm_create", name="a", protection=True)
        assert 'If it is an option of PVE: options={"protection": "…"}. It takes name, ' in refusal
        await quorate.facts("vm_create", name="a", options={"protection": True}, dry_run=True)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("guest_clone", {"id": 100, "name": "twin"}),  # the source, or the new guest?
        ("guest_configure", {"guest": 100, "vmid": 101, "cores": 2}),  # two guests
        ("firewall_get", {"scope": "node", "guest": 100}),
    ],
)
def test_a_synonym_that_is_unclear_is_refused_with_the_valid_arguments(tool, arguments: dict[str, Any]):
    refusal = refusal_of(tool, arguments)
    assert "has no argument" in refusal
    assert "It takes" in refusal


@pytest.mark.parametrize(
    ("tool", "arguments", "suggested"),
    [
        ("guest_list", {"stauts": "running"}, "Did you mean 'status'?"),
        ("guest_configure", {"guest": 100, "memroy": "2G"}, "Did you mean 'memory'?"),
        ("guest_get", {"geust": 100}, "Did you mean 'guest'?"),
        ("guest_configure", {"guest": 100, "ballon": 0}, "Did you mean 'balloon'?"),
    ],
)
def test_a_slip_gets_a_suggestion_and_the_valid_arguments(tool, arguments, suggested):
    assert f"{suggested} It takes " in refusal_of(tool, arguments)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("cluster_status", {"ram": 1}),
        ("guest_migrate", {"guest": 100, "node": "pve2", "targeted": "pve2"}),
        ("guest_screenshot", {"guest": 100, "digest": "abc"}),
        ("snapshot_rollback", {"guest": 100, "snapshot": "before", "force": True}),
    ],
)
def test_what_is_not_a_slip_gets_no_suggestion_but_the_valid_arguments(tool, arguments):
    refusal = refusal_of(tool, arguments)
    assert "Did you mean" not in refusal
    assert "It takes " in refusal


@pytest.mark.parametrize(
    ("tool", "arguments", "refused"),
    [
        ("guest_list", {"limit": "abc"}, "cannot take limit='abc'. It must be an integer, at least 1 and at most 200."),
        ("guest_list", {"type": "docker"}, "cannot take type='docker'. Valid values: ct, vm."),
        (
            "storage_cleanup",
            {"what": ["detached", "orphan"]},
            "Invalid enum value 'orphan' at what[1]. Did you mean 'orphans'? Valid values: deleted_guests, ",
        ),
        ("guest_power", {"guest": 107, "action": "start", "dry_run": "maybe"}, "It must be true or false"),
        ("guest_get", {}, "needs the argument 'guest'. It must be an integer or a string: vmid or name."),
        ("vm_create", {"name": "a", "cores": True}, "cannot take cores=true. It must be an integer."),
        (
            "vm_create",
            {"name": "a", "disks": [["32G"]]},
            "cannot take this value of disks. disks[0] is a list, not a string or an object. It must be a list",
        ),
        ("vm_create", {"name": "a", "tags": [None]}, "cannot take tags=[null]. tags[0] is null, not a string."),
        ("guest_power", {"guest": [[1]], "action": "start"}, "guest[0] is a list, not an integer or a string."),
        ("guest_power", {"guest": {}, "action": "start"}, "It must be an integer, a string or a list: vmid or name"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_valid_in_plain_words(tool, arguments, refused):
    assert refused in refusal_of(tool, arguments)


def test_a_wrong_value_inside_a_list_is_located():
    refusal = refusal_of("guest_power", {"guest": [100, {"vmid": 101}], "action": "start"})
    assert "guest[1] is an object, not an integer or a string." in refusal


def test_a_missing_argument_is_named_with_all_others():
    refusal = refusal_of("guest_power", {"guest": 100})
    assert "needs the argument 'action'" in refusal
    assert "It takes guest, action, timeout, dry_run, wait, safely." in refusal


def test_actions_that_destroy_point_to_their_tools():
    assert "Another tool does that: guest_delete." in refusal_of("guest_bulk", {"action": "delete", "tag": "lab"})


@pytest.mark.parametrize("guest", [100, "docker01"])
async def test_the_action_stop_points_to_the_tool_that_cuts_the_power(tmp_path, guest):
    async with rig(tmp_path) as quorate:
        refusal = await quorate.refusal("guest_power", guest=guest, action="stop")
    assert f"Another tool does that: guest_stop guest={guest}." in refusal


async def test_a_tool_that_only_needs_a_higher_level_is_named_with_it(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        refusal = await quorate.refusal("guest_power", guest=100, action="stop")
        assert "guest_stop does that, which needs access level admin." in refusal


async def test_what_is_not_secret_is_shown_in_a_refusal(tmp_path):
    async with rig(tmp_path, toolsets=("all", "homelab")) as quorate:
        assert "node=['pve1', 'pve2']" in await quorate.refusal("node_get", node=["pve1", "pve2"])
        assert "cannot take this value of node." in await quorate.refusal("node_get", node={"name": "pve1"})
        text = await quorate.refusal("container_create", template="debian", password=["hunter22"])
        assert "hunter22" not in text
        assert "password=***" in text


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("list_vms", "Here it is guest_list type=vm"),
        ("guest_lst", "Did you mean 'guest_list'?"),
        ("nic_add", "Did you mean 'nic_set'?"),
        ("firewall_rule_create", "Did you mean 'firewall_rule_set'?"),
        ("show_my_snapshots", "Related tools: snapshot_list"),
        ("node_service", "Related tools: node_service_control"),
        ("service_control", "Related tools: guest_service_control, node_service_control."),
        ("image_delete", "Related tools: volume_delete."),
        ("pool_delete", "Related tools: access_delete."),
        ("xyzzy", "List the tools."),
    ],
)
async def test_a_tool_that_does_not_exist_is_refused_with_a_listed_one(tmp_path, name: str, hint: str) -> None:
    async with rig(tmp_path) as quorate:
        refusal = await quorate.refusal(name)
    assert f"There is no tool '{name}'. {hint}" in refusal
    assert len(refusal) < 200


@pytest.mark.parametrize(
    ("name", "tool", "toolset"),
    [
        ("capacity", "capacity_plan", "reports"),
        ("network", "network_map", "map"),
        ("firewall", "firewall_get", "firewall"),
    ],
)
async def test_a_name_that_only_a_switched_off_tool_has_says_how_to_switch_it_on(
    tmp_path: Path, name: str, tool: str, toolset: str
) -> None:
    async with rig(tmp_path, toolsets=None) as quorate:
        refusal = await quorate.refusal(name)
    assert f"There is no tool '{name}'. {tool} is switched off." in refusal
    assert "add it to `toolsets` in config.toml and restart the client" in refusal
    assert f"--toolsets +{toolset}" in refusal


async def test_a_name_that_a_listed_tool_has_too_names_only_listed_ones(tmp_path: Path) -> None:
    async with rig(tmp_path, toolsets=None) as quorate:
        assert "Related tools: snapshot_create, snapshot_list." in await quorate.refusal("snapshots")


async def test_a_name_in_another_case_is_suggested_alone(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "Did you mean 'docker01'?" in await quorate.refusal("guest_get", guest="DOCKER01")
