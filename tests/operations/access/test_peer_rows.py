"""What other PVE servers offer for users, permissions, pools and the firewall: each of their tools, done natively.

The effect is looked up in the simulated world itself, never through Quorate.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pve_simulator.cluster.firewall import Firewalls
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

Check = Callable[[Any, dict[str, Any]], bool]


@dataclass(frozen=True)
class Row:
    """One tool of a peer: the native call that does the same, and how to see that it did."""

    peer: str
    tool: str
    native: str
    arguments: dict[str, Any]
    check: Check
    prepare: Callable[[Any], None] = field(default=lambda world: None)


def names(facts: dict[str, Any]) -> set[Any]:
    return {row[0] for row in facts["rows"]}


def guest_firewall(world: Any) -> Any:
    return world.part(Firewalls).guest(102)


def cluster_firewall(world: Any) -> Any:
    return world.part(Firewalls).cluster


def with_a_rule(world: Any) -> None:
    guest_firewall(world).rules.append({"type": "in", "action": "ACCEPT", "enable": 1})


def with_a_cluster_rule(world: Any) -> None:
    cluster_firewall(world).rules.append({"type": "in", "action": "ACCEPT", "enable": 1})


def without_members(world: Any) -> None:
    world.access.pools["lab"].vms.clear()
    world.access.pools["lab"].storages.clear()
    world.access.invalidate_cache()


USERS = {"kind": "users"}
ALL_USERS: Check = lambda world, facts: names(facts) == set(world.access.users)  # noqa: E731
ALL_POOLS: Check = lambda world, facts: names(facts) == set(world.access.pools)  # noqa: E731
ALL_ROLES: Check = lambda world, facts: names(facts) == set(world.access.builtin_roles)  # noqa: E731
POOL_MADE: Check = lambda world, facts: world.access.pools["new"].comment == "x"  # noqa: E731
POOL_GONE: Check = lambda world, facts: "lab" not in world.access.pools  # noqa: E731
GUEST_IN: Check = lambda world, facts: 204 in world.access.pools["lab"].vms  # noqa: E731
GUEST_OUT: Check = lambda world, facts: 108 not in world.access.pools["lab"].vms  # noqa: E731
RULE_SHOWN: Check = lambda world, facts: facts["total"] == 1  # noqa: E731
RULE_ADDED: Check = lambda world, facts: guest_firewall(world).rules[0]["dport"] == "443"  # noqa: E731
RULE_GONE: Check = lambda world, facts: not guest_firewall(world).rules  # noqa: E731
GUEST_ON: Check = lambda world, facts: guest_firewall(world).options["enable"] == 1  # noqa: E731
CLUSTER_ON: Check = lambda world, facts: cluster_firewall(world).options["enable"] == 1  # noqa: E731
OPTIONS_SHOWN: Check = lambda world, facts: facts["options"]["policy_in"] == "DROP"  # noqa: E731
GRANTED: Check = lambda world, facts: world.access.allowed("bob@pve", "/vms/108", "VM.PowerMgmt")  # noqa: E731

GUEST = {"scope": "guest", "of": 102}
NEW_RULE = {**GUEST, "type": "in", "action": "ACCEPT", "proto": "tcp", "dport": "443"}
DELETED_RULE = {**GUEST, "kind": "rule", "item": 0}
POOL = {"pool": "new", "comment": "x"}
DELETED_POOL = {"kind": "pool", "name": "lab"}
GRANT = {"action": "grant", "path": "/vms/108", "roles": ["PVEVMUser"], "holders": ["bob@pve"]}

BRYNN, GILBY, SOLOMON, BSAHANE = "brynnjocelyn", "gilby125", "solomonneas", "bsahane"
ROWS = [
    Row(BRYNN, "get_firewall_status", "firewall_get", {}, OPTIONS_SHOWN),
    Row(BRYNN, "update_firewall_status", "firewall_options_set", {"scope": "cluster", "enable": True}, CLUSTER_ON),
    Row(BRYNN, "list_firewall_rules", "firewall_get", GUEST, RULE_SHOWN, with_a_rule),
    Row(BRYNN, "create_firewall_rule", "firewall_rule_set", NEW_RULE, RULE_ADDED),
    Row(
        BRYNN,
        "update_firewall_rule",
        "firewall_rule_set",
        {**GUEST, "pos": 0, "enable": False},
        lambda world, facts: guest_firewall(world).rules[0]["enable"] == 0,
        with_a_rule,
    ),
    Row(BRYNN, "delete_firewall_rule", "firewall_delete", DELETED_RULE, RULE_GONE, with_a_rule),
    Row(BRYNN, "list_users", "access_list", USERS, ALL_USERS),
    Row(
        BRYNN,
        "create_user",
        "user_set",
        {"user": "erin@pve", "password": "long-enough", "firstname": "Erin"},
        lambda world, facts: world.access.users["erin@pve"].password == "long-enough",
    ),
    Row(
        BRYNN,
        "update_user",
        "user_set",
        {"user": "bob@pve", "enabled": False},
        lambda world, facts: not world.access.users["bob@pve"].enable,
    ),
    Row(
        BRYNN,
        "delete_user",
        "access_delete",
        {"kind": "user", "name": "bob@pve"},
        lambda world, facts: "bob@pve" not in world.access.users,
    ),
    Row(
        BRYNN,
        "list_groups",
        "access_list",
        {"kind": "groups"},
        lambda world, facts: names(facts) == set(world.access.groups),
    ),
    Row(BRYNN, "create_group", "group_set", {"group": "ops"}, lambda world, facts: "ops" in world.access.groups),
    Row(
        BRYNN,
        "update_group",
        "group_set",
        {"group": "family", "comment": "us"},
        lambda world, facts: world.access.groups["family"] == "us",
    ),
    Row(
        BRYNN,
        "delete_group",
        "access_delete",
        {"kind": "group", "name": "family"},
        lambda world, facts: "family" not in world.access.groups,
    ),
    Row(BRYNN, "list_pools", "access_list", {"kind": "pools"}, ALL_POOLS),
    Row(BRYNN, "create_pool", "pool_set", POOL, POOL_MADE),
    Row(BRYNN, "update_pool", "pool_set", {"pool": "lab", "add_guests": [204]}, GUEST_IN),
    Row(BRYNN, "delete_pool", "access_delete", DELETED_POOL, POOL_GONE, without_members),
    Row(GILBY, "proxmox_get_pools", "access_list", {"kind": "pools"}, ALL_POOLS),
    Row(GILBY, "proxmox_get_firewall_rules", "firewall_get", GUEST, RULE_SHOWN, with_a_rule),
    Row(
        SOLOMON,
        "proxmox_audit_permissions",
        "permission_audit",
        {"who": "bob@pve", "paths": ["/pool/lab", "/storage/nas"], "guests": [108], "privileges": ["VM.Audit"]},
        lambda world, facts: facts["allowed"] == world.access.allowed("bob@pve", "/vms/108", "VM.Audit"),
    ),
    Row(
        SOLOMON,
        "proxmox_list_pool_resources",
        "access_list",
        {"kind": "pools", "name": "lab"},
        lambda world, facts: {row[1] for row in facts["rows"] if row[0] != "storage"} == world.access.pools["lab"].vms,
    ),
    Row(SOLOMON, "proxmox_list_firewall_rules", "firewall_get", {}, RULE_SHOWN, with_a_cluster_rule),
    Row(SOLOMON, "proxmox_get_firewall_options", "firewall_get", {}, OPTIONS_SHOWN),
    Row(SOLOMON, "proxmox_add_firewall_rule", "firewall_rule_set", NEW_RULE, RULE_ADDED),
    Row(SOLOMON, "proxmox_delete_firewall_rule", "firewall_delete", DELETED_RULE, RULE_GONE, with_a_rule),
    Row(SOLOMON, "proxmox_set_firewall_enabled", "firewall_options_set", {**GUEST, "enable": True}, GUEST_ON),
    Row(SOLOMON, "proxmox_list_users", "access_list", USERS, ALL_USERS),
    Row(SOLOMON, "proxmox_list_roles", "access_list", {"kind": "roles"}, ALL_ROLES),
    Row(
        SOLOMON,
        "proxmox_list_acl",
        "access_list",
        {"kind": "acl"},
        lambda world, facts: facts["total"] == len(list(world.access.acl())),
    ),
    Row(SOLOMON, "proxmox_list_pools", "access_list", {"kind": "pools"}, ALL_POOLS),
    Row(
        SOLOMON,
        "proxmox_list_tokens",
        "access_list",
        {"kind": "tokens", "name": "alice@pve!"},
        lambda world, facts: names(facts) == {f"alice@pve!{one}" for one in world.access.users["alice@pve"].tokens},
    ),
    Row(SOLOMON, "proxmox_set_acl", "acl_set", GRANT, GRANTED),
    Row(
        SOLOMON,
        "proxmox_create_token",
        "token_create",
        {"token": "alice@pve!x1"},
        lambda world, facts: world.access.users["alice@pve"].tokens["x1"].secret == facts["secret"],
    ),
    Row(
        SOLOMON,
        "proxmox_delete_token",
        "access_delete",
        {"kind": "token", "name": "alice@pve!ci"},
        lambda world, facts: "ci" not in world.access.users["alice@pve"].tokens,
    ),
    Row(SOLOMON, "proxmox_create_pool", "pool_set", POOL, POOL_MADE),
    Row(SOLOMON, "proxmox_update_pool", "pool_set", {"pool": "lab", "remove_guests": [108]}, GUEST_OUT),
    Row(SOLOMON, "proxmox_delete_pool", "access_delete", DELETED_POOL, POOL_GONE, without_members),
    Row(BSAHANE, "proxmox-vm-firewall-get", "firewall_get", GUEST, RULE_SHOWN, with_a_rule),
    Row(BSAHANE, "proxmox-vm-firewall-set", "firewall_options_set", {**GUEST, "enable": True}, GUEST_ON),
    Row(BSAHANE, "proxmox-configure-firewall", "firewall_rule_set", NEW_RULE, RULE_ADDED),
    Row(BSAHANE, "proxmox-list-pools", "access_list", {"kind": "pools"}, ALL_POOLS),
    Row(BSAHANE, "proxmox-create-pool", "pool_set", POOL, POOL_MADE),
    Row(BSAHANE, "proxmox-delete-pool", "access_delete", DELETED_POOL, POOL_GONE, without_members),
    Row(BSAHANE, "proxmox-pool-add", "pool_set", {"pool": "lab", "add_guests": ["grafana"]}, GUEST_IN),
    Row(BSAHANE, "proxmox-pool-remove", "pool_set", {"pool": "lab", "remove_guests": ["test-vm"]}, GUEST_OUT),
    Row(BSAHANE, "proxmox-list-users", "access_list", USERS, ALL_USERS),
    Row(BSAHANE, "proxmox-list-roles", "access_list", {"kind": "roles"}, ALL_ROLES),
    Row(BSAHANE, "proxmox-assign-permission", "acl_set", GRANT, GRANTED),
]


@pytest.mark.parametrize("version", ["8.4.1", "9.2.3"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.peer}-{row.tool}")
async def test_the_peers_tool_is_done_natively(tmp_path, row, version):
    async with rig(tmp_path, version=version) as quorate:
        row.prepare(quorate.sim.world)
        facts = await quorate.facts(row.native, **row.arguments)
        assert row.check(quorate.sim.world, facts)
