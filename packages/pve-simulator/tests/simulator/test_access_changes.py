"""Changing users, tokens, groups, roles, ACLs, realms and passwords over HTTPS."""

from __future__ import annotations

import re

import pytest

from pve_simulator.api_client import Api

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def test_a_user_is_created_once_changed_and_deleted_with_its_acls(api: Api):
    created = await api.post("/access/users", userid="eve@pve", password="eve-password", groups="family")
    assert created.data is None
    again = await api.post("/access/users", userid="eve@pve")
    assert (again.status, again.reason) == (500, "create user failed: user 'eve@pve' already exists")
    await api.put("/access/acl", path="/vms", roles="PVEAuditor", users="eve@pve")
    assert (await api.put("/access/users/eve@pve", groups="admins", append=1, email="e@x.org")).data is None
    user = (await api.get("/access/users/eve@pve")).data
    assert user["groups"] == ["admins", "family"]
    assert user["email"] == "e@x.org"
    assert (await api.delete("/access/users/eve@pve")).data is None
    assert "eve@pve" not in str((await api.get("/access/acl")).data)
    gone = await api.get("/access/users/eve@pve")
    assert (gone.status, gone.reason) == (500, "no such user ('eve@pve')")


async def test_an_empty_address_of_a_user_is_shown_only_before_other_fields(api: Api):
    await api.post("/access/users", userid="eve@pve")
    for change, shown in (
        ({"firstname": "Eve"}, {"firstname": "Eve"}),
        ({"keys": "x"}, {"firstname": "Eve", "keys": "x", "email": ""}),
        ({"keys": "", "email": "e@x.org"}, {"firstname": "Eve", "email": "e@x.org"}),
    ):
        assert (await api.put("/access/users/eve@pve", **change)).data is None
        user = (await api.get("/access/users/eve@pve")).data
        assert user == {"enable": 1, "expire": 0, "groups": [], "tokens": None, **shown}
    await api.post("/access/users", userid="eve@moon")
    rows = {row["userid"]: row for row in (await api.get("/access/users")).data}
    assert rows["eve@moon"] == {"userid": "eve@moon", "enable": 1, "expire": 0}


async def test_a_user_cannot_join_a_group_that_is_not_there_and_stays_uncreated(api: Api):
    refused = await api.post("/access/users", userid="eve@pve", groups="nobodies")
    assert (refused.status, refused.reason) == (500, "create user failed: no such group 'nobodies'")
    assert "eve@pve" not in api.cluster.world.access.users
    lost = await api.post("/access/users", userid="eve@moon", password="eve-password")
    assert lost.reason == "create user failed: auth domain 'moon' does not exist"
    system = await api.post("/access/users", userid="eve@pam", password="eve-password")
    assert system.reason.startswith("create user failed: change password failed: ")


@pytest.mark.api(version="9.2.3")
async def test_the_secret_of_a_token_is_shown_once_and_works_until_it_is_regenerated(api: Api):
    path = "/access/users/bob@pve/token/robot"
    created = (await api.post(path, comment="c", privsep=0)).data
    assert created["full-tokenid"] == "bob@pve!robot"
    assert UUID.fullmatch(created["value"])
    assert created["info"] == {"privsep": "0", "comment": "c"}
    robot = api.as_nobody(Authorization=f"PVEAPIToken=bob@pve!robot={created['value']}")
    assert (await robot.get("/version")).status == 200
    assert (await api.get(path)).data == {"privsep": 0, "comment": "c", "expire": 0}
    again = await api.post(path)
    assert again.errors == {"tokenid": "Token already exists."}
    renewed = (await api.put(path, regenerate=1)).data
    assert renewed["full-tokenid"] == "bob@pve!robot"
    assert (await robot.get("/version")).status == 401
    robot = api.as_nobody(Authorization=f"PVEAPIToken=bob@pve!robot={renewed['value']}")
    assert (await robot.get("/version")).status == 200
    assert (await api.put(path, expire=1000)).data["expire"] == "1000"
    assert (await robot.get("/version")).status == 401
    assert (await api.delete(path)).data is None
    missing = await api.delete(path)
    assert missing.reason == "no such token 'robot' for user 'bob@pve'"


