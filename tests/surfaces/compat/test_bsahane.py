"""bsahane's 53 tools: listed as documented, each run, its own gate and ours tried."""

import json
from dataclasses import replace
from typing import Any

import pytest

from pve_simulator.guest_os.machine import Machines
from quorate.app import simulated_cluster
from quorate.config import Access, Approval
from tests.rigs.compat_session import Done, Row, attempt, documented, refused, surface
from tests.rigs.mcp_session import second_server, text_of
from tests.surfaces.compat.rows import bsahane, checks, setups

pytestmark = pytest.mark.anyio

SYSTEM = "bsahane"
DOCUMENTED = documented(SYSTEM)


async def same_as(done: Done, path: str, **query: object) -> None:
    """The answer is PVE's own."""
    assert done.facts["result"] == await done.get(path, **query)
    assert done.facts["result"]


def listing(path: str, **query: object):
    return lambda done: same_as(done, path, **query)


def vms_are_listed(done: Done) -> None:
    assert [(row["vmid"], row["type"]) for row in done.facts["result"]] == [(102, "qemu")]


def containers_are_listed(done: Done) -> None:
    facts = {row["vmid"] for row in done.facts["result"]}
    world = done.world.guests.values()
    assert facts == {guest.vmid for guest in world if (guest.kind, guest.node, guest.running) == ("lxc", "pve3", False)}
    assert facts


def is_selected(kind: str):
    async def look(done: Done) -> None:
        guest = done.guest()
        assert done.facts["selector"].items() >= {"vmid": guest.vmid, "type": kind, "name": guest.name}.items()
        config = await done.get(f"/nodes/{guest.node}/{kind}/{guest.vmid}/config")
        assert done.facts["config"] == config

    return look


async def node_is_told(done: Done) -> None:
    assert done.facts["kversion"] == (await done.get("/nodes/pve2/status"))["kversion"]
    assert done.facts["uptime"] > 0


def storages_are_listed(done: Done) -> None:
    storages = {row["storage"]: row for row in done.facts["result"]}
    assert {name: row["type"] for name, row in storages.items()} == {
        storage.id: storage.type for storage in done.world.storages.values()
    }
    for row in storages.values():
        assert row["used"] + row["avail"] == row["total"] > 0


def bridges_are_listed(done: Done) -> None:
    assert {row["iface"] for row in done.facts["result"]} == set(done.world.nodes["pve1"].bridges)


def tasks_are_listed(done: Done) -> None:
    rows = done.facts["result"]
    assert 0 < len(rows) <= 5
    assert {(row["node"], row["user"].split("!")[0]) for row in rows} == {("pve3", "carol@pve")}


async def task_is_told(done: Done) -> None:
    assert done.facts == await done.get(f"/nodes/pve1/tasks/{done.arguments['upid']}/status")
    assert (done.facts["status"], done.facts["exitstatus"]) == ("stopped", "OK")


async def firewall_is_told(done: Done) -> None:
    path = "/nodes/pve1/qemu/102/firewall"
    assert done.facts["rules"] == await done.get(f"{path}/rules")
    assert done.facts["options"] == await done.get(f"{path}/options")


READS = [
    Row("proxmox-list-nodes", {}, listing("/nodes")),
    Row("proxmox-node-status", {"node": "pve2"}, node_is_told),
    Row("proxmox-list-vms", {"node": "pve1", "status": "running", "search": "Docker"}, vms_are_listed),
    Row("proxmox-vm-info", {"vmid": 104, "name": None}, is_selected("qemu")),
    Row("proxmox-list-lxc", {"node": "pve3", "status": "stopped"}, containers_are_listed),
    Row("proxmox-lxc-info", {"vmid": 204, "name": "grafana", "node": "pve3"}, is_selected("lxc")),
    Row("proxmox-list-storage", {}, storages_are_listed),
    Row(
        "proxmox-storage-content",
        {"node": "pve1", "storage": "nas"},
        listing("/nodes/pve1/storage/nas/content"),
    ),
    Row("proxmox-list-bridges", {"node": "pve1"}, bridges_are_listed),
    Row("proxmox-list-tasks", {"node": "pve3", "user": "carol@pve", "limit": 5}, tasks_are_listed),
    Row("proxmox-task-status", {"upid": setups.PAST_TASK}, task_is_told),
    Row("proxmox-wait-task", {"upid": setups.PAST_TASK}, task_is_told),
    Row("proxmox-list-snapshots", {"name": "test-vm"}, listing("/nodes/pve1/qemu/108/snapshot")),
    Row("proxmox-vm-firewall-get", {"vmid": 102}, firewall_is_told),
    Row(
        "proxmox-vm-metrics",
        {"vmid": 102, "timeframe": "day", "cf": "MAX"},
        listing("/nodes/pve1/qemu/102/rrddata", timeframe="day", cf="MAX"),
    ),
    Row(
        "proxmox-node-metrics",
        {"node": "pve1"},
        listing("/nodes/pve1/rrddata", timeframe="hour", cf="AVERAGE"),
    ),
    Row("proxmox-list-pools", {}, listing("/pools")),
    Row("proxmox-list-users", {}, listing("/access/users")),
    Row("proxmox-list-roles", {}, listing("/access/roles")),
]


