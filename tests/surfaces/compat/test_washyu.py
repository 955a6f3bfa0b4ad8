"""washyu's 49 tools."""

import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from quorate.config import Access, Approval
from quorate.homelab.host import Host, Hosts
from tests.rigs import compat_session
from tests.rigs.compat_session import Done, Row, documented, refused, surface
from tests.rigs.homelab import house
from tests.rigs.mcp_session import second_server, text_of
from tests.rigs.several_clusters import several_clusters
from tests.rigs.ssh_server import HOST, serving
from tests.surfaces.compat.rows import checks, homelabs, washyu_containers
from tests.surfaces.compat.rows import washyu as coverage
from tests.surfaces.compat.rows.homelabs import PASSWORD

pytestmark = pytest.mark.anyio

READS = {
    "ssh_discover", "verify_mcp_admin", "discover_and_map", "bulk_discover_and_map", "get_network_sitemap",
    "analyze_network_topology", "suggest_deployments", "get_device_changes", "get_vm_status", "list_vms", "get_vm_logs",
    "list_registered_servers", "list_available_services", "get_service_info", "check_service_requirements",
    "get_service_status", "plan_terraform_service", "refresh_terraform_service", "check_ansible_service",
    "search_proxmox_scripts", "get_proxmox_script_info", "list_proxmox_resources", "get_proxmox_node_status",
    "get_proxmox_vm_status", "validate_infrastructure_changes",
}  # fmt: skip


# -- looks at what the reads of the cluster tell -----------------------------------------------------------------------


def resources_are_listed(kind: str, expected) -> checks.Check:
    def look(done: Done) -> None:
        assert {row["id"].rpartition("/")[2] for row in done.facts["resources"]} == set(map(str, expected(done.world)))
        assert {row["type"] for row in done.facts["resources"]} == {kind}

    return look


def of_kind(kind: str):
    return lambda world: {vmid for vmid, guest in world.guests.items() if guest.kind == kind}


def node_is_told(done: Done) -> None:
    assert done.world.nodes["pve1"].kernel in done.facts["data"]["kversion"]


def guest_is_told(done: Done) -> None:
    guest = done.guest()
    data = done.facts["data"]
    assert (data["vmid"], data["name"], data["status"]) == (guest.vmid, guest.name, guest.status)


OWN = [
    Row("list_proxmox_resources", {"resource_type": "vm"}, resources_are_listed("qemu", of_kind("qemu"))),
    Row("list_proxmox_resources", {"resource_type": "lxc"}, resources_are_listed("lxc", of_kind("lxc"))),
    Row("list_proxmox_resources", {"resource_type": "node"}, resources_are_listed("node", lambda world: world.nodes)),
    Row(
        "list_proxmox_resources",
        {"resource_type": "pool", "host": "demo"},
        resources_are_listed("pool", lambda world: world.access.pools),
    ),
    Row("get_proxmox_node_status", {"node": "pve1"}, node_is_told),
    Row("get_proxmox_vm_status", {"node": "pve3", "vmid": 204, "vm_type": "lxc"}, guest_is_told),
    Row("manage_proxmox_vm", {"node": "pve1", "vmid": 108, "action": "start"}, checks.is_running),
    Row("manage_proxmox_vm", {"node": "pve2", "vmid": 104, "action": "stop"}, checks.is_stopped),
    Row("manage_proxmox_vm", {"node": "pve2", "vmid": 104, "action": "suspend"}, checks.is_paused),
]
ROWS = [*OWN, *(row for row in coverage.ROWS if row.tool not in {own.tool for own in OWN})]


KEEPS_A_DEVICE = {"discover_and_map", "bulk_discover_and_map"}


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    """Start each homelab once for all calls that change nothing in it."""
    async with AsyncExitStack() as stack:
        started = {}

        async def start(homelab):
            if homelab not in started:
                started[homelab] = await stack.enter_async_context(homelab(tmp_path_factory.mktemp("shared")))
            return started[homelab]

        yield start


