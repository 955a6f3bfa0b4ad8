"""Granting and revoking roles."""

import pytest

from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio


def entries(quorate, path):
    return {
        (entry.kind, entry.subject, entry.role, entry.propagate)
        for entry in quorate.sim.world.access.acl()
        if entry.path == path
    }


async def test_a_role_is_granted_to_users_groups_and_tokens_at_once(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts(
            "acl_set",
            action="grant",
            path="/vms/108/",
            roles=["PVEVMUser"],
            holders=["bob@pve", "@family", "alice@pve!ci"],
            propagate=False,
        )
        assert facts["result"] == "done"
        assert entries(quorate, "/vms/108") == {
            ("user", "bob@pve", "PVEVMUser", False),
            ("group", "family", "PVEVMUser", False),
            ("token", "alice@pve!ci", "PVEVMUser", False),
        }


async def test_granting_what_is_held_does_nothing_and_propagation_can_change(tmp_path):
    async with rig(tmp_path) as quorate:
        same = {"action": "grant", "path": "/pool/lab", "roles": ["PVEVMAdmin"], "holders": ["alice@pve"]}
        assert (await quorate.facts("acl_set", **same))["result"] == "nothing to do"
        await quorate.facts("acl_set", **same, propagate=False)
        assert ("user", "alice@pve", "PVEVMAdmin", False) in entries(quorate, "/pool/lab")


async def test_a_role_is_revoked(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("acl_set", action="revoke", path="/", roles=["PVEAuditor"], holders=["bob@pve"])
        assert not any(entry[1] == "bob@pve" for entry in entries(quorate, "/"))


async def test_revoking_what_is_not_held_there_says_who_holds_what(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal(
            "acl_set", action="revoke", path="/pool/lab", roles=["PVEAdmin"], holders=["alice@pve"]
        )
        assert "alice@pve does not have PVEAdmin on /pool/lab" in text
        assert "alice@pve PVEVMAdmin" in text


async def test_a_grant_that_takes_inherited_rights_away_warns(tmp_path):
    async with rig(tmp_path) as quorate:
        access = quorate.sim.world.access
        facts = await quorate.facts(
            "acl_set", action="grant", path="/nodes/pve1", roles=["PVESDNUser"], holders=["bob@pve"], dry_run=True
        )
        assert "it loses" in facts["warnings"][0]
        assert "Sys.Audit" in facts["warnings"][0]
        assert "Sys.Audit" in access.privileges("bob@pve", "/nodes/pve1")
        await quorate.facts("acl_set", action="grant", path="/nodes/pve1", roles=["PVESDNUser"], holders=["bob@pve"])
        assert "Sys.Audit" not in access.privileges("bob@pve", "/nodes/pve1")


async def test_a_role_that_hands_out_rights_is_pointed_out(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts(
            "acl_set", action="grant", path="/", roles=["Administrator"], holders=["alice@pve"], dry_run=True
        )
        assert "can itself grant privileges" in facts["warnings"][0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"path": "/guests/100"}, "is not a path of the access tree"),
        ({"roles": ["PVEAdmn"]}, "Did you mean 'PVEAdmin'?"),
        ({"holders": ["@familly"]}, "Did you mean 'family'?"),
        ({"holders": ["nobody@pve"]}, "There is no user 'nobody@pve'"),
        ({"holders": ["alice@pve!nope"]}, "There is no token 'alice@pve!nope'"),
        ({"holders": []}, "holders"),
    ],
)
async def test_what_cannot_be_granted_is_explained(tmp_path, changes, words):
    async with rig(tmp_path) as quorate:
        before = list(quorate.sim.world.access.acl())
        good = {"action": "grant", "path": "/vms/108", "roles": ["PVEVMUser"], "holders": ["bob@pve"]}
        assert words in await quorate.refusal("acl_set", **(good | changes))
        assert list(quorate.sim.world.access.acl()) == before