EXEC = "proxmox-guest-exec"


def command_was_run(done: Done) -> None:
    assert (done.facts["stdout"], done.facts["exit_code"]) == ("$(reboot)\n", 0)


def program_was_run(done: Done) -> None:
    files = done.world.part(Machines).of(done.guest()).files
    assert files.read("/tmp/a b").decode() == "from stdin" == done.facts["stdout"]


def host_is_registered(done: Done) -> None:
    address = done.guest().addresses[0].ip
    assert (done.facts["hostname"], done.facts["ip"]) == ("docker01", address)
    assert done.facts["json"]["docker01"].items() >= {"ansible_host": address, "ansible_user": "root"}.items()
    assert done.facts["ini"].startswith(f"docker01 ansible_host={address} ansible_user=root")
    assert "ansible_ssh_private_key_file=/keys/me" in done.facts["ini"]


INSIDE = [
    Row(EXEC, {"name": "docker01", "vmid": 102, "command": "echo '$(reboot)'"}, command_was_run),
    Row(EXEC, {"vmid": 102, "command": "tee", "args": ["/tmp/a b"], "input_data": "from stdin"}, program_was_run),
    Row("proxmox-register-vm-as-host", {"vmid": 102, "ssh_private_key_path": "/keys/me"}, host_is_registered),
]
WRITES = [row for row in bsahane.ROWS if row.tool not in {row.tool for row in [*READS, *INSIDE]}]