@pytest.fixture
async def untouched(shared):
    """The home with two engines, for calls that are refused."""
    return await shared(homelabs.with_docker)


async def attempt(quorate, row: Row, homelab=None) -> None:
    done = await compat_session.attempt(quorate, row, homelab)
    assert done.facts["status"] == "success"


async def test_the_reads_are_marked_as_such(tmp_path):
    async with surface(tmp_path, "washyu") as quorate:
        tools = (await quorate.client.list_tools()).tools
    assert {tool.name for tool in tools if tool.annotations and tool.annotations.read_only_hint} == READS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.tool)
async def test_a_tool_does_what_it_promises(tmp_path, shared, row):
    if row.homelab is None:
        async with surface(tmp_path, "washyu") as quorate:
            await attempt(quorate, row)
    elif row.tool in READS - KEEPS_A_DEVICE and row.prepare is None:
        homelab = await shared(row.homelab)
        await attempt(homelab.quorate, row, homelab)
    else:
        async with row.homelab(tmp_path) as homelab:
            await attempt(homelab.quorate, row, homelab)


# -- gates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "arguments", "needed"),
    [
        ("ssh_execute_command", {"hostname": "one", "username": "tester", "command": "touch mark"}, "operate"),
        ("setup_mcp_admin", {"hostname": "one", "username": "tester", "password": PASSWORD}, "operate"),
        ("start_interactive_shell", {"hostname": "one"}, "operate"),
        ("register_server", {"hostname": "three.lan"}, "operate"),
        ("remove_server", {"hostname": "one"}, "admin"),
        ("deploy_vm", {"device_id": 1, "platform": "docker", "vm_name": "x"}, "operate"),
        ("remove_vm", {"device_id": 1, "platform": "docker", "vm_name": "web"}, "admin"),
        ("deploy_infrastructure", {"deployment_plan": {"services": []}}, "admin"),
        ("decommission_device", {"device_id": 1, "force_removal": True}, "admin"),
        ("install_service", {"service_name": "pihole", "hostname": "one"}, "operate"),
        ("destroy_terraform_service", {"service_name": "registry", "hostname": "one"}, "admin"),
        ("manage_proxmox_vm", {"node": "pve2", "vmid": 104, "action": "stop"}, "admin"),
        ("manage_proxmox_vm", {"node": "pve2", "vmid": 104, "action": "reset"}, "admin"),
        ("create_proxmox_vm", {"node": "pve1", "vmid": 321, "name": "x"}, "operate"),
    ],
)
async def test_at_access_read_a_change_is_refused_and_says_what_the_operator_has_to_set(
    tmp_path, untouched, tool, arguments, needed
):
    before = await untouched.registered()
    async with second_server(
        untouched.quorate, tmp_path / "second.jsonl", access=Access.READ, surfaces=("washyu",), toolsets=None
    ) as quorate:
        answer = await quorate.call(tool, **arguments)
    assert answer.is_error
    told = answer.structured_content
    assert told["status"] == "error"
    assert f"--access {needed}" in told["message"]
    assert await untouched.registered() == before
    assert untouched.running("one") == {"web": "nginx:1.27"}


async def test_destroying_waits_for_an_operator_or_takes_the_token_of_its_plan(tmp_path):
    async with surface(tmp_path, "washyu", approval=Approval.ASK) as quorate:
        text = await refused(quorate, "delete_proxmox_vm", node="pve3", vmid=205, vm_type="lxc")
        assert "waits for an operator's approval" in text
        assert 205 in quorate.sim.world.guests
    async with surface(tmp_path, "washyu", approval=Approval.TOKEN) as quorate:
        which = {"node": "pve3", "vmid": 205, "vm_type": "lxc"}
        await refused(quorate, "delete_proxmox_vm", **which)
        plan = await quorate.facts("delete_proxmox_vm", **which, dry_run=True)
        assert (plan["status"], 205 in quorate.sim.world.guests) == ("dry_run", True)
        await quorate.facts("delete_proxmox_vm", **which, plan_token=plan["plan_token"])
        assert 205 not in quorate.sim.world.guests