async def test_a_user_may_make_own_tokens_but_not_those_of_others(api: Api):
    bob = await api.as_user("bob@pve", "bob-looks-around")
    assert (await bob.post("/access/users/bob@pve/token/mine")).status == 200
    refused = await bob.post("/access/users/carol@pve/token/mine")
    assert (refused.status, refused.reason) == (403, "Permission check failed")


async def test_groups_come_and_go_with_their_members_and_acls(api: Api):
    await api.post("/access/groups", groupid="night", comment="watch")
    again = await api.post("/access/groups", groupid="night")
    assert again.reason == "create group failed: group 'night' already exists"
    await api.put("/access/users/bob@pve", groups="night")
    await api.put("/access/acl", path="/", roles="PVEAuditor", groups="night")
    assert (await api.get("/access/groups/night")).data == {"members": ["bob@pve"], "comment": "watch"}
    await api.put("/access/groups/night", comment="shift")
    await api.delete("/access/groups/night")
    assert (await api.get("/access/users/bob@pve")).data["groups"] == []
    assert "night" not in str((await api.get("/access/acl")).data)
    gone = await api.put("/access/groups/night", comment="")
    assert gone.reason == "update group failed: group 'night' does not exist"


async def test_custom_roles_can_be_changed_but_not_those_of_pve(api: Api):
    await api.post("/access/roles", roleid="Starter", privs="VM.Audit")
    await api.put("/access/roles/Starter", privs="VM.PowerMgmt", append=1)
    assert (await api.get("/access/roles/Starter")).data == {"VM.Audit": 1, "VM.PowerMgmt": 1}
    await api.put("/access/roles/Starter", privs="VM.Console")
    assert (await api.get("/access/roles/Starter")).data == {"VM.Console": 1}
    duplicate = await api.post("/access/roles", roleid="Starter")
    assert duplicate.reason == "create role failed: role 'Starter' already exists"
    assert "roleid" in (await api.post("/access/roles", roleid="pveMine")).errors
    builtin = await api.delete("/access/roles/PVEAdmin")
    assert builtin.reason == "auto-generated role 'PVEAdmin' cannot be deleted"
    await api.delete("/access/roles/Starter")
    missing = await api.delete("/access/roles/Starter")
    assert missing.reason == "delete role failed: role 'Starter' does not exist"


async def test_acl_entries_are_added_and_removed(api: Api):
    await api.put("/access/acl", path="/vms/100/", roles="PVEVMUser", users="bob@pve", propagate=0)
    entry = {"path": "/vms/100", "type": "user", "ugid": "bob@pve", "roleid": "PVEVMUser", "propagate": 0}
    assert entry in (await api.get("/access/acl")).data
    await api.put("/access/acl", path="/vms/100", roles="PVEVMUser", users="bob@pve", delete=1)
    assert entry not in (await api.get("/access/acl")).data
    nobody = await api.put("/access/acl", path="/vms", roles="PVEVMUser", users="ghost@pve")
    assert nobody.reason == "ACL update failed: user 'ghost@pve' does not exist"
    token = await api.put("/access/acl", path="/vms", roles="PVEVMUser", tokens="bob@pve!nope")
    assert token.reason == "ACL update failed: no such token 'nope' for user 'bob@pve'"
    group = await api.put("/access/acl", path="/vms", roles="PVEVMUser", groups="nope")
    assert group.reason == "ACL update failed: group 'nope' does not exist"


async def test_who_owns_an_object_hands_out_only_what_is_held_there(api: Api):
    await api.put("/access/acl", path="/vms/100", roles="PVEVMAdmin", users="bob@pve")
    bob = await api.as_user("bob@pve", "bob-looks-around")
    assert (await bob.put("/access/acl", path="/vms/100", roles="PVEVMUser", users="carol@pve")).status == 200
    more = await bob.put("/access/acl", path="/vms/100", roles="Administrator", users="carol@pve")
    assert (more.status, more.reason) == (500, "ACL update failed: 400 Parameter verification failed.")
    assert "superset of privileges" in more.body["message"]
    elsewhere = await bob.put("/access/acl", path="/nodes", roles="PVEAuditor", users="carol@pve")
    assert elsewhere.reason == "Permission check failed (/nodes, Permissions.Modify)"


