"""Who may call what: needs, missing privileges, built-in roles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pve_schema.schema import facts
from quorate.pve.privileges import Need, is_decisive, missing, needs, root_only

VERSIONS = ("9.2", "8.4")

CONFIG = "/nodes/{node}/qemu/{vmid}/config"
CLONE = "/nodes/{node}/qemu/{vmid}/clone"


def nobody(path: str, privilege: str) -> bool:
    return False


def everybody(path: str, privilege: str) -> bool:
    return True


def test_version_9_has_the_guest_agent_privileges() -> None:
    assert len(facts("9.2").privileges) == 47
    assert "VM.GuestAgent.Audit" in facts("9.2").roles["PVEAuditor"]
    assert "VM.Monitor" not in facts("9.2").roles["Administrator"]


def test_version_8_has_the_monitor_privilege_instead() -> None:
    old = facts("8.4")
    assert {"VM.Monitor"} == set(old.privileges) - set(facts("9.2").privileges)
    assert not [name for name in old.privileges if name.startswith("VM.GuestAgent.") or name == "VM.Replicate"]
    assert old.roles["Administrator"] == set(old.privileges)
    assert "VM.Monitor" in old.roles["PVEVMAdmin"]
    assert "VM.Monitor" not in old.roles["PVEVMUser"]


def test_a_need_names_the_object_of_the_call() -> None:
    start = facts("9.2").endpoint("POST", "/nodes/{node}/qemu/{vmid}/status/start")
    assert needs(start.permission, {"node": "pve1", "vmid": 100}) == [Need("/vms/100", ("VM.PowerMgmt",), any_of=False)]


def test_a_value_the_call_lacks_is_a_dash() -> None:
    start = facts("9.2").endpoint("POST", "/nodes/{node}/qemu/{vmid}/status/start")
    assert needs(start.permission, {})[0].path == "/vms/-"


def test_an_impossible_path_is_granted_to_nobody() -> None:
    status = facts("9.2").endpoint("GET", "/nodes/{node}/status")
    assert missing(status.permission, {"node": "p$e"}, everybody) == [Need("", ("Sys.Audit",), any_of=False)]


def test_only_the_lacking_privileges_are_missing() -> None:
    permission = {"check": ["perm", "/", ["Sys.Audit", "Sys.Modify"]]}
    assert missing(permission, {}, lambda _path, name: name == "Sys.Audit") == [
        Need("/", ("Sys.Modify",), any_of=False)
    ]


def test_any_one_of_several_privileges_is_enough() -> None:
    permission = facts("9.2").endpoint("PUT", CONFIG).permission
    assert missing(permission, {"vmid": 100}, lambda _path, name: name == "VM.Config.CPU") == []
    (need,) = missing(permission, {"vmid": 100}, nobody)
    assert need.any_of
    assert "VM.Config.Disk" in need.privileges


def test_a_clone_into_a_pool_may_be_allowed_by_the_pool() -> None:
    permission = facts("9.2").endpoint("POST", CLONE).permission
    granted = {("/vms/100", "VM.Clone"), ("/pool/lab", "VM.Allocate")}

    def has(path: str, name: str) -> bool:
        return (path, name) in granted

    call = {"vmid": 100, "newid": 200}
    assert missing(permission, {**call, "pool": "lab"}, has) == []
    assert missing(permission, call, has) == [Need("/vms/200", ("VM.Allocate",), any_of=False)]


def test_a_required_parameter_cannot_be_replaced_by_privileges() -> None:
    permission = {"check": ["perm", "/pool/{pool}", ["VM.Allocate"], "require_param", "pool"]}
    assert missing(permission, {}, everybody) == [Need("/pool/-", ("VM.Allocate",), any_of=False)]


def test_all_parts_of_a_conjunction_are_missing_together() -> None:
    permission = {"check": ["and", ["perm", "/a", ["X"]], ["or", ["perm", "/b", ["Y"]], ["perm", "/c", ["Z"]]]]}
    assert [need.path for need in missing(permission, {}, nobody)] == ["/a", "/b"]
    assert [need.path for need in needs(permission, {})] == ["/a", "/b", "/c"]


@pytest.mark.parametrize(
    ("path", "privileges"),
    [
        ("/", ("Permissions.Modify",)),
        ("/vms", ("Permissions.Modify",)),
        ("/vms/100", ("Permissions.Modify", "VM.Allocate")),
        ("/storage/local", ("Permissions.Modify", "Datastore.Allocate")),
        ("/pool/lab", ("Permissions.Modify", "Pool.Allocate")),
        ("/nodes/pve1", ("Permissions.Modify",)),
    ],
)
def test_rights_are_handed_out_by_who_may_allocate(path: str, privileges: tuple[str, ...]) -> None:
    permission = facts("9.2").endpoint("PUT", "/access/acl").permission
    assert missing(permission, {"path": path}, nobody) == [Need(path, privileges, any_of=True)]


def test_checks_about_a_user_are_left_to_the_server() -> None:
    permission = facts("9.2").endpoint("PUT", "/access/password").permission
    assert missing(permission, {"userid": "alice@pve"}, nobody) == []
    assert needs(permission, {"userid": "alice@pve"}) == []


@pytest.mark.parametrize("template", ["/access", "/access/domains", "/cluster/options"])
def test_what_is_open_to_all_needs_nothing(template: str) -> None:
    permission = facts("9.2").endpoint("GET", template).permission
    assert missing(permission, {}, nobody) == []
    assert needs(permission, {}) == []


def test_no_permission_means_root_alone() -> None:
    assert root_only(facts("9.2").endpoint("POST", "/cluster/acme/account").permission)
    assert not root_only(facts("9.2").endpoint("GET", "/version").permission)


def kinds(check: list[Any]) -> Iterator[str]:
    yield check[0]
    if check[0] in ("and", "or"):
        for part in check[1:]:
            yield from kinds(part)


def test_every_permission_of_both_tables_is_understood() -> None:
    seen: set[str] = set()
    for table, endpoint in [(facts(name), endpoint) for name in VERSIONS for endpoint in facts(name).endpoints()]:
        permission = endpoint.permission
        values = dict.fromkeys(endpoint.parameters, "x")
        named = needs(permission, values)
        assert all(need.path and need.privileges for need in named), endpoint
        assert {name for need in named for name in need.privileges} <= set(table.privileges), endpoint
        assert missing(permission, values, everybody) == []
        lacking = missing(permission, values, nobody)
        assert {need.path for need in lacking} <= {need.path for need in named}
        if permission is not None and "check" in permission:
            seen.update(kinds(permission["check"]))
    assert seen == {"and", "or", "perm", "perm-modify", "userid-group", "userid-param"}


@pytest.mark.parametrize(
    ("method", "template", "decisive"),
    [
        ("POST", "/nodes/{node}/qemu/{vmid}/status/start", True),
        ("POST", "/nodes/{node}/qemu/{vmid}/snapshot/{snapname}/rollback", True),
        ("PUT", "/access/acl", True),
        ("POST", "/access/users", False),
        ("POST", "/nodes/{node}/vzdump", False),
        ("PUT", "/nodes/{node}/qemu/{vmid}/config", False),
    ],
)
def test_an_expression_is_decisive_unless_the_code_of_pve_checks_more(
    method: str, template: str, decisive: bool
) -> None:
    assert is_decisive(facts("9.2").endpoint(method, template).permission) is decisive