async def test_a_host_key_that_nobody_has_trusted_ends_the_call(tmp_path):
    async with homelabs.machines(tmp_path) as homelab:
        async with serving(tmp_path / "stranger", password=PASSWORD) as stranger:
            login = {"hostname": HOST, "username": "tester", "password": PASSWORD, "port": stranger.port}
            text = await homelab.quorate.refusal("ssh_execute_command", **login, command="true")
        assert "quorate trust" in text
        assert stranger.commands == []


# -- logins ------------------------------------------------------------------------------------------------------------


async def test_after_its_set_up_the_account_needs_no_password_and_no_key(tmp_path):
    async with homelabs.accounts(tmp_path) as homelab:
        box, quorate = homelab.box, homelab.quorate
        assert box is not None
        await quorate.facts("host_remove", host="box")
        where = {"hostname": HOST, "port": box.port}
        login = {**where, "username": "mcp_admin"}
        assert "did not let mcp_admin in" in await quorate.refusal("ssh_execute_command", **login, command="id -un")
        await quorate.facts("setup_mcp_admin", **where, username="op", password=PASSWORD)
        ran = await quorate.facts("ssh_execute_command", **login, command="id -un")
        assert (ran["exit_code"], ran["output"]) == (0, "mcp_admin\n")
        ran = await quorate.facts("ssh_execute_command", **login, command="id -un", sudo=True)
        assert ran["output"] == "root\n"
        kept = await quorate.facts("register_server", **where)
        assert kept["logged_in_as"] == "mcp_admin"
        (server,) = (await quorate.facts("list_registered_servers"))["servers"]
        assert (server["username"], server["verification"]) == ("mcp_admin", "ok")
        device = await quorate.facts("discover_and_map", hostname=HOST, username="mcp_admin")
        assert (await quorate.facts("list_vms", device_id=device["device_id"]))["status"] == "success"


async def test_a_registered_server_is_logged_in_to_as_it_is_registered(tmp_path):
    async with homelabs.with_compose(tmp_path) as homelab:
        told = await homelab.quorate.facts("check_service_requirements", service_name="page", hostname="box")
        assert told["result"]["fits"] == "yes"
        elsewhere = {"hostname": HOST, "port": homelab.port("box")}
        await homelab.quorate.facts("remove_server", hostname="box")
        text = await homelab.quorate.refusal("check_service_requirements", service_name="page", **elsewhere)
        assert "did not let mcp_admin in" in text


async def test_the_password_of_a_call_is_good_for_that_call_alone(tmp_path):
    async with homelabs.machines(tmp_path) as homelab:
        where = {"hostname": HOST, "username": "tester", "port": homelab.port("pi")}
        assert (await homelab.quorate.facts("discover_and_map", **where, password=PASSWORD))["device_id"] == 1
        assert "did not let tester in" in await homelab.quorate.refusal("discover_and_map", **where)
        assert PASSWORD not in (homelab.folder / "state.sqlite").read_bytes().decode("latin-1")


async def test_a_device_that_lets_no_account_in_says_how_it_could(tmp_path):
    service = {"name": "cache", "type": "docker", "target_device_id": 1, "config": {"image": "redis:7"}}
    async with homelabs.accounts(tmp_path) as homelab:
        assert homelab.box is not None
        await homelab.quorate.facts("host_remove", host="box")
        login = {"username": "root", "key_path": str(homelab.box.key_file), "port": homelab.box.port}
        await homelab.quorate.facts("discover_and_map", hostname=HOST, **login)
        calls: dict[str, dict[str, Any]] = {
            "deploy_infrastructure": {"deployment_plan": {"services": [service]}},
            "deploy_vm": {"device_id": 1, "platform": "docker", "vm_name": "cache"},
        }
        for tool, arguments in calls.items():
            text = await homelab.quorate.refusal(tool, **arguments)
            assert "did not let mcp_admin in" in text
            assert "setup_mcp_admin" in text
            assert "register_server" in text


