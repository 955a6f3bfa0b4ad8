"""Users, groups and roles."""

import re

import pytest

from quorate.config import Access
from tests.rigs.mcp_session import rig, second_server

pytestmark = pytest.mark.anyio


async def test_every_kind_is_listed_as_the_cluster_has_it(tmp_path):
    async with rig(tmp_path) as quorate:
        access = quorate.sim.world.access
        users = await quorate.rows("access_list", kind="users")
        assert {row["user"] for row in users} == set(access.users)
        assert next(row for row in users if row["user"] == "dave@pve")["enabled"] is False
        groups = await quorate.rows("access_list", kind="groups")
        assert {row["group"]: row["members"] for row in groups} == {"admins": "carol@pve", "family": "dave@pve"}
        roles = await quorate.rows("access_list", kind="roles", limit=200)
        assert {row["role"] for row in roles} == set(access.builtin_roles)
        realms = await quorate.rows("access_list", kind="realms")
        assert {row["realm"] for row in realms} == {"pam", "pve"}
        tokens = await quorate.rows("access_list", kind="tokens")
        assert {row["token"] for row in tokens} >= {"alice@pve!ci", "alice@pve!cli", "bob@pve!monitor"}
        acl = await quorate.rows("access_list", kind="acl")
        assert len(acl) == len(list(access.acl()))
        assert {"path": "/", "holder": "@admins", "role": "Administrator"}.items() <= next(
            row for row in acl if row["holder"] == "@admins"
        ).items()


async def test_lists_are_narrowed_and_paged(tmp_path):
    async with rig(tmp_path) as quorate:
        assert [row["user"] for row in await quorate.rows("access_list", kind="users", name="ALI")] == ["alice@pve"]
        assert [row["user"] for row in await quorate.rows("access_list", kind="users", enabled=False)] == ["dave@pve"]
        (role,) = await quorate.rows("access_list", kind="roles", name="PVEVMUser")
        assert "VM.PowerMgmt" in role["privileges"]
        facts = await quorate.facts("access_list", kind="users", limit=2)
        assert (len(facts["rows"]), facts["next_offset"]) == (2, 2)
        text = await quorate.refusal("access_list", kind="groups", enabled=True)
        assert "enabled cannot be combined with kind=groups" in text


