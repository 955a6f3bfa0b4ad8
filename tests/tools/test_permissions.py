"""What a user or token may do, what it lacks, and that the suggested commands grant it."""

import shlex

import pytest

from pve_schema.schema import facts
from pve_simulator.access.directory import Token, User
from quorate.config import Access
from quorate.operations.privileges import CALLS, IN_CODE, LEVELS
from quorate.operations.registry import TOOLSETS
from quorate.problems import PermissionMissing
from tests.rigs.mcp_session import rig, second_server

pytestmark = pytest.mark.anyio

DEBIAN = "local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"


def newcomer(quorate, *, privsep=True):
    """A user with a token and no rights at all."""
    secret = "0badc0de-0000-4000-8000-00000000cafe"
    quorate.sim.world.access.users["new@pve"] = User("new@pve", tokens={"t1": Token(secret, privsep=privsep)})
    return "new@pve!t1"


def run_on_a_node(quorate, commands):
    """Do to the simulated cluster what the commands would do, without any of Quorate's code."""
    access = quorate.sim.world.access
    for command in commands:
        match shlex.split(command):
            case ["pveum", "role", "add", role, "--privs", privileges]:
                assert access.role(role) is None, f"{role} already exists"
                access.custom_roles[role] = frozenset(privileges.split(","))
            case ["pveum", "acl", "modify", path, "--roles", role, "--users" | "--tokens", who]:
                assert access.role(role) is not None
                access.grant(path, role, who)
            case ["pveum", "acl", "delete", path, "--roles", role, "--users", who]:
                access.revoke(path, role, "user", who)
            case _:
                raise AssertionError(command)


def rights(access, who, *paths):
    return {path: set(access.privileges(who, path)) for path in paths}


async def test_rights_are_shown_by_path_and_named_as_roles(tmp_path):
    async with rig(tmp_path) as quorate:
        answer = await quorate.facts(
            "permission_audit", who="bob@pve", paths=["/nodes/pve1", "/"], guests=[109, "win11"]
        )
        assert answer["rights"] == [
            {"paths": ["/nodes/pve1", "/", "/vms/107"], "may": "all of role PVEAuditor"},
            {"paths": ["/vms/109"], "may": "nothing"},
        ]
        everywhere = await quorate.facts("permission_audit", who="alice@pve")
        assert any("/vms/104" in row["paths"] for row in everywhere["rights"])
        own = await quorate.facts("permission_audit")
        assert own["who"] == quorate.sim.token_id
        assert "all of role Administrator" in str(own["rights"])


async def test_the_named_privileges_are_checked_on_the_paths(tmp_path):
    async with rig(tmp_path) as quorate:
        answer = await quorate.facts(
            "permission_audit", who="bob@pve", guests=108, privileges=["VM.Audit", "VM.PowerMgmt"]
        )
        assert answer["allowed"] is False
        assert answer["missing"] == [{"path": "/vms/108", "privileges": ["VM.PowerMgmt"]}]
        held = await quorate.facts("permission_audit", who="bob@pve", guests=108, privileges=["VM.Audit"])
        assert held["allowed"] is True


@pytest.mark.parametrize(
    ("tool", "arguments", "path", "privilege"),
    [
        ("guest_power", {"guest": 108, "action": "start"}, "/vms/108", "VM.PowerMgmt"),
        ("guest_get", {"guest": 202}, "/vms/202", "VM.Audit"),
        ("node_get", {"node": "pve2"}, "/nodes/pve2", "Sys.Audit"),
        ("pool_set", {"pool": "lab", "comment": "x"}, "/pool/lab", "Pool.Allocate"),
        ("group_set", {"group": "ops"}, "/access/groups", "Group.Allocate"),
        ("user_set", {"user": "erin@pve"}, "/access/realm/pve", "Realm.AllocateUser"),
        ("user_set", {"user": "erin@pve"}, "/access/groups", "User.Modify"),
        ("token_create", {"token": "alice@pve!x1"}, "/access/groups", "User.Modify"),
        (
            "acl_set",
            {"action": "grant", "path": "/nodes", "roles": ["PVEAuditor"], "holders": ["dave@pve"]},
            "/nodes",
            "Permissions.Modify",
        ),
        ("firewall_rule_set", {"scope": "cluster", "type": "in", "action": "DROP"}, "/", "Sys.Modify"),
        ("firewall_options_set", {"scope": "guest", "of": 102, "enable": True}, "/vms/102", "VM.Config.Network"),
    ],
)
async def test_what_a_tool_call_needs_is_found_by_planning_it(tmp_path, tool, arguments, path, privilege):
    async with rig(tmp_path) as quorate:
        who = newcomer(quorate)
        answer = await quorate.facts("permission_audit", who=who, tool=tool, arguments=arguments)
        missing = {row["path"]: row["privileges"] for row in answer["missing"]}
        assert privilege in missing[path]
        assert all(method == "GET" for method, _ in quorate.sim.requests)