async def test_servers_are_known_by_number_as_well_as_by_name(tmp_path):
    async with homelabs.registered(tmp_path) as homelab:
        quorate = homelab.quorate
        (server,) = (await quorate.facts("list_registered_servers"))["servers"]
        await quorate.facts("update_server_credentials", credential_id=server["id"], is_active=False)
        assert (await quorate.facts("list_registered_servers"))["servers"] == []
        (again,) = (await quorate.facts("list_registered_servers", active_only=False))["servers"]
        assert (again["id"], again["is_active"]) == (server["id"], False)
        assert "There is no registered server 7" in await quorate.refusal("remove_server", credential_id=7)
        assert "Give credential_id or hostname" in await quorate.refusal("remove_server")
        await quorate.facts("remove_server", credential_id=server["id"], hostname="nas")
        assert await homelab.registered() == {}


async def test_discovery_lists_hosts_that_do_not_answer_with_the_others(tmp_path):
    async with homelabs.machines(tmp_path) as homelab:
        pi = {"hostname": HOST, "username": "tester", "password": PASSWORD, "port": homelab.port("pi")}
        closed = {**pi, "port": 1}
        told = await homelab.quorate.facts("bulk_discover_and_map", targets=[pi, closed])
        assert (told["successful"], told["failed"]) == (1, 1)
        assert "refuses the connection" in told["results"][1]["error"]
        assert "no hostname" in await homelab.quorate.refusal("bulk_discover_and_map", targets=[{"username": "x"}])
        assert "pasword" in await homelab.quorate.refusal("bulk_discover_and_map", targets=[{**pi, "pasword": "x"}])


# -- the cluster that is meant -----------------------------------------------------------------------------------------


async def test_a_proxmox_host_that_is_not_in_the_settings_is_not_taken_for_another(tmp_path):
    async with surface(tmp_path, "washyu") as quorate:
        text = await refused(quorate, "delete_proxmox_vm", node="pve3", vmid=205, vm_type="lxc", host="pve9.lan")
        assert "No Proxmox host 'pve9.lan' is configured" in text
        assert 205 in quorate.sim.world.guests
        assert "No Proxmox host '['" in await refused(quorate, "get_proxmox_node_status", node="pve1", host="[")
        for host in (HOST, f"https://{HOST}:8006", "Demo"):
            assert (await quorate.facts("get_proxmox_node_status", node="pve1", host=host))["node"] == "pve1"


async def test_changes_of_guests_are_answered_with_the_keys_of_the_documentation(tmp_path):
    async with surface(tmp_path, "washyu") as quorate:
        clone = {"node": "pve1", "vmid": 108, "new_vmid": 220, "name": "copy"}
        answer = await quorate.facts("clone_proxmox_vm", **clone)
        assert {"status": "success", "node": "pve1", "source_vmid": 108, "new_vmid": 220}.items() <= answer.items()
        assert answer["message"]
        assert answer["data"].startswith("UPID:pve1:")
        started = await quorate.facts("manage_proxmox_vm", node="pve1", vmid=220, action="start")
        assert started["data"].startswith("UPID:pve1:")
        made = await quorate.facts("create_proxmox_vm", node="pve1", vmid=221, name="new", disk_size=1)
        assert (made["name"], made["data"].split(":")[5]) == ("new", "qmcreate")
        assert (await quorate.facts("get_proxmox_vm_status", node="pve1", vmid=221))["type"] == "qemu"


async def test_a_container_needs_vm_type_lxc(tmp_path):
    async with surface(tmp_path, "washyu") as quorate:
        text = await refused(quorate, "manage_proxmox_vm", node="pve3", vmid=204, action="stop")
        assert "is a container, not a VM. If it is the right guest, call again with vm_type=lxc" in text
        assert quorate.sim.world.guests[204].running
        await quorate.facts("manage_proxmox_vm", node="pve3", vmid=204, action="stop", vm_type="lxc")
        assert not quorate.sim.world.guests[204].running


