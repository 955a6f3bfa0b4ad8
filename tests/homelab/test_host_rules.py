"""Rules about hosts hold for every operation, under every name that a machine has."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorate.config import Access
from quorate.config.policy import Policy, Rule
from quorate.pipeline.caller import Caller
from quorate.pipeline.explanation import explain
from tests.rigs.homelab import house
from tests.rigs.simulated_guests import reach_by_ssh
from tests.rigs.ssh_server import HOST

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def ruled(tmp_path: Path, *rules: Rule, **options: Any):
    """Two hosts, registered before the rules come into force."""
    async with house(tmp_path, {"nas": {}, "pi": {}}, register=False, **options) as built:
        await built.register("nas", labels=["prod", "role=nas"])
        await built.register("pi", labels=["lab"])
        app = built.quorate.app
        app.adopt(replace(app.settings, policy=Policy(rules)))
        yield built


def deny(level: str, **conditions: Any) -> Rule:
    return Rule("mine", False, level, **conditions)


def allow(level: str, **conditions: Any) -> Rule:
    return Rule("mine", True, level, **conditions)


def at(built: Any, name: str) -> dict[str, Any]:
    return {"address": HOST, "port": built.hosts[name].port, "key": str(built.hosts[name].key_file), "verify": False}


@pytest.mark.parametrize("pattern", ["nas", "NA*", "label:prod", "label:role=*"])
async def test_hosts_that_are_denied_by_name_or_label_are_not_changed(tmp_path, pattern):
    async with ruled(tmp_path, deny("change", hosts=(pattern,))) as built:
        for tool, arguments in (
            ("host_exec", {"command": ["true"]}),
            ("host_update", {"display_name": "x"}),
            ("host_remove", {}),
        ):
            assert "'mine'" in await built.quorate.refusal(tool, host="nas", **arguments)
        await built.quorate.facts("host_exec", host="pi", command=["true"])
        assert (await built.quorate.facts("host_verify", host="nas"))["verified"] is True


async def test_a_denied_host_is_denied_by_its_address_and_under_a_new_name(tmp_path):
    async with ruled(tmp_path, deny("change", hosts=("nas",))) as built:
        nas = built.hosts["nas"]
        for ref in (f"{HOST}:{nas.port}", f"tester@localhost:{nas.port}", f"127.1:{nas.port}"):
            text = await built.quorate.refusal("host_exec", host=ref, command=["true"], key=str(nas.key_file))
            assert "'mine'" in text
            assert nas.commands == []
        assert "'mine'" in await built.quorate.refusal("host_register", host="other", **at(built, "nas"))
        text = await built.quorate.refusal("host_update", host="pi", address="localhost", port=nas.port)
        assert "'mine'" in text


async def test_a_denied_host_is_not_reached_by_the_port_or_the_name_of_another(tmp_path):
    async with ruled(tmp_path, deny("change", hosts=("nas",))) as built:
        nas, quorate = built.hosts["nas"], built.quorate
        key = str(nas.key_file)
        await quorate.facts("host_register", host="localhost", address="192.0.2.7", verify=False)
        for arguments in (
            {"host": f"pi:{nas.port}"},
            {"host": "tester@nas"},
        ):
            assert "'mine'" in await quorate.refusal("host_exec", command=["true"], key=key, **arguments), arguments
        assert nas.commands == []
        key = str(built.hosts["pi"].key_file)
        await quorate.facts("host_exec", host=f"tester@nas:{built.hosts['pi'].port}", command=["true"], key=key)
        assert built.hosts["pi"].commands


async def test_a_hidden_host_is_no_jump_host(tmp_path):
    async with ruled(tmp_path) as built:
        await built.quorate.facts("host_register", host="again", **at(built, "nas"))
        await built.quorate.facts("host_update", host="pi", jump="again")
        app = built.quorate.app
        app.adopt(replace(app.settings, policy=Policy((deny("look_inside", hosts=("nas",)),))))
        assert "'mine'" in (await built.quorate.facts("host_verify", host="pi"))["why"]
        assert built.hosts["nas"].connections == []


async def test_a_host_registered_under_two_names_is_denied_by_both(tmp_path):
    async with ruled(tmp_path) as built:
        await built.quorate.facts("host_register", host="second", **at(built, "nas"))
        app = built.quorate.app
        app.adopt(replace(app.settings, policy=Policy((deny("look_inside", hosts=("nas",)),))))
        assert "'mine'" in await built.quorate.refusal("host_exec", host="second", command=["true"])
        assert "'mine'" in (await built.quorate.facts("host_verify", host="second"))["why"]
        assert built.hosts["nas"].commands == []


async def test_a_label_that_protects_cannot_be_taken_off(tmp_path):
    async with ruled(tmp_path, deny("destroy", hosts=("label:prod",))) as built:
        text = await built.quorate.refusal("host_update", host="nas", labels=["lab"])
        assert "no longer protect" in text
        await built.quorate.facts("host_update", host="nas", labels=["prod", "lab"])


async def test_only_the_hosts_that_a_rule_allows_are_changed_or_looked_into(tmp_path):
    async with ruled(tmp_path, allow("change", hosts=("label:lab",))) as built:
        quorate = built.quorate
        await quorate.facts("host_exec", host="pi", command=["true"])
        for host in ("nas", f"{HOST}:{built.hosts['nas'].port}"):
            assert "no rule allows" in await quorate.refusal("host_exec", host=host, command=["true"])
        assert "no rule allows" in await quorate.refusal("host_verify", host="nas")
        assert "no rule allows" in await quorate.refusal("host_update", host="nas", labels=["lab"])
        assert "no rule allows" in await quorate.refusal(
            "host_register", host="mine", labels=["lab"], **{**at(built, "nas"), "port": 2}
        )
        assert {row["name"] for row in await quorate.rows("host_list", clusters=False)} == {"nas", "pi"}


async def test_an_address_that_a_rule_allows_may_be_registered(tmp_path):
    async with ruled(tmp_path, allow("change", hosts=("192.0.2.*",))) as built:
        await built.quorate.facts("host_register", host="fresh", address="192.0.2.9", verify=False)
        assert "no rule allows" in await built.quorate.refusal(
            "host_register", host="stale", address="198.51.100.9", verify=False
        )


async def test_a_rule_that_allows_guests_only_allows_no_host(tmp_path):
    async with ruled(tmp_path, allow("change", vmids=(range(100, 110),))) as built:
        assert "no rule allows" in await built.quorate.refusal("host_exec", host="pi", command=["true"])
        assert "no rule allows" in await built.quorate.refusal("host_verify", host="pi")


async def test_hidden_hosts_are_missing_from_the_list_and_refused_when_asked_for(tmp_path):
    async with ruled(tmp_path, deny("read", hosts=("nas",))) as built:
        assert [row["name"] for row in await built.quorate.rows("host_list", clusters=False)] == ["pi"]
        assert "'mine'" in await built.quorate.refusal("host_list", host="nas")
        assert "'mine'" in await built.quorate.refusal("host_verify", host="nas")
        assert "'mine'" in await built.quorate.refusal("host_update", host="pi", jump="nas")


async def test_a_rule_for_the_homelab_leaves_the_clusters_alone(tmp_path):
    async with ruled(tmp_path, deny("change", clusters=("homelab",))) as built:
        assert "'mine'" in await built.quorate.refusal("host_exec", host="pi", command=["true"])
        await built.quorate.facts("guest_power", guest=108, action="start")


# -- hosts that are nodes or guests ------------------------------------------------------------------------------------

PROTECTED = 102
ADDRESS = "192.168.10.31"
"""What the agent of that guest tells."""


@pytest.mark.parametrize(
    "rule",
    [deny("change", tags=("prod",)), deny("change", vmids=(range(102, 103),)), deny("change", names=("docker*",))],
    ids=["tag", "vmid", "name"],
)
async def test_a_protected_guest_is_not_reached_as_a_host(tmp_path, rule):
    async with ruled(tmp_path, rule) as built:
        await built.quorate.facts("host_register", host="plain", address=ADDRESS, verify=False)
        for host in ("plain", ADDRESS, f"root@{ADDRESS}:2222", "::ffff:192.168.10.31"):
            text = await built.quorate.refusal("host_exec", host=host, command=["true"])
            assert "'mine'" in text, host
            assert "102" in text
        await built.quorate.facts("host_exec", host="pi", command=["true"])


async def test_a_hidden_guest_is_not_looked_into_as_a_host(tmp_path):
    async with ruled(tmp_path, deny("look_inside", tags=("prod",))) as built:
        await built.quorate.facts("host_register", host="plain", address=ADDRESS, verify=False)
        facts = await built.quorate.facts("host_verify", host="plain")
        assert (facts["verified"], facts["failed_at"]) == (False, "rules")
        assert "'mine'" in facts["why"]


async def test_a_protected_node_is_not_reached_as_a_host(tmp_path):
    async with ruled(tmp_path, deny("change", nodes=("pve1",))) as built:
        port = built.quorate.sim.ssh_ports["pve1"]
        text = await built.quorate.refusal("host_exec", host=f"root@{HOST}:{port}", command=["true"])
        assert "'mine'" in text
        assert "node pve1" in text


async def test_a_host_that_is_a_guest_is_used_as_that_guest_where_rules_allow_it(tmp_path):
    async with ruled(tmp_path, deny("change", vmids=(range(103, 104),))) as built:
        reach_by_ssh(built.quorate, PROTECTED, port=built.hosts["pi"].port)
        done = await built.quorate.facts("host_exec", host="pi", command=["echo", "hello"])
        assert "hello" in str(done)
        assert f"vm {PROTECTED}" in str(built.quorate.audit()[-1])


async def test_a_cluster_that_only_reads_is_not_changed_by_way_of_a_host(tmp_path):
    async with ruled(tmp_path) as built:
        app = built.quorate.app
        only_reading = tuple(replace(cluster, access=Access.READ) for cluster in app.settings.clusters)
        app.adopt(replace(app.settings, clusters=only_reading))
        text = await built.quorate.refusal("host_exec", host=f"root@{ADDRESS}", command=["true"])
        assert "which this call may not reach" in text
        await built.quorate.facts("host_exec", host="pi", command=["true"])


async def test_while_a_guarded_cluster_is_silent_no_host_is_taken_for_a_plain_one(tmp_path):
    async with ruled(tmp_path, deny("change", tags=("prod",))) as built:
        built.quorate.sim.faults.add("595")
        text = await built.quorate.refusal("host_exec", host="pi", command=["true"])
        assert "Whether this host belongs" in text
        built.quorate.sim.faults.clear()
        await built.quorate.facts("host_exec", host="pi", command=["true"])
        await built.quorate.clock.advance(3600)
        built.quorate.sim.faults.add("595")
        await built.quorate.facts("host_exec", host="pi", command=["true"])  # by what was known before


async def test_without_rules_nobody_is_asked_who_a_host_is(tmp_path):
    async with ruled(tmp_path) as built:
        mark = len(built.quorate.sim.requests)
        await built.quorate.facts("host_exec", host="pi", command=["true"])
        assert not [path for _, path in built.quorate.requests_since(mark) if "agent" in path or "config" in path]


async def test_what_would_become_of_a_look_into_a_host_is_explained_as_it_would_be_decided(tmp_path):
    async with ruled(tmp_path, deny("look_inside", hosts=("nas",))) as built:

        async def explained(host: str) -> tuple[str, str]:
            explanation = await explain(built.quorate.app.pipeline, "host_discover", {"host": host}, Caller("operator"))
            return explanation["verdict"], explanation.get("why", "")

        verdict, why = await explained("nas")
        assert (verdict, "'mine'" in why) == ("refused", True)
        assert (await explained("pi"))[0] == "allowed"
        assert (await explained("nowhere"))[0] == "allowed, but it would fail"
        assert built.hosts["pi"].commands == []