@pytest.mark.parametrize("privsep", [True, False])
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("guest_power", {"guest": 108, "action": "start"}),
        ("guest_get", {"guest": 202}),
        ("node_get", {"node": "pve2"}),
        ("pool_set", {"pool": "lab", "comment": "x"}),
        ("group_set", {"group": "ops"}),
        ("user_set", {"user": "erin@pve"}),
        ("firewall_rule_set", {"scope": "guest", "of": 102, "type": "in", "action": "DROP"}),
        ("firewall_options_set", {"scope": "cluster", "policy_in": "DROP", "enable": True}),
        ("vm_create", {"name": "new1", "node": "pve1", "pool": "lab", "storage": "local-lvm", "networks": ["vmbr0"]}),
        ("vm_create", {"name": "new1", "node": "pve1", "storage": "local-lvm", "cloud_init": {"user": "x"}}),
        ("container_create", {"template": DEBIAN, "node": "pve1", "storage": "local-lvm"}),
        ("guest_configure", {"guest": 108, "memory": "2G", "cores": 3, "description": "x"}),
        ("disk_add", {"guest": 108, "size": "1G", "storage": "local-lvm"}),
        ("disk_change", {"guest": 108, "action": "move", "disk": "scsi0", "storage": "tank", "delete": False}),
        ("guest_clone", {"guest": 108, "name": "copy", "storage": "tank", "full": True}),
        ("guest_delete", {"guest": 108}),
        ("backup_create", {"guest": 108, "storage": "nas"}),
        ("snapshot_create", {"guest": 108, "name": "before"}),
    ],
)
async def test_after_the_commands_were_run_the_tool_works_for_that_token(tmp_path, tool, arguments, privsep):
    async with rig(tmp_path) as quorate:
        who = newcomer(quorate, privsep=privsep)
        async with second_server(quorate, tmp_path / "before.jsonl", token=who) as weak:
            assert await weak.refusal(tool, **arguments)
        answer = await quorate.facts("permission_audit", who=who, tool=tool, arguments=arguments)
        assert any("--tokens" in command for command in answer["commands"]) == privsep
        run_on_a_node(quorate, answer["commands"])
        again = await quorate.facts("permission_audit", who=who, tool=tool, arguments=arguments)
        assert again["allowed"] is True, again
        async with second_server(quorate, tmp_path / "after.jsonl", token=who) as granted:
            await granted.facts(tool, **arguments)


