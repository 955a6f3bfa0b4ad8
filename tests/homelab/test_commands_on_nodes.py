"""What is run on a node is DESTROY, by whichever name the node is called and whichever tool runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorate.command_rules import CommandRules
from quorate.config import Access, Approval
from quorate.config.policy import Policy, Rule
from quorate.pve.cluster import Cluster
from tests.rigs.homelab import House, house
from tests.rigs.simulated_guests import CONTAINER, VM
from tests.rigs.ssh_server import HOST

pytestmark = pytest.mark.anyio

DESTROY = ["qm", "destroy", "107", "--purge"]
NEEDS_ADMIN = "is refused at access level operate"


@asynccontextmanager
async def at_operate(tmp_path: Path, **options: Any) -> AsyncIterator[House]:
    async with house(tmp_path, access=Access.OPERATE, **options) as built:
        yield built


def address_of_node(built: House, node: str = "pve1") -> str:
    return f"root@{HOST}:{built.quorate.sim.ssh_ports[node]}"


def trust_also(trusted: Path, more: Path) -> None:
    trusted.write_text(trusted.read_text() + more.read_text())


def cluster_of(built: House) -> Cluster:
    assert built.quorate.app.cluster is not None
    return built.quorate.app.cluster


def ruled(built: House, *rules: Rule) -> None:
    app = built.quorate.app
    app.adopt(replace(app.settings, policy=Policy(rules)))


def deny(**conditions: Any) -> Rule:
    return Rule("stays", False, "destroy", **conditions)


async def test_a_command_on_a_node_needs_admin_under_every_name_of_the_node(tmp_path):
    async with at_operate(tmp_path) as built:
        quorate = built.quorate
        port, key = quorate.sim.ssh_ports["pve1"], str(quorate.sim.ssh_key_file)
        arguments = {"address": HOST, "port": port, "user": "root", "key": key, "verify": False}
        await quorate.facts("host_register", host="harmless", **arguments)
        for host in (
            "pve1",
            f"{cluster_of(built).name}/pve1",
            "harmless",
            address_of_node(built),
            f"localhost:{port}",
        ):
            for command in (DESTROY, "true"):
                words = await quorate.refusal("host_exec", host=host, command=command)
                assert NEEDS_ADMIN in words, (host, words)
                assert "node" in words
        assert all(method == "GET" for method, _ in quorate.sim.requests)


async def test_every_address_of_a_node_is_the_node(tmp_path):
    """Also those of its other network cards, which the cluster does not use."""
    async with at_operate(tmp_path) as built:
        cards = await cluster_of(built).get("/nodes/pve1/network")
        addresses = [card["address"] for card in cards if card.get("address")]
        assert addresses
        for address in addresses:
            assert NEEDS_ADMIN in await built.quorate.refusal("host_exec", host=address, command=["true"])


async def test_a_node_that_no_cluster_tells_of_shows_itself(tmp_path):
    """Behind a forwarded port, for example: the machine is asked before anything is run."""
    async with at_operate(tmp_path) as built:
        access = cluster_of(built).ssh
        access.settings = replace(access.settings, node_hosts={})
        sim, trusted = built.quorate.sim, built.hosts["nas"].known_hosts
        trust_also(trusted, Path(sim.ssh_known_hosts))
        key = str(sim.ssh_key_file)
        words = await built.quorate.refusal("host_exec", host=address_of_node(built), command=["true"], key=key)
        assert NEEDS_ADMIN in words
        assert "Proxmox VE node" in words


async def test_a_command_on_a_plain_host_or_in_a_guest_is_a_change(tmp_path):
    async with at_operate(tmp_path) as built:
        for host in ("nas", str(VM), str(CONTAINER)):
            assert (await built.quorate.facts("host_exec", host=host, command=["echo", "x"]))["stdout"] == "x\n"
        await built.quorate.facts("guest_exec", guest=VM, command=["true"])


async def test_while_a_cluster_is_silent_a_host_may_be_one_of_its_nodes(tmp_path):
    async with at_operate(tmp_path) as built:
        built.quorate.sim.faults.add("595")
        assert NEEDS_ADMIN in await built.quorate.refusal("host_exec", host="nas", command=["true"])
        built.quorate.sim.faults.clear()
        await built.quorate.facts("host_exec", host="nas", command=["true"])


async def test_no_other_tool_changes_a_node_at_operate(tmp_path):
    async with at_operate(tmp_path) as built:
        changes = {"network": {"hostname": "other"}}
        assert NEEDS_ADMIN in await built.quorate.refusal("device_update", device="pve1", changes=changes, backup=False)
        assert NEEDS_ADMIN in await built.quorate.refusal("script_run", node="pve1", script="anything")


async def test_a_command_on_a_node_is_approved_by_a_person(tmp_path):
    async with house(tmp_path, approval=Approval.ASK) as built:
        assert "waits for" in await built.quorate.refusal("host_exec", host="pve1", command=["true"], wait=0)
        await built.quorate.facts("host_exec", host="nas", command=["true"])


# -- rules -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [deny(tags=("prod",)), deny(vmids=(range(107, 108),)), deny(storages=("local*",)), deny(nodes=("pve2",)), deny()],
    ids=["tag", "vmid", "storage", "another node", "everything"],
)
async def test_a_rule_that_denies_destruction_anywhere_in_the_cluster_denies_commands_on_its_nodes(tmp_path, rule):
    """Root on one node is root on all of them, and `pvesh` reaches every guest."""
    async with house(tmp_path) as built:
        ruled(built, rule)
        for host in ("pve1", address_of_node(built)):
            words = await built.quorate.refusal("host_exec", host=host, command=DESTROY)
            assert "'stays'" in words
            assert "107 " not in words, "what the rule protects may be hidden from the caller"


async def test_a_rule_that_denies_destruction_of_a_guest_denies_commands_and_files_in_it(tmp_path):
    async with house(tmp_path, toolsets=("hosts", "guests", "inside", "api")) as built:
        ruled(built, deny(vmids=(range(VM, VM + 1),)))
        quorate = built.quorate
        for tool, arguments in (
            ("guest_exec", {"guest": VM, "command": ["true"]}),
            ("guest_file_write", {"guest": VM, "path": "/srv/x", "content": "x"}),
            ("host_exec", {"host": str(VM), "command": ["true"]}),
            ("api_call", {"method": "POST", "path": f"/nodes/pve1/qemu/{VM}/agent/exec", "params": {"command": "id"}}),
        ):
            words = await quorate.refusal(tool, **arguments)
            assert "'stays'" in words, tool
        await quorate.facts("guest_exec", guest=CONTAINER, command=["true"])
        await quorate.facts("guest_service_control", guest=VM, service="ssh", action="restart")


async def test_a_rule_that_denies_destruction_of_a_host_denies_commands_and_workloads_on_it(tmp_path):
    async with house(tmp_path) as built:
        ruled(built, deny(hosts=("nas",)))
        words = await built.quorate.refusal("host_exec", host="nas", command=["true"])
        assert "'stays'" in words
        assert "[inside]" in words


async def test_a_pattern_that_names_the_command_lets_it_through(tmp_path):
    rules = CommandRules(allow=("hostname", "write /srv/www/*"))
    async with house(tmp_path, more={"command_rules": rules}) as built:
        ruled(built, deny(vmids=(range(VM, VM + 1),)), deny(hosts=("nas",)), deny(nodes=("pve1",)))
        quorate = built.quorate
        await quorate.facts("guest_exec", guest=VM, command=["hostname"])
        await quorate.facts("host_exec", host="nas", command=["hostname"])
        await quorate.facts("guest_file_write", guest=VM, path="/srv/www/index", content="x", parents=True)
        assert "matches none" in await quorate.refusal("guest_exec", guest=VM, command=["id"])


async def test_a_rule_that_allows_changes_allows_commands(tmp_path):
    async with house(tmp_path) as built:
        ruled(built, Rule("lab", True, "change", vmids=(range(VM, VM + 1),)))
        await built.quorate.facts("guest_exec", guest=VM, command=["true"])
        assert "no rule allows" in await built.quorate.refusal("host_exec", host="pve1", command=["true"])
