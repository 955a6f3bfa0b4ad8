"""ACL resolution and permission expressions, without HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pve_schema.schema import facts
from pve_simulator.access.directory import Access, Pool, Token, User
from pve_simulator.api_client import Api
from pve_simulator.http.permission_check import check_permission
from pve_simulator.http.refusals import Refusal


@pytest.fixture
def access() -> Access:
    access = Access(facts("9.1.8").roles)
    access.groups = {"ops": None}
    access.users["ann@pve"] = User(
        "ann@pve", groups={"ops"}, tokens={"own": Token("s", privsep=True), "full": Token("s", privsep=False)}
    )
    access.pools["lab"] = Pool("lab", vms={100}, storages={"tank"})
    access.invalidate_cache()
    return access


def test_roles_propagate_downwards(access: Access) -> None:
    access.grant("/vms", "PVEVMUser", "ann@pve")
    assert access.allowed("ann@pve", "/vms/100", "VM.PowerMgmt")
    assert not access.allowed("ann@pve", "/storage/tank", "Datastore.Audit")


def test_an_entry_without_propagation_holds_only_on_its_path(access: Access) -> None:
    access.grant("/vms", "PVEVMUser", "ann@pve", propagate=False)
    assert access.allowed("ann@pve", "/vms", "VM.PowerMgmt")
    assert not access.allowed("ann@pve", "/vms/100", "VM.PowerMgmt")


def test_a_deeper_entry_replaces_what_was_inherited(access: Access) -> None:
    access.grant("/", "Administrator", "ann@pve")
    access.grant("/vms/102", "PVEAuditor", "ann@pve")
    assert access.allowed("ann@pve", "/vms/101", "VM.PowerMgmt")
    assert not access.allowed("ann@pve", "/vms/102", "VM.PowerMgmt")


def test_a_role_from_above_also_reaches_a_guest_through_its_pool(access: Access) -> None:
    access.grant("/", "Administrator", "ann@pve")
    access.grant("/vms/100", "PVEAuditor", "ann@pve")
    assert access.allowed("ann@pve", "/vms/100", "VM.PowerMgmt")


def test_the_users_own_entry_beats_that_of_its_group_at_the_same_path(access: Access) -> None:
    access.grant("/vms", "PVEVMAdmin", "@ops")
    assert access.allowed("ann@pve", "/vms/100", "VM.PowerMgmt")
    access.grant("/vms", "PVEAuditor", "ann@pve")
    assert not access.allowed("ann@pve", "/vms/100", "VM.PowerMgmt")


def test_no_access_wins_over_other_roles_at_its_level(access: Access) -> None:
    access.grant("/vms/100", "PVEVMAdmin", "ann@pve")
    access.grant("/vms/100", "NoAccess", "ann@pve")
    assert access.privileges("ann@pve", "/vms/100") == {}


def test_a_pool_gives_its_roles_to_its_members(access: Access) -> None:
    access.grant("/pool/lab", "PVEVMUser", "ann@pve")
    assert access.privileges("ann@pve", "/vms/100")["VM.PowerMgmt"] is False
    assert access.allowed("ann@pve", "/storage/tank", "VM.PowerMgmt")
    assert not access.allowed("ann@pve", "/vms/101", "VM.PowerMgmt")


def test_no_access_on_the_pool_or_on_the_guest_beats_the_other_side(access: Access) -> None:
    access.grant("/vms", "PVEVMUser", "ann@pve")
    access.grant("/pool/lab", "NoAccess", "ann@pve")
    assert access.privileges("ann@pve", "/vms/100") == {}
    access.grant("/pool/lab", "PVEVMUser", "ann@pve")
    access.revoke("/pool/lab", "NoAccess", "user", "ann@pve")
    access.grant("/vms/100", "NoAccess", "ann@pve")
    assert access.privileges("ann@pve", "/vms/100") == {}


def test_a_separated_token_has_what_both_it_and_its_owner_have(access: Access) -> None:
    access.grant("/vms", "PVEVMUser", "ann@pve")
    assert not access.allowed("ann@pve!own", "/vms/100", "VM.PowerMgmt")
    access.grant("/vms", "PVEVMAdmin", "ann@pve!own")
    assert access.allowed("ann@pve!own", "/vms/100", "VM.PowerMgmt")
    assert not access.allowed("ann@pve!own", "/vms/100", "VM.Allocate")


def test_a_token_without_separation_has_all_of_its_owner(access: Access) -> None:
    access.grant("/vms", "PVEVMUser", "@ops")
    assert access.allowed("ann@pve!full", "/vms/100", "VM.PowerMgmt")


def _refusal(access: Access, permission: Mapping[str, Any] | None, user: str, **params: str) -> str | None:
    try:
        check_permission(access, permission, user, params)
    except Refusal as refusal:
        return refusal.reason
    return None


def test_root_may_everything_but_its_tokens_are_not_root(access: Access) -> None:
    access.users["root@pam"].tokens["t"] = Token("s", privsep=False)
    assert _refusal(access, None, "root@pam") is None
    assert _refusal(access, None, "root@pam!t") == "Permission check failed (user != root@pam)"
    assert _refusal(access, {"check": ["perm", "/vms/1", ["VM.Audit"]]}, "root@pam!t") is None


def test_the_refusal_names_path_and_privileges(access: Access) -> None:
    permission = {"check": ["perm", "/vms/{vmid}", ["VM.Clone", "VM.Audit"]]}
    assert _refusal(access, permission, "ann@pve", vmid="7") == "Permission check failed (/vms/7, VM.Clone)"
    any_ = {"check": ["perm", "/storage/{storage}", ["Datastore.Audit", "Datastore.AllocateSpace"], "any", 1]}
    expected = "Permission check failed (/storage/tank, Datastore.Audit|Datastore.AllocateSpace)"
    assert _refusal(access, any_, "ann@pve", storage="tank") == expected
    either = {"check": ["or", ["perm", "/", ["Sys.Audit"]], ["perm", "/nodes", ["Sys.Audit"]]]}
    assert _refusal(access, either, "ann@pve") == "Permission check failed"
    missing = {"check": ["perm", "/pool/{poolid}", ["Pool.Allocate"]]}
    assert _refusal(access, missing, "ann@pve") == "Permission check failed (/pool/-, Pool.Allocate)"


def test_a_clone_into_a_pool_needs_a_pool_that_exists(access: Access) -> None:
    clone = facts("9.1.8").endpoint("POST", "/nodes/{node}/qemu/{vmid}/clone").permission
    access.grant("/vms/100", "PVEVMAdmin", "ann@pve")
    access.grant("/pool/lab", "PVEVMAdmin", "ann@pve")
    assert _refusal(access, clone, "ann@pve", vmid="100", newid="200") == "Permission check failed"
    assert _refusal(access, clone, "ann@pve", vmid="100", newid="200", pool="lab") is None


def test_users_may_be_changed_through_their_groups(access: Access) -> None:
    update = facts("9.1.8").endpoint("PUT", "/access/users/{userid}").permission
    access.users["boss@pve"] = User("boss@pve")
    assert _refusal(access, update, "boss@pve", userid="ann@pve") == "Permission check failed"
    access.grant("/access/groups/ops", "PVEUserAdmin", "boss@pve")
    assert _refusal(access, update, "boss@pve", userid="ann@pve") is None
    assert _refusal(access, update, "boss@pve", userid="ghost@pve") == "no such user ('ghost@pve')"


async def test_the_api_shows_the_same_permissions(api: Api) -> None:
    ci = api.as_token("alice@pve!ci")
    mine = (await ci.get("/access/permissions")).data
    assert "VM.PowerMgmt" in mine["/vms/104"]
    assert "/" not in mine
    single = (await ci.get("/access/permissions", path="/vms/104")).data
    assert single == {"/vms/104": mine["/vms/104"]}
    other = await ci.get("/access/permissions", userid="root@pam")
    assert other.reason == "Permission check failed (/access, Sys.Audit)"


async def test_lists_are_filtered_instead_of_refused(api: Api) -> None:
    ci = api.as_token("alice@pve!ci")
    rows = (await ci.get("/cluster/resources", type="vm")).data
    assert {row["vmid"] for row in rows} == {104, 105, 106, 108, 206}
    assert (await ci.get("/access/users")).data == []
    nodes = (await ci.get("/nodes")).data
    assert len(nodes) == 3
    assert all("cpu" not in node for node in nodes)
    bob = api.as_token("bob@pve!monitor")
    seen = {row["vmid"] for row in (await bob.get("/cluster/resources", type="vm")).data}
    assert 109 not in seen
    assert 100 in seen