def sure(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """With the caller's yes, and waiting for the end."""
    yes: dict[str, Any] = {name: True for name in ("confirm", "wait") if name in DOCUMENTED[tool]}
    return {**arguments, **yes}


async def test_every_read_shows_what_the_cluster_has(tmp_path):
    async with surface(tmp_path, SYSTEM, access=Access.READ) as quorate:
        for read in READS:
            await attempt(quorate, read)


async def test_commands_run_inside_and_a_vm_becomes_a_host(tmp_path):
    async with surface(tmp_path, SYSTEM, access=Access.OPERATE) as quorate:
        for row in INSIDE:
            await attempt(quorate, row)
        text = await refused(quorate, "proxmox-register-vm-as-host", name="win11")
        assert "107 win11 cannot be a host. It is stopped." in text


@pytest.mark.parametrize("row", WRITES, ids=[row.tool for row in WRITES])
async def test_every_change_has_its_effect_and_its_dry_run_has_none(tmp_path, row):
    arguments = sure(row.tool, dict(row.arguments))
    if "file_path" in arguments:
        image = tmp_path / arguments["file_path"]
        image.write_bytes(b"not much of an image")
        arguments["file_path"] = str(image)
    async with surface(tmp_path, SYSTEM) as quorate:
        done = await attempt(quorate, replace(row, arguments=arguments), dry_run=True)
        assert set(done.facts) & {"upid", "result", "results"}
        if "status" in done.facts:
            assert (done.facts["status"]["status"], done.facts["status"]["exitstatus"]) == ("stopped", "OK")


# -- its own words -----------------------------------------------------------------------------------------------------


async def test_without_wait_a_change_returns_its_task_for_wait_task(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        begun = await quorate.facts("proxmox-start-vm", name="win11")
        assert set(begun) == {"upid"}
        assert not quorate.sim.world.guests[107].running
        ended = await quorate.facts("proxmox-wait-task", upid=begun["upid"])
        assert (ended["status"], ended["exitstatus"]) == ("stopped", "OK")
        assert quorate.sim.world.guests[107].running


async def test_timeout_ends_the_waiting_and_not_the_task(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        begun = await quorate.facts("proxmox-backup-vm", vmid=102, storage="nas", confirm=True, timeout=1)
        assert begun["status"]["status"] == "running"
        ended = await quorate.facts("proxmox-wait-task", upid=begun["upid"], timeout=3600)
        assert ended["exitstatus"] == "OK"


async def test_a_task_is_waited_for_as_long_as_the_caller_says(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        begun = await quorate.facts("proxmox-shutdown-vm", name="router", timeout=120)
        still = await quorate.facts("proxmox-wait-task", upid=begun["upid"], timeout=100)
        assert still["status"] == "running"
        ended = await quorate.facts("proxmox-wait-task", upid=begun["upid"], timeout=100)
        assert (ended["status"], ended["exitstatus"]) == ("stopped", "VM quit/powerdown failed - got timeout")
        text = await quorate.refusal("proxmox-shutdown-vm", name="router", timeout=120, wait=True)
        assert "VM quit/powerdown failed - got timeout" in text


async def test_lists_are_json_arrays_in_the_text(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        answer = await quorate.call("proxmox-list-nodes")
        assert sorted(row["node"] for row in json.loads(text_of(answer))) == ["pve1", "pve2", "pve3"]
        assert answer.structured_content == {"result": json.loads(text_of(answer))}


async def test_a_dry_run_shows_the_plan_needs_no_confirm_and_changes_nothing(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        shown = await quorate.facts("proxmox-delete-vm", name="win11", dry_run=True)
        assert shown["dry_run"] is True
        assert shown["steps"][0]["call"].startswith("DELETE /nodes/pve2/qemu/107")
        assert 107 in quorate.sim.world.guests


async def test_options_network_cards_and_cloud_init_of_one_call_go_where_they_belong(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        params = {"memory": 4096, "tags": "lab;new", "agent": 1, "net0": "virtio,bridge=vmbr1,tag=7", "ciuser": "me"}
        await quorate.facts("proxmox-configure-vm", name="test-vm", params=params, confirm=True)
        config = quorate.sim.world.guests[108].effective_config()
        checks.has(config, memory="4096", tags="lab;new", ciuser="me", net0=checks.holds("bridge=vmbr1", "tag=7"))


async def test_a_guest_of_the_other_type_is_refused(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        text = await refused(quorate, "proxmox-delete-vm", vmid=206, confirm=True)
        assert "206 is a container. proxmox-delete-vm is for VMs only." in text
        assert "There is no guest grafana on node pve1" in await refused(
            quorate, "proxmox-start-lxc", name="grafana", node="pve1"
        )
        both = {"vmid": 102, "name": "docker02"}
        text = await refused(quorate, "proxmox-create-snapshot", **both, snapname="ok1", confirm=True)
        assert "Guest 102 is docker01, not docker02. Give only one of vmid and name" in text
        assert "proxmox-start-vm needs a guest. Give vmid or name" in await refused(quorate, "proxmox-start-vm")


async def test_the_node_distinguishes_two_guests_of_the_same_name(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        guests = quorate.sim.world.guests
        guests[105].config["name"] = guests[104].config["name"]
        guests[105].touch()
        text = await refused(quorate, "proxmox-reboot-vm", name="k3s-server")
        assert "104 on pve2; 105 on pve3" in text
        answer = await quorate.facts("proxmox-reboot-vm", name="k3s-server", node="pve3")
        assert ":qmreboot:105:" in answer["upid"]


async def test_an_argument_that_is_needed_but_optional_in_the_schema_is_named(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        wanting: dict[str, tuple[dict[str, Any], str]] = {
            "proxmox-create-snapshot": ({"vmid": 104}, "snapname"),
            "proxmox-migrate-vm": ({"vmid": 104}, "target_node"),
            "proxmox-resize-vm-disk": ({"vmid": 104}, "grow_gb"),
            "proxmox-configure-lxc": ({"vmid": 206, "params": {}}, "params"),
            "proxmox-create-lxc": ({"hostname": "ct"}, "ostemplate"),
        }
        for tool, (arguments, missing) in wanting.items():
            assert f"{tool} needs the argument '{missing}'" in await refused(quorate, tool, **sure(tool, arguments))
        assert "proxmox-node-status needs a node. Available: pve1, pve2, pve3" in await refused(
            quorate, "proxmox-node-status"
        )


async def test_an_unknown_argument_is_refused_with_the_closest_name(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        text = await refused(quorate, "proxmox-start-vm", vmid=107, wiat=True)
        assert "proxmox-start-vm has no argument 'wiat'. Did you mean 'wait'?" in text


# -- gates -------------------------------------------------------------------------------------------------------------


async def test_without_confirm_only_a_dry_run_is_answered(tmp_path):
    asking = [row for row in WRITES if "confirm" in DOCUMENTED[row.tool]]
    async with surface(tmp_path, SYSTEM) as quorate:
        mark = len(quorate.sim.requests)
        for row in asking:
            for unconfirmed in ({}, {"confirm": False}, {"confirm": None}):
                text = await refused(quorate, row.tool, **{**row.arguments, **unconfirmed})
                assert f"{row.tool} does nothing without confirm=true" in text
            if row.prepare is None and "file_path" not in row.arguments:
                await quorate.facts(row.tool, **{**row.arguments, "dry_run": True})
        assert {method for method, _ in quorate.requests_since(mark)} == {"GET"}


async def test_a_missing_confirm_is_reported_before_the_access_level(tmp_path):
    async with surface(tmp_path, SYSTEM, access=Access.OPERATE) as quorate:
        text = await refused(quorate, "proxmox-delete-vm", name="router")
        assert text.endswith("Ask the person you work for; if they agree, call again with confirm=true.")
        assert "--access" not in text


async def test_at_access_read_every_change_is_refused_and_says_what_the_operator_has_to_set(tmp_path):
    async with surface(tmp_path, SYSTEM, access=Access.READ) as quorate:
        for row in WRITES:
            if "file_path" in row.arguments:
                continue
            text = await refused(quorate, row.tool, **sure(row.tool, dict(row.arguments)))
            assert f"{row.tool} is refused at access level read" in text
            assert "starting Quorate with --access" in text
        text = await refused(quorate, "proxmox-delete-vm", vmid=107, confirm=True)
        assert text.endswith("Only the operator can change that, by starting Quorate with --access admin.")
        text = await refused(quorate, EXEC, vmid=102, command="true")
        assert f"{EXEC} is refused at access level read" in text


async def test_confirm_does_not_replace_an_approval(tmp_path):
    async with surface(tmp_path, SYSTEM, approval=Approval.ASK) as quorate:
        text = await refused(quorate, "proxmox-delete-vm", vmid=107, confirm=True)
        assert "waits for an operator's approval" in text
        assert 107 in quorate.sim.world.guests


async def test_with_plan_tokens_the_dry_run_gives_one_and_the_call_takes_it(tmp_path):
    async with surface(tmp_path, SYSTEM, approval=Approval.TOKEN) as quorate:
        assert "needs the plan token" in await refused(quorate, "proxmox-stop-vm", vmid=104, wait=True)
        token = (await quorate.facts("proxmox-stop-vm", vmid=104, dry_run=True))["plan_token"]
        await quorate.facts("proxmox-stop-vm", vmid=104, wait=True, plan_token=token)
        assert not quorate.sim.world.guests[104].running


async def test_a_rule_that_is_there_is_not_added_a_second_time(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        rules = [dict(bsahane.RULE), {**bsahane.RULE, "dport": "443", "enable": 1}]
        await quorate.facts("proxmox-vm-firewall-set", vmid=102, rules=rules[:1], confirm=True)
        await quorate.facts("proxmox-vm-firewall-set", vmid=102, rules=rules, confirm=True)
        again = await quorate.facts("proxmox-vm-firewall-set", vmid=102, rules=rules, confirm=True)
        assert again["unchanged"] == ["All of it already exists"]
        firewall = await quorate.facts("proxmox-vm-firewall-get", vmid=102)
        assert sorted(rule["dport"] for rule in firewall["rules"]) == ["22", "443"]


async def test_the_documented_examples_work_as_they_are_written(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        image, template = "debian-13.1.0-amd64-netinst.iso", "debian-13-standard_13.1-2_amd64.tar.zst"
        await quorate.facts("proxmox-create-vm", node="pve1", vmid=220, name="web02", iso=image, confirm=True)
        made = await quorate.facts("proxmox-create-lxc", hostname="ct01", ostemplate=template, confirm=True)
        assert quorate.sim.world.guests[made["vmid"]].config["hostname"] == "ct01"
        clone = {"source_vmid": 9000, "new_vmid": 50009, "name": "web01", "storage": "local-lvm"}
        answer = await quorate.facts("proxmox-clone-vm", **clone, confirm=True, wait=True)
        assert answer["status"]["exitstatus"] == "OK"
        address = "ip=192.168.1.50/24,gw=192.168.1.1"
        await quorate.facts("proxmox-cloudinit-set", name="web01", ipconfig0=address, confirm=True)
        checks.has(quorate.sim.world.guests[50009].effective_config(), ipconfig0=address)


async def test_an_address_may_be_followed_by_its_gateway(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        new = {"hostname": "ct01", "ostemplate": "debian-13-standard_13.1-2_amd64.tar.zst", "confirm": True}
        made = await quorate.facts("proxmox-create-lxc", **new, node="pve1", net_ip="192.168.1.50/24,gw=192.168.1.1")
        card = str(quorate.sim.world.guests[made["vmid"]].config["net0"])
        assert {"bridge=vmbr0", "ip=192.168.1.50/24", "gw=192.168.1.1"} <= set(card.split(","))


async def test_network_cards_are_named_by_their_slot(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        assert (await quorate.facts("proxmox-vm-nic-add", vmid=108, bridge="vmbr1", confirm=True))["added"] == "net1"
        assert (await quorate.facts("proxmox-vm-nic-remove", vmid=108, slot=1, confirm=True))["removed"] == "net1"


@pytest.mark.parametrize(("compress", "ending"), [("0", ".vma"), ("1", ".vma.lzo"), ("none", ".vma")])
async def test_a_compression_may_be_written_as_pve_does(tmp_path, compress, ending):
    async with surface(tmp_path, SYSTEM) as quorate:
        await quorate.facts("proxmox-backup-vm", vmid=108, storage="nas", compress=compress, confirm=True)
        stored = [volume.volid for volume in quorate.sim.world.storages["nas"].volumes("pve1")]
        assert [volid for volid in stored if "vzdump-qemu-108-" in volid and volid.endswith(ending)]


async def test_rules_are_in_force_in_their_order_before_those_that_were_there(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        old, ssh, rest = (
            {"type": "in", "action": "ACCEPT", "proto": "tcp", "dport": "80"},
            {"type": "in", "action": "ACCEPT", "proto": "tcp", "dport": "22"},
            {"type": "in", "action": "DROP"},
        )
        await quorate.facts("proxmox-vm-firewall-set", vmid=108, rules=[old], confirm=True)
        shown = await quorate.facts("proxmox-vm-firewall-set", vmid=108, rules=[ssh, rest], dry_run=True)
        assert len(shown["results"]) == 2
        added = await quorate.facts("proxmox-vm-firewall-set", vmid=108, rules=[ssh, rest], confirm=True)
        assert added["rules_added"] == 2
        rules = (await quorate.facts("proxmox-vm-firewall-get", vmid=108))["rules"]
        assert [(rule["action"], rule.get("dport")) for rule in rules] == [
            ("ACCEPT", "22"),
            ("DROP", None),
            ("ACCEPT", "80"),
        ]
        last = {"type": "in", "action": "REJECT", "pos": 3}
        await quorate.facts("proxmox-vm-firewall-set", vmid=108, rules=[last], confirm=True)
        rules = (await quorate.facts("proxmox-vm-firewall-get", vmid=108))["rules"]
        assert [rule["action"] for rule in rules] == ["ACCEPT", "DROP", "ACCEPT", "REJECT"]


async def test_a_pool_is_neither_made_by_adding_to_it_nor_changed_by_creating_it(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        for tool in ("proxmox-pool-add", "proxmox-pool-remove"):
            assert "There is no pool 'typo'" in await refused(quorate, tool, poolid="typo", vmid=205, confirm=True)
        text = await refused(quorate, "proxmox-create-pool", poolid="lab", comment="mine", confirm=True)
        assert "Pool lab already exists. Its comment is 'play here'" in text


@pytest.mark.parametrize(("default", "expected"), [(None, "local-lvm"), ("tank", "tank")])
async def test_new_disks_are_on_the_storage_that_the_other_server_would_choose(tmp_path, default, expected):
    async with surface(tmp_path, SYSTEM) as quorate:
        target = replace(simulated_cluster(quorate.sim), default_storage=default)
        async with second_server(quorate, tmp_path / "second.jsonl", clusters=(target,)) as second:
            create = {"node": "pve1", "vmid": 220, "name": "web", "disk_gb": 1}
            await second.facts("proxmox-create-vm", **create, wait=True, confirm=True)
            for vmid, full in ((221, True), (222, False)):
                clone = {"source_vmid": 9000, "new_vmid": vmid, "name": "copy", "full": full}
                await second.facts("proxmox-clone-vm", **clone, wait=True, confirm=True)
        disks = [str(quorate.sim.world.guests[vmid].config["scsi0"]).partition(":")[0] for vmid in (220, 221, 222)]
        assert disks == [expected, expected, "local-lvm"], "a linked clone stays where its template is"