async def test_with_several_clusters_the_host_says_which_is_meant(tmp_path):
    more = {"surfaces": ("washyu",), "gate_chosen": True, "toolsets": None}
    async with several_clusters(tmp_path, "lab", "prod", more=more) as quorate:
        assert {row["node"] for row in await nodes(quorate)} == {"lab1", "lab2"}
        assert {row["node"] for row in await nodes(quorate, host="prod")} == {"pve1", "pve2", "pve3"}
        assert (await quorate.facts("list_registered_servers"))["servers"] == []


async def nodes(quorate, **more):
    return (await quorate.facts("list_proxmox_resources", resource_type="node", **more))["resources"]


# -- infrastructure ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_validate_only_shows_the_steps_and_changes_nothing(tmp_path):
    async with homelabs.with_docker(tmp_path) as homelab:
        quorate = homelab.quorate
        await washyu_containers.apply(homelab)
        before = (homelab.running("one"), homelab.running("two"), await homelab.registered())
        saved = await quorate.facts("create_infrastructure_backup")
        newer = {"services": {"web": {"type": "docker", "image": "nginx:1.28"}}}
        move = {"migration_plan": {"target_devices": [2]}, "force_removal": True}
        scaled = {"scale_up": [{"service_name": "cache", "target_replicas": 2}]}
        for tool, arguments, step in (
            ("update_device_config", {"device_id": 1, "config_changes": newer}, "Replace docker web"),
            ("decommission_device", {"device_id": 1, **move}, "Move docker web"),
            ("scale_services", {"scaling_plan": scaled}, "Create workload cache-2"),
            ("rollback_infrastructure_changes", {"backup_id": saved["backup_id"]}, "Everything already matches"),
        ):
            told = await quorate.facts(tool, **arguments, validate_only=True)
            assert (told["status"], told["validate_only"]) == ("success", True)
            assert step in json.dumps(told), tool
        assert (homelab.running("one"), homelab.running("two"), await homelab.registered()) == before


@pytest.mark.thorough
async def test_an_update_can_be_taken_back_by_the_backup_that_was_made_before_it(tmp_path):
    async with homelabs.with_docker(tmp_path) as homelab:
        quorate = homelab.quorate
        newer = {"services": {"web": {"type": "docker", "config": {"image": "nginx:1.28", "memory": "64M"}}}}
        await quorate.facts("update_device_config", device_id=1, config_changes=newer)
        assert homelab.running("one") == {"web": "nginx:1.28"}
        (archive,) = washyu_containers.archives(homelab)
        done = await quorate.facts("rollback_infrastructure_changes", backup_id=archive.stem)
        assert homelab.running("one") == {"web": "nginx:1.27"}
        assert done["status"] == "success"