async def test_passwords_are_changed_with_a_ticket_and_the_own_password(api: Api):
    token = await api.put("/access/password", userid="bob@pve", password="a-new-password")
    assert token.status == 403
    bob = await api.as_user("bob@pve", "bob-looks-around")
    bare = await bob.put("/access/password", userid="bob@pve", password="a-new-password")
    assert list(bare.errors) == ["confirmation-password"]
    params = {"userid": "bob@pve", "password": "a-new-password", "confirmation-password": "wrong"}
    assert (await bob.put("/access/password", **params)).status == 401
    params["confirmation-password"] = "bob-looks-around"
    assert (await bob.put("/access/password", **params)).data is None
    await api.as_user("bob@pve", "a-new-password")


async def test_realms_take_the_options_of_their_type(api: Api):
    bare = await api.post("/access/domains", realm="corp", type="ldap", server1="10.0.0.9")
    assert bare.reason == "add auth server failed: missing value for required option 'base_dn'"
    odd = await api.post("/access/domains", realm="corp", type="ad", server1="x", domain="d", autocreate=1)
    assert odd.reason == "add auth server failed: unexpected property 'autocreate'"
    params = {"realm": "corp", "type": "ad", "server1": "10.0.0.9", "domain": "corp.lan", "default": 1}
    assert (await api.post("/access/domains", **params)).data is None
    assert {"realm": "corp", "type": "ad", "default": 1} in (await api.get("/access/domains")).data
    again = await api.post("/access/domains", **params)
    assert again.reason == "add auth server failed: domain 'corp' already exists"
    stale = await api.put("/access/domains/corp", comment="c", digest="0" * 40)
    assert "detected modified configuration" in stale.reason
    await api.put("/access/domains/corp", comment="c", delete="default")
    corp = (await api.get("/access/domains/corp")).data
    assert (corp["comment"], "default" in corp) == ("c", False)
    empty = await api.put("/access/domains/corp")
    assert empty.reason == "update auth server failed: no options specified"
    await api.delete("/access/domains/corp")
    gone = await api.get("/access/domains/corp")
    assert gone.reason == "domain 'corp' does not exist"


async def test_only_directory_realms_are_synced_and_no_server_answers(api: Api):
    refused = await api.post("/access/domains/pve/sync")
    assert refused.reason == "Cannot sync realm type 'pve'! Only LDAP/AD realms can be synced."
    await api.post("/access/domains", realm="corp", type="ad", server1="10.0.0.9", domain="corp.lan")
    unclear = await api.post("/access/domains/corp/sync")
    assert list(unclear.errors) == ["scope"]
    task = await api.post("/access/domains/corp/sync", scope="both")
    assert ":auth-realm-sync:corp:" in task.data
    assert "Connection refused" in await api.finish_task(task)
    assert (await api.as_nobody().post("/access/openid/auth-url", realm="pve", **{"redirect-url": "x"})).reason
    assert (await api.get("/access/openid")).data == [{"subdir": "auth-url"}, {"subdir": "login"}]


async def test_nobody_has_a_second_factor_at_first(api: Api):
    assert (await api.get("/access/tfa")).data == []
    assert (await api.get("/access/users/bob@pve/tfa")).data == {}
    missing = await api.get("/access/tfa/bob@pve/x")
    assert (missing.status, missing.reason) == (404, "No such tfa entry 'x'")
    console = {"authid": "bob@pve", "path": "/vms/100", "privs": "VM.Console", "vncticket": "PVEVNC:0::x"}
    refused = await api.as_nobody().post("/access/vncticket", **console)
    assert (refused.status, refused.reason) == (401, "authentication failure")