MAKING_A_VM = {
    "/pool/lab": {
        *("VM.Audit", "VM.Allocate", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory"),
        *("VM.Config.Network", "VM.Config.Options", "Pool.Audit"),
    },
    "/storage/local-lvm": {"Datastore.AllocateSpace"},
    "/sdn/zones/localnetwork/vmbr0": {"SDN.Use"},
}
A_VM = {"name": "new1", "node": "pve1", "pool": "lab", "storage": "local-lvm", "networks": ["vmbr0"]}


def set_grants(quorate, who, privileges_by_path):
    access = quorate.sim.world.access
    for number, (path, privileges) in enumerate(privileges_by_path.items()):
        access.custom_roles[f"Narrow{number}"] = frozenset(privileges)
        access.grant(path, f"Narrow{number}", who)


async def test_a_token_that_can_create_a_vm_is_not_advised_to_get_more(tmp_path):
    async with rig(tmp_path) as quorate:
        who = newcomer(quorate, privsep=False)
        set_grants(quorate, "new@pve", MAKING_A_VM)
        async with second_server(quorate, tmp_path / "weak.jsonl", token=who) as weak:
            own = await weak.facts("permission_audit", tool="vm_create", arguments=A_VM)
            assert own == {"who": who, "plan": "Create vm 110 new1 on pve1", "allowed": True}
            seen_by_root = await quorate.facts("permission_audit", who=who, tool="vm_create", arguments=A_VM)
            assert seen_by_root["allowed"] is True
            assert "privileges are checked" in (await weak.facts("vm_create", dry_run=True, **A_VM))["next"]
            await weak.facts("vm_create", **A_VM)


@pytest.mark.parametrize(
    ("path", "privilege"),
    [
        (path, privilege)
        for path, privileges in MAKING_A_VM.items()
        for privilege in sorted(privileges - {"VM.Audit", "Pool.Audit"})
    ],
)
async def test_audit_dry_run_and_pve_agree_on_each_privilege_that_a_new_vm_needs(tmp_path, path, privilege):
    async with rig(tmp_path) as quorate:
        who = newcomer(quorate, privsep=False)
        fewer = {at: privileges - {privilege} if at == path else privileges for at, privileges in MAKING_A_VM.items()}
        set_grants(quorate, "new@pve", fewer)
        audit = await quorate.facts("permission_audit", who=who, tool="vm_create", arguments=A_VM)
        assert {row["path"]: row["privileges"] for row in audit["missing"]} == {path: [privilege]}
        async with second_server(quorate, tmp_path / "weak.jsonl", token=who) as weak:
            mark = len(quorate.sim.requests)
            if privilege != "Datastore.AllocateSpace":  # without it, no storage can be chosen
                refusal = await weak.refusal("vm_create", **A_VM)
                assert f"{privilege} on {path}" in refusal
            assert all(method == "GET" for method, _ in quorate.requests_since(mark))
            with pytest.raises(PermissionMissing):
                await weak.write(
                    "POST",
                    "/nodes/pve1/qemu",
                    {
                        "vmid": 110, "name": "new1", "cores": 2, "memory": 2048, "scsihw": "virtio-scsi-single",
                        "pool": "lab", "scsi0": "local-lvm:32", "net0": "virtio,bridge=vmbr0", "boot": "order=scsi0",
                    },
                )  # fmt: skip


async def test_a_change_that_the_state_of_its_guest_prevents_now_is_audited_and_that_is_said(tmp_path):
    async with rig(tmp_path) as quorate:
        who = newcomer(quorate)
        audit = await quorate.facts("permission_audit", who=who, tool="guest_delete", arguments={"guest": 102})
        assert audit["missing"][0]["path"] == "/vms/102"
        assert audit["missing"][0]["privileges"] == ["VM.Allocate", "VM.Audit"]
        assert "refused now, whatever the privileges: vm 102 docker01 is running" in " ".join(audit["notes"])
        await quorate.write("PUT", "/nodes/pve1/qemu/102/config", {"protection": 1})
        own = await quorate.facts("permission_audit", tool="guest_delete", arguments={"guest": 102, "stop": True})
        assert own["allowed"] is True
        assert "vm 102 docker01 is protected against deletion" in own["notes"][0]
        moved = {"guest": 108, "action": "move", "disk": "scsi0", "storage": "tank"}
        other = await quorate.facts("permission_audit", tool="disk_change", arguments=moved)
        assert other["allowed"] == "unknown"
        assert "cannot be planned as things are" in other["notes"][0]


async def test_the_commands_take_nothing_away(tmp_path):
    async with rig(tmp_path) as quorate:
        access = quorate.sim.world.access
        for who, path in (
            ("bob@pve", "/vms/107"),  # inherits from /
            ("dave@pve", "/pool/production"),  # has it from a group
            ("alice@pve", "/vms/104"),
            ("bob@pve!monitor", "/"),
        ):
            before = rights(access, who, path, "/vms/100", "/nodes/pve1")
            answer = await quorate.facts(
                "permission_audit", who=who, paths=[path], privileges=["VM.PowerMgmt", "Sys.AccessNetwork"]
            )
            run_on_a_node(quorate, answer.get("commands", []))
            after = rights(access, who, path, "/vms/100", "/nodes/pve1")
            assert {"VM.PowerMgmt", "Sys.AccessNetwork"} <= after[path]
            assert all(before[at] <= after[at] for at in before)


async def test_a_denial_on_the_path_itself_is_taken_back_first(tmp_path):
    async with rig(tmp_path) as quorate:
        answer = await quorate.facts("permission_audit", who="bob@pve", guests=109, privileges=["VM.Audit"])
        assert "pveum acl delete /vms/109 --roles NoAccess --users 'bob@pve'" in answer["commands"]
        run_on_a_node(quorate, answer["commands"])
        assert quorate.sim.world.access.allowed("bob@pve", "/vms/109", "VM.Audit")


@pytest.mark.parametrize("version", ["8.4.1", "9.1.8"])
@pytest.mark.parametrize("level", LEVELS)
async def test_the_commands_for_a_level_grant_all_of_it(tmp_path, level, version):
    async with rig(tmp_path, version=version) as quorate:
        who = newcomer(quorate)
        answer = await quorate.facts("permission_audit", who=who, level=level)
        run_on_a_node(quorate, answer["commands"])
        assert (await quorate.facts("permission_audit", who=who, level=level))["allowed"] is True
        held = quorate.sim.world.access.privileges(who, "/vms/108")
        assert ("VM.PowerMgmt" in held) == (level != "read")
        async with second_server(quorate, tmp_path / "level.jsonl", token=who) as granted:
            await granted.facts("guest_get", guest=102)
            await granted.facts("access_list", kind="users")
            await granted.facts("firewall_get")
            if level != "read":
                await granted.facts("guest_power", guest=108, action="start")
                await granted.facts("firewall_rule_set", scope="guest", of=102, type="in", action="DROP")
            if level == "admin":
                await granted.facts("guest_stop", guest=108)
                await granted.facts("role_set", role="Pilot", privileges=["VM.Audit"])
                await granted.facts("firewall_options_set", scope="cluster", enable=True)


async def test_a_level_can_be_asked_for_single_guests_and_toolsets(tmp_path):
    async with rig(tmp_path) as quorate:
        who = newcomer(quorate)
        answer = await quorate.facts(
            "permission_audit", who=who, level="operate", toolsets=["guests", "snapshots"], guests=[108]
        )
        assert {row["path"] for row in answer["missing"]} == {"/vms/108"}
        run_on_a_node(quorate, answer["commands"])
        access = quorate.sim.world.access
        assert access.allowed(who, "/vms/108", "VM.Snapshot")
        assert not access.privileges(who, "/vms/104")


async def test_the_own_rights_may_end_before_the_call_is_known(tmp_path):
    async with rig(tmp_path) as quorate:
        who = newcomer(quorate)
        async with second_server(quorate, tmp_path / "weak.jsonl", token=who) as weak:
            answer = await weak.facts("permission_audit", tool="node_get", arguments={"node": "pve1"})
            assert answer["missing"][0]["path"] == "/nodes/pve1"
            assert "own privileges are not sufficient" in answer["notes"][0]
            assert any("--users 'new@pve'" in line for line in answer["commands"])  # it bounds its token
            assert "Sys.Audit" in await weak.refusal("permission_audit", who="bob@pve")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"who": "nobody"}, "neither a user nor a token"),
        ({"who": "nobody@pve"}, "no such user"),
        ({"who": "nobody@pve"}, "access_list kind=users"),
        ({"who": "root@pam!nothing"}, "no such token"),
        ({"tool": "host_list"}, "not a question of PVE's privileges alone"),
        ({"tool": "permission_audit"}, "cannot look at itself"),
        ({"paths": ["/guests/1"]}, "is not a path of the access tree"),
        ({"tool": "guest_pwoer"}, "There is no tool 'guest_pwoer'"),
        ({"tool": "guest_power", "arguments": {"guest": 108}}, "action"),
        ({"tool": "guest_delete", "guests": [108]}, "guest_delete needs the argument 'guest'. It must be an integer"),
        ({"tool": "guest_delete", "guests": [108]}, "goes into arguments"),
        ({"tool": "guest_power", "arguments": {"gast": 108}}, "guest_power has no argument 'gast'"),
        ({"tool": "guest_power", "level": "read"}, "cannot be combined"),
        ({"level": "read", "toolsets": ["gests"]}, "There is no toolset 'gests'"),
        ({"level": "read", "paths": ["/access"]}, "does not narrow an access level"),
        ({"privileges": ["VM.Everything"]}, "There is no privilege 'VM.Everything'"),
        ({"toolsets": ["guests"]}, "toolsets needs level"),
    ],
)
async def test_what_cannot_be_audited_is_explained(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        assert words in await quorate.refusal("permission_audit", **arguments)


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("image_upload", {"file": "/etc/hostname", "content": "iso"}, "without reading a file"),
        (
            "api_call",
            {"method": "GET", "path": "/nodes/pve1/qemu/102/agent/file-read", "params": {"file": "/etc/shadow"}},
            "without looking inside a guest",
        ),
    ],
)
async def test_trying_a_tool_reaches_no_further_than_a_read(tmp_path, tool, arguments, words):
    async with rig(tmp_path, access=Access.READ) as quorate:
        mark = len(quorate.sim.requests)
        assert words in await quorate.refusal("permission_audit", tool=tool, arguments=arguments)
        assert not any("agent" in path for _, path in quorate.requests_since(mark))