@pytest.mark.thorough
async def test_copies_are_not_made_on_a_device_where_the_service_is_not(tmp_path):
    async with homelabs.with_docker(tmp_path) as homelab:
        await washyu_containers.apply(homelab)
        wrong = {"scale_up": [{"device_id": 2, "service_name": "cache", "target_replicas": 2}]}
        assert "cache is not on device 2. It is on one" in await homelab.quorate.refusal(
            "scale_services", scaling_plan=wrong
        )
        assert sorted(homelab.running("one")) == ["cache", "web"]


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_an_impossible_request_is_refused_before_anything_changes(tmp_path):
    cache = {"name": "cache", "type": "docker", "target_device_id": 1, "config": {"image": "redis:7"}}
    async with homelabs.with_docker(tmp_path) as homelab:
        quorate = homelab.quorate
        on = {"device_id": 1, "platform": "docker", "vm_name": "x"}
        for own in ({"type": "virtual-machine"}, {"profiles": ["wide"]}, {"config": {"security.privileged": "true"}}):
            assert f"{next(iter(own))} cannot be set" in await quorate.refusal("deploy_vm", **on, vm_config=own)
        assert "privileged cannot be set" in await quorate.refusal("deploy_vm", **on, vm_config={"privileged": True})
        assert "There is no device 9" in await quorate.refusal("list_vms", device_id=9)
        assert "Choose another name" in await quorate.refusal("deploy_vm", **{**on, "vm_name": "web"})
        vlan = {"services": [cache], "network_changes": [{"action": "create_vlan"}]}
        assert "network_changes" in await quorate.refusal("deploy_infrastructure", deployment_plan=vlan)
        twice = {"services": [cache, cache]}
        assert "Two services are called cache" in await quorate.refusal("deploy_infrastructure", deployment_plan=twice)
        assert "nothing to scale" in await quorate.refusal("scale_services", scaling_plan={})
        unknown = {"scale_up": [{"service_name": "nowhere", "target_replicas": 2}]}
        assert "nowhere" in await quorate.refusal("scale_services", scaling_plan=unknown)
        assert homelab.running("one") == {"web": "nginx:1.27"}


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("deploy_infrastructure", {"deployment_plan": {"services": [1]}}),
        ("deploy_infrastructure", {"deployment_plan": {"services": "all"}}),
        ("deploy_infrastructure", {"deployment_plan": {"services": [{**washyu_containers.CACHE, "config": [1]}]}}),
        ("deploy_infrastructure", {"deployment_plan": {"services": [{**washyu_containers.CACHE, "type": "vm"}]}}),
        ("deploy_infrastructure", {"deployment_plan": {"devices": []}}),
        ("update_device_config", {"config_changes": {"services": [1]}}),
        ("update_device_config", {"config_changes": {"services": {"web": {"config": 1}}}}),
        ("update_device_config", {"config_changes": {"services": {"web": 7}, "workloads": [2]}}),
        ("update_device_config", {"config_changes": {"weather": "fair"}}),
        ("decommission_device", {"migration_plan": {"target_devices": 2}}),
        ("decommission_device", {"migration_plan": {"target_devices": [{}, 1]}}),
        ("decommission_device", {"migration_plan": {"service_mapping": {"web": "one"}}}),
        ("scale_services", {"scaling_plan": {"scale_up": 3}}),
        ("scale_services", {"scaling_plan": {"scale_up": [{"service_name": "x", "target_replicas": "3"}]}}),
        ("deploy_vm", {"platform": "docker", "vm_name": "x", "vm_config": {"ports": 80}}),
        ("deploy_vm", {"platform": "docker", "vm_name": "x", "vm_config": {"command": "echo 'a"}}),
    ],
)
async def test_a_malformed_object_is_refused_with_a_message(untouched, tool, arguments):
    which = {"device_id": 1} if "device_id" in documented("washyu")[tool] else {}
    answer = await untouched.quorate.call(tool, **which, **arguments)
    assert answer.is_error
    assert answer.structured_content["status"] == "error"
    assert answer.structured_content["message"]
    assert untouched.running("one") == {"web": "nginx:1.27"}


@pytest.mark.thorough
async def test_a_plan_with_a_port_conflict_is_invalid(tmp_path):
    both = [
        {"name": name, "type": "docker", "target_device_id": 1, "config": {"image": "redis:7", "ports": ["80:80"]}}
        for name in ("a", "b")
    ]
    async with homelabs.with_docker(tmp_path) as homelab:
        told = await homelab.quorate.facts("validate_infrastructure_changes", change_plan={"services": both})
        assert (told["status"], told["valid"]) == ("error", False)
        assert "port 80/tcp" in json.dumps(told["errors"])


async def test_a_label_a_list_or_all_does_not_make_a_tool_act_on_several_hosts(tmp_path):
    hosts: dict[str, dict[str, Any]] = {"nas": {}, "pi": {}}
    async with house(tmp_path, hosts, register=False, more={"surfaces": ("washyu",)}) as built:
        for name, host in built.hosts.items():
            kept = Host(name, HOST, host.port, "tester", str(host.key_file), labels=("store",))
            await Hosts(built.quorate.app.store).add(kept)
        for name in ("all", "store", "nas,pi"):
            answer = await built.quorate.call("verify_mcp_admin", hostname=name)
            assert "verify_mcp_admin takes one host" in text_of(answer)
