"""Infrastructure documents with guests of a cluster: made, changed, copied and removed by the cluster's own tools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quorate.command_rules import CommandRules
from quorate.config.policy import Policy, Rule
from tests.rigs.infra_hosts import infra_lab
from tests.rigs.ssh_server import HOST

pytestmark = pytest.mark.anyio

WEB = {"type": "ct", "template": "debian-13", "memory": "1G", "cores": 1}


async def guests(lab) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in await lab.quorate.rows("guest_list")}


async def test_a_container_is_made_then_changed_then_left_alone(tmp_path):
    async with infra_lab(tmp_path, "one", register=True) as lab:
        document: dict[str, Any] = {"name": "farm", "guests": {"web": WEB}}
        done = await lab.quorate.facts("infra_apply", document=document)
        assert done["result"] == "done"
        assert (await guests(lab))["web"]["status"] == "running"
        assert (await lab.quorate.facts("infra_apply", document=document))["result"] == "nothing to do"
        document["guests"]["web"] = {**WEB, "memory": "2G", "running": False}
        plan = await lab.quorate.facts("infra_plan", document=document)
        assert [change["field"] for change in plan["changes"][0]["changes"]] == ["memory", "running"]
        await lab.quorate.facts("infra_apply", document=document)
        assert (await guests(lab))["web"]["status"] == "stopped"
        assert (await lab.quorate.facts("infra_plan", document=document))["result"] == {"none": 1}


async def test_copies_of_a_template_are_made_and_removed_with_their_number(tmp_path):
    async with infra_lab(tmp_path, "one", register=True) as lab:
        worker = {"type": "vm", "clone": "debian-13-cloud", "running": False}
        await lab.quorate.facts("infra_apply", document={"name": "farm", "guests": {"worker": worker}})
        await lab.quorate.facts("infra_scale", name="worker", replicas=3)
        assert {"worker", "worker-2", "worker-3"} <= set(await guests(lab))
        await lab.quorate.facts("infra_scale", name="worker", replicas=1)
        assert {name for name in await guests(lab) if name.startswith("worker")} == {"worker"}
        assert lab.quorate.audit()[-1]["risk"] == "destroy"


async def test_a_guest_that_nobody_made_here_is_never_removed(tmp_path):
    async with infra_lab(tmp_path, "one", register=True) as lab:
        known = {"type": "ct", "template": "debian-13"}
        document = {"name": "farm", "guests": {"grafana": known, "web": WEB}}
        await lab.quorate.facts("infra_apply", document=document)
        await lab.quorate.facts("infra_apply", document={"name": "farm", "guests": {}}, prune=True)
        assert "grafana" in await guests(lab)
        assert "web" not in await guests(lab)


async def test_patterns_for_commands_hold_for_what_a_new_container_runs(tmp_path):
    async with infra_lab(tmp_path, "one", register=True) as lab:
        cluster = lab.quorate.app.cluster
        assert cluster is not None
        cluster.command_rules = CommandRules(allow=("/sbin/init",))

        def document(**options: str) -> dict[str, Any]:
            return {"name": "farm", "guests": {"web": {**WEB, "settings": {"options": options}}}}

        for runs in (document(entrypoint="/bin/sh -c reboot"), document(env="LD_PRELOAD=/srv/x.so")):
            assert "is refused" in await lab.quorate.refusal("infra_apply", document=runs)
        await lab.quorate.facts("infra_apply", document=document(entrypoint="/sbin/init"), dry_run=True)


async def test_rules_of_the_cluster_and_of_hosts_hold_for_every_step_of_a_document(tmp_path):
    rules = (Rule("no-node", False, "change", nodes=("pve1",)), Rule("no-host", False, "change", hosts=("one",)))
    async with infra_lab(tmp_path, "one", register=True) as lab:
        lab.quorate.app.adopt(replace(lab.quorate.app.settings, policy=Policy(rules)))
        web = {**WEB, "settings": {"node": "pve1"}}
        refusal = await lab.quorate.refusal("infra_apply", document={"name": "farm", "guests": {"web": web}})
        assert "no-node" in refusal
        page = {"host": "one", "image": "nginx:1"}
        refusal = await lab.quorate.refusal("infra_apply", document={"name": "farm", "workloads": {"page": page}})
        assert "no-host" in refusal
        other = lab.host("one")
        refusal = await lab.quorate.refusal("infra_apply", document={"name": "farm", "hosts": {"again": other}})
        assert "no-host" in refusal
        assert "web" not in await guests(lab)
        assert lab.engines["one"].changes == []


async def test_what_needs_a_guest_waits_until_it_is_made(tmp_path):
    async with infra_lab(tmp_path, "one", register=True) as lab:
        document = {
            "name": "farm",
            "guests": {"web": WEB},
            "workloads": {"page": {"host": "web", "image": "nginx:1"}},
        }
        plan = await lab.quorate.facts("infra_plan", document=document)
        assert plan["changes"][1] == {
            "what": "workload page", "on": "web", "action": "create", "why": "web is created first"
        }  # fmt: skip
        answer = await lab.quorate.call("infra_apply", document=document)
        steps = answer.structured_content["steps"]
        assert steps[0]["state"] == "done"
        assert steps[1]["state"] == "failed"  # a bare Debian has no container engine, and that is said
        assert "container engine" in steps[1]["why"]


async def test_a_host_of_a_document_that_turns_out_to_be_a_protected_node_is_not_touched(tmp_path):
    async with infra_lab(tmp_path, "one", register=True) as lab:
        rules = (Rule("no-node", False, "change", nodes=("pve1",)),)
        lab.quorate.app.adopt(replace(lab.quorate.app.settings, policy=Policy(rules)))
        plain = {"address": HOST, "port": lab.quorate.sim.ssh_ports["pve1"], "user": "root"}
        document = {
            "name": "farm",
            "hosts": {"plain": plain},
            "workloads": {"page": {"host": "plain", "image": "nginx:1"}},
        }
        answer = await lab.quorate.call("infra_apply", document=document)
        steps = answer.structured_content["steps"]
        assert [step["state"] for step in steps] == ["done", "failed"]
        assert "plain is a different machine than expected: it is node pve1" in steps[1]["why"]


@pytest.mark.parametrize(
    ("guest", "message"),
    [
        ({**WEB, "settings": {"disks": ["4G"]}}, "settings of web has no 'disks'"),
        ({**WEB, "settings": {"dry_run": True}}, "settings of web has no 'dry_run'"),
        ({**WEB, "settings": {"hostname": "other"}}, "settings.hostname comes from the document itself"),
        ({**WEB, "settings": {"cores": 4}}, "settings.cores comes from the document itself"),
        ({"type": "vm", "settings": {"networks": 7}}, "settings of web cannot be used"),
        ({"type": "vm", "clone": "debian-13-cloud", "settings": {"options": {}}}, "settings of web has no 'options'"),
    ],
)
async def test_settings_that_the_tool_would_refuse_are_refused_in_words(tmp_path, guest, message):
    async with infra_lab(tmp_path, "one", register=True) as lab:
        text = await lab.quorate.refusal("infra_apply", document={"name": "farm", "guests": {"web": guest}})
        assert message in text
        assert "web" not in await guests(lab)