@pytest.mark.parametrize("version", ["8.4", "9.2"])
def test_the_table_of_calls_is_about_calls_and_privileges_that_exist(version):
    table = facts(version)
    assert set(CALLS) == set(TOOLSETS)
    names = {name for levels in CALLS.values() for listed in levels.values() for name in listed} | set(IN_CODE)
    for name in names:
        method, _, template = name.partition(" ")
        assert table.endpoint(method, template)
    newest = facts("9.2").privileges
    for line in (line for lines in IN_CODE.values() for line in lines):
        assert set(line.split()[1:]) <= set(newest), line


async def test_an_unknown_tool_is_answered_with_the_nearest_ones_only(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("permission_audit", tool="vm_creat")
        assert "Did you mean 'vm_create'" in text
        assert len(text) < 300
        assert "Did you mean 'guest_" in await quorate.refusal("permission_audit", tool="guest_frobnicate")
        assert len(await quorate.refusal("permission_audit", tool="zzz")) < 300


async def test_the_hint_for_a_missing_privilege_is_one_line_that_extends_the_role_and_adds_only_what_lacks(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("role_set", role="Helper", privileges=["VM.Audit", "VM.Console", "Datastore.Audit"])
        await quorate.facts("user_set", user="helper@pve")
        await quorate.facts("token_create", token="helper@pve!cli", privsep=False)
        await quorate.facts("acl_set", action="grant", path="/", roles=["Helper"], holders=["helper@pve"])
        async with second_server(quorate, tmp_path / "second.jsonl", token="helper@pve!cli") as helper:
            refusal = await helper.refusal("guest_power", guest=108, action="start")
            command = "pveum role modify Helper --append 1 --privs VM.PowerMgmt"
            assert refusal.endswith(f"To grant it, on a node: `{command}`")
            await quorate.facts("role_set", role="Helper", privileges=["VM.PowerMgmt"], mode="add")
            assert (await helper.facts("guest_power", guest=108, action="start", dry_run=True))["steps"]


async def test_of_several_roles_the_hint_extends_one_that_the_token_has_there(tmp_path):
    async with rig(tmp_path) as quorate:
        for role, privileges in {
            "Seers": ["VM.Audit", "Sys.Audit"],
            "Movers": ["VM.Migrate"],
            "Other": ["VM.Audit"],
        }.items():
            await quorate.facts("role_set", role=role, privileges=privileges)
        await quorate.facts("user_set", user="helper@pve")
        await quorate.facts("token_create", token="helper@pve!cli", privsep=True)
        both = ["helper@pve", "helper@pve!cli"]
        await quorate.facts("acl_set", action="grant", path="/", roles=["Seers"], holders=both)
        await quorate.facts("acl_set", action="grant", path="/vms", roles=["Movers", "PVEAuditor"], holders=both)
        async with second_server(quorate, tmp_path / "second.jsonl", token="helper@pve!cli") as helper:
            refusal = await helper.refusal("guest_power", guest=108, action="start")
            assert refusal.endswith("`pveum role modify Movers --append 1 --privs VM.PowerMgmt`")
            await quorate.facts("role_set", role="Movers", privileges=["VM.PowerMgmt"], mode="add")
            assert (await helper.facts("guest_power", guest=108, action="start", dry_run=True))["steps"]


async def test_what_pve_refuses_to_a_read_gets_the_same_short_hint(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("role_set", role="Helper", privileges=["VM.Audit", "VM.Console"])
        await quorate.facts("user_set", user="helper@pve")
        await quorate.facts("token_create", token="helper@pve!cli", privsep=False)
        await quorate.facts("acl_set", action="grant", path="/", roles=["Helper"], holders=["helper@pve"])
        async with second_server(quorate, tmp_path / "second.jsonl", token="helper@pve!cli") as helper:
            refusal = await helper.refusal("api_call", method="GET", path="/nodes/pve1/syslog")
            assert "needs the privilege Sys.Syslog on /nodes/pve1" in refusal
            assert refusal.endswith("`pveum role modify Helper --append 1 --privs Sys.Syslog`")


async def test_the_hint_makes_a_role_where_there_is_none_to_extend(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("user_set", user="helper@pve")
        await quorate.facts("token_create", token="helper@pve!cli", privsep=False)
        await quorate.facts("acl_set", action="grant", path="/vms", roles=["PVEAuditor"], holders=["helper@pve"])
        async with second_server(quorate, tmp_path / "second.jsonl", token="helper@pve!cli") as helper:
            refusal = await helper.refusal("guest_power", guest=108, action="start")
            assert "pveum role add Quorate-vms-108 --privs" in refusal
            assert "pveum acl modify /vms/108" in refusal
            assert "role modify PVEAuditor" not in refusal