async def test_a_user_is_created_and_its_password_is_kept_out_of_everything(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts(
            "user_set", user="erin@pve", password="quite-a-secret", groups=["family"], expire="90d", comment="new"
        )
        assert facts["result"] == "done"
        erin = quorate.sim.world.access.users["erin@pve"]
        assert (erin.password, erin.groups, erin.comment) == ("quite-a-secret", {"family"}, "new")
        assert erin.expire == int(quorate.clock.now()) + 90 * 86400
        assert "quite-a-secret" not in str(facts)
        assert "quite-a-secret" not in quorate.audit_file.read_text()


async def test_a_user_without_a_password_comes_with_the_command_that_sets_one(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("user_set", user="erin@pve")
        assert "pveum passwd erin@pve" in facts["warnings"][0]


async def test_a_changed_user_is_reported_with_its_previous_settings(tmp_path):
    async with rig(tmp_path) as quorate:
        alice = quorate.sim.world.access.users["alice@pve"]
        facts = await quorate.facts("user_set", user="alice@pve", groups=["family"], enabled=False, firstname="Alice")
        assert (alice.groups, alice.enable, alice.firstname) == ({"family"}, False, "Alice")
        assert alice.email == "alice@home.lan"
        assert facts["was"]["enable"] == 1
        again = await quorate.facts("user_set", user="alice@pve", groups=["family"], enabled=False)
        assert again["result"] == "nothing to do"
        await quorate.facts("user_set", user="alice@pve", groups=[])
        assert alice.groups == set()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"user": "erin"}, "Write name@realm"),
        ({"user": "erin@nowhere"}, "There is no realm 'nowhere'"),
        ({"user": "alice@pve", "groups": ["admin"]}, "Did you mean 'admins'?"),
        ({"user": "alice@pve", "password": "new-password"}, "pveum passwd alice@pve"),
        ({"user": "alice@pve", "expire": "soon"}, "Write never, 12h, 90d"),
        ({"user": "alice@pve", "expire": "2001-01-01"}, "is in the past"),
        ({"user": "erin@pve", "email": "not an address"}, "email"),
    ],
)
async def test_what_a_user_cannot_be_is_explained(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        before = dict(quorate.sim.world.access.users)
        assert words in await quorate.refusal("user_set", **arguments)
        assert quorate.sim.world.access.users == before


async def test_a_group_is_made_and_its_members_change(tmp_path):
    async with rig(tmp_path) as quorate:
        access = quorate.sim.world.access
        facts = await quorate.facts("group_set", group="ops", comment="night shift", add=["alice@pve", "dave@pve"])
        assert [step["state"] for step in facts["steps"]] == ["done"] * 3
        assert access.groups["ops"] == "night shift"
        assert access.users["dave@pve"].groups == {"family", "ops"}
        facts = await quorate.facts("group_set", group="ops", remove=["dave@pve"], add=["alice@pve"])
        assert access.users["dave@pve"].groups == {"family"}
        assert facts["unchanged"] == ["alice@pve is already in ops"]
        await quorate.facts("group_set", group="ops", comment="")
        assert access.groups["ops"] is None


async def test_joining_a_group_shows_the_rights_it_brings(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("group_set", group="admins", add=["bob@pve"], dry_run=True)
        assert facts["rights_of_group"] == ["Administrator on /"]
        assert quorate.sim.world.access.users["bob@pve"].groups == set()


async def test_what_a_group_cannot_be_is_explained(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "Use letters" in await quorate.refusal("group_set", group="a/b")
        assert "Did you mean 'bob@pve'?" in await quorate.refusal("group_set", group="ops", add=["bop@pve"])
        text = await quorate.refusal("group_set", group="ops", add=["bob@pve"], remove=["bob@pve"])
        assert "both added and removed" in text


async def test_a_role_is_made_and_changed_by_adding_and_removing(tmp_path):
    async with rig(tmp_path) as quorate:
        custom = quorate.sim.world.access.custom_roles
        await quorate.facts("role_set", role="Pilot", privileges=["VM.Audit", "VM.PowerMgmt"])
        assert custom["Pilot"] == {"VM.Audit", "VM.PowerMgmt"}
        quorate.sim.world.access.grant("/vms/108", "Pilot", "bob@pve")
        facts = await quorate.facts("role_set", role="Pilot", privileges=["VM.Console"], mode="add")
        assert custom["Pilot"] == {"VM.Audit", "VM.PowerMgmt", "VM.Console"}
        assert (facts["gains"], facts["held_by"]) == (["VM.Console"], ["bob@pve on /vms/108"])
        await quorate.facts("role_set", role="Pilot", privileges=["VM.PowerMgmt"], mode="remove")
        assert custom["Pilot"] == {"VM.Audit", "VM.Console"}
        again = await quorate.facts("role_set", role="Pilot", privileges=["VM.Audit", "VM.Console"])
        assert again["result"] == "nothing to do"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"role": "Pilot", "privileges": ["VM.Powermgmt"]}, "Did you mean 'VM.PowerMgmt'?"),
        ({"role": "PVEAdmin", "privileges": ["VM.Audit"]}, "is built into PVE and cannot be changed"),
        ({"role": "PVEMine", "privileges": ["VM.Audit"]}, "reserved for PVE itself"),
        ({"role": "Pi lot", "privileges": ["VM.Audit"]}, "is not a role name"),
        ({"role": "Pilot", "privileges": ["VM.Audit"], "mode": "remove"}, "There is no role 'Pilot'"),
    ],
)
async def test_what_a_role_cannot_be_is_explained(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        assert words in await quorate.refusal("role_set", **arguments)
        assert not quorate.sim.world.access.custom_roles


async def test_deleting_a_user_says_what_goes_with_it(tmp_path):
    async with rig(tmp_path) as quorate:
        access = quorate.sim.world.access
        facts = await quorate.facts("access_delete", kind="user", name="alice@pve")
        assert "alice@pve" not in access.users
        assert not [entry for entry in access.acl() if entry.subject.startswith("alice@pve")]
        assert facts["tokens_lost"] == ["alice@pve!ci", "alice@pve!cli"]
        assert "/pool/lab alice@pve!ci PVEVMUser" in facts["acl_entries_lost"]


async def test_groups_roles_and_tokens_are_deleted(tmp_path):
    async with rig(tmp_path) as quorate:
        access = quorate.sim.world.access
        await quorate.facts("role_set", role="Pilot", privileges=["VM.Audit"])
        await quorate.facts("access_delete", kind="role", name="Pilot")
        await quorate.facts("access_delete", kind="token", name="bob@pve!monitor")
        facts = await quorate.facts("access_delete", kind="group", name="family")
        assert facts["members"] == "dave@pve"
        assert not access.custom_roles
        assert not access.users["bob@pve"].tokens
        assert (set(access.groups), access.users["dave@pve"].groups) == ({"admins"}, set())


async def test_what_must_stay_is_not_deleted(tmp_path):
    async with rig(tmp_path) as quorate:
        own = quorate.sim.token_id
        assert f"Quorate itself logs in as {own}" in await quorate.refusal("access_delete", kind="token", name=own)
        owner = own.partition("!")[0]
        assert "Quorate itself logs in as" in await quorate.refusal("access_delete", kind="user", name=owner)
        text = await quorate.refusal("access_delete", kind="role", name="PVEAdmin")
        assert "is built into PVE and cannot be deleted" in text
        assert "Did you mean 'bob@pve'?" in await quorate.refusal("access_delete", kind="user", name="bobb@pve")


async def test_giving_rights_needs_the_admin_level(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        listed = {tool.name for tool in (await quorate.client.list_tools()).tools}
        assert not listed & {"user_set", "group_set", "role_set", "access_delete", "token_create", "acl_set"}
        assert {"access_list", "permission_audit", "pool_set"} <= listed
        assert "needs admin" in await quorate.refusal("user_set", user="erin@pve")


async def test_a_lost_answer_is_settled_by_looking(tmp_path):
    async with rig(tmp_path, faults=["drop:after:POST:/access/groups;count=1"]) as quorate:
        facts = await quorate.facts("group_set", group="ops")
        assert facts["note"] == "The answer was lost; the effect was found."
        assert "ops" in quorate.sim.world.access.groups


async def test_the_user_that_quorate_works_as_is_not_disabled(tmp_path):
    async with rig(tmp_path) as quorate:
        owner = quorate.sim.token_id.partition("!")[0]
        text = await quorate.refusal("user_set", user=owner, enabled=False)
        assert f"Quorate itself logs in as {owner}" in text
        assert quorate.sim.world.access.users[owner].enable


async def test_a_list_of_names_that_is_cut_says_so(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("role_set", role="mine", privileges=["Xyzzy"])
        assert re.search(r"Available: .* and \d+ more", text)


async def test_a_dry_run_claims_only_what_it_checked(tmp_path):
    async with (
        rig(tmp_path, toolsets=("all", "hosts")) as quorate,
        second_server(quorate, tmp_path / "bob.jsonl", token="bob@pve!monitor") as bob,
    ):
        dry = await bob.facts("user_set", user="eve@pve", dry_run=True)
        assert dry["next"] == "Parameters are checked, but not all privileges; call again without dry_run to do it"
        assert "Realm.AllocateUser" in await bob.refusal("user_set", user="eve@pve")
        dry = await quorate.facts("guest_power", guest=100, action="shutdown", dry_run=True)
        assert dry["next"] == "Parameters and privileges are checked; call again without dry_run to do it"
        dry = await quorate.facts("host_register", host="nas", address="192.168.10.5", dry_run=True)
        assert dry["next"] == "Parameters are checked; call again without dry_run to do it"
