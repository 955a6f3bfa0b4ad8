"""Infrastructure documents: checked, compared with what is there, applied, gone on with after a failure."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from quorate.config import Access
from quorate.homelab.infra.document import examine_document
from tests import paths
from tests.rigs.infra_hosts import InfraLab, infra_lab

pytestmark = pytest.mark.anyio


def lab_document(lab: InfraLab, **changes):
    return {
        "name": "lab",
        "hosts": {"one": lab.host("one"), "two": lab.host("two", labels=["quiet"])},
        "workloads": {
            "web": {"host": "two", "image": "nginx:1.27", "ports": ["8080:80"], "needs": ["db"]},
            "db": {"host": "one", "image": "postgres:16", "volumes": ["data:/data"], "env": {"PGDATA": "/data"}},
        },
        **changes,
    }


async def test_a_document_is_planned_applied_and_then_there_is_nothing_to_do(tmp_path):
    async with infra_lab(tmp_path) as lab:
        plan = await lab.quorate.facts("infra_plan", document=lab_document(lab))
        assert [(change["what"], change["action"]) for change in plan["changes"]] == [
            ("host one", "create"), ("host two", "create"), ("workload db", "create"), ("workload web", "create"),
        ]  # fmt: skip
        assert lab.engines["one"].containers == {}
        done = await lab.quorate.facts("infra_apply", plan=plan["plan"])
        assert done["result"] == "done"
        assert [step["step"] for step in done["steps"]][2:] == [
            "Create workload db on one",
            "Create workload web on two",
        ]
        assert lab.running("one") == {"db": "postgres:16"}
        assert lab.running("two") == {"web": "nginx:1.27"}
        before = [len(engine.changes) for engine in lab.engines.values()]
        again = await lab.quorate.facts("infra_apply", document=lab_document(lab))
        assert again["result"] == "nothing to do"
        assert [len(engine.changes) for engine in lab.engines.values()] == before
        facts = await lab.quorate.facts("infra_plan", plan="lab")
        assert facts["result"] == {"none": 4}
        assert {step["state"] for step in facts["last_run"]} == {"done"}


async def test_a_document_that_everything_matches_is_stored(tmp_path):
    async with infra_lab(tmp_path, register=True) as lab:
        document = {"name": "small", "workloads": {"cache": {"host": "one", "image": "redis:7"}}}
        await lab.quorate.facts("infra_apply", document=document)
        other = {**document, "name": "other"}
        shown = await lab.quorate.facts("infra_apply", document=other, dry_run=True)
        assert [step["step"] for step in shown["steps"]] == ["Store the document: everything matches it"]
        assert "There is no plan 'other'" in await lab.quorate.refusal("infra_plan", plan="other")
        assert (await lab.quorate.facts("infra_apply", document=other))["result"] == "done"
        assert (await lab.quorate.facts("infra_plan", plan="other"))["result"] == {"none": 1}
        assert (await lab.quorate.facts("infra_apply", document=other))["result"] == "nothing to do"


async def test_a_dry_run_and_a_plan_change_nothing(tmp_path):
    async with infra_lab(tmp_path) as lab:
        facts = await lab.quorate.facts("infra_apply", document=lab_document(lab), dry_run=True)
        assert len(facts["steps"]) == 4
        assert lab.engines["one"].changes == []
        assert await lab.quorate.rows("host_list", clusters=False) == []


async def test_yaml_is_read_as_well_as_an_object(tmp_path):
    async with infra_lab(tmp_path, register=True) as lab:
        text = """
        name: small
        workloads:
          cache: {host: one, image: "redis:7"}
        """
        assert (await lab.quorate.facts("infra_apply", document=text))["result"] == "done"
        assert lab.running("one") == {"cache": "redis:7"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "no good"}, "name: must consist of letters"),
        ({"things": {}}, "things: is unknown"),
        ({"workloads": {"web": {"host": "one"}}}, "workloads.web: Object missing required field `image`"),
        ({"workloads": {"web": {"host": "one", "image": "x", "prots": []}}}, "unknown field `prots`"),
        ({"workloads": {"web": {"host": "one", "image": "x", "ports": ["80;x"]}}}, "web: '80;x' is not a port"),
        ({"workloads": {"web": {"host": "one", "image": "x", "cpus": "many"}}}, "workloads.web.cpus: Expected `float"),
        ({"workloads": {"web": {"host": "one", "image": "x", "needs": ["nobody"]}}}, "no item 'nobody'"),
        ({"workloads": {"a": {"host": "one", "image": "x", "needs": ["b"]},
                        "b": {"host": "one", "image": "x", "needs": ["a"]}}}, "a -> b -> a"),
        ({"workloads": {"a": {"host": "one", "image": "x", "ports": ["80:80"]},
                        "b": {"host": "one", "image": "x", "ports": ["80:81"]}}}, "80/tcp also belongs to workload a"),
        ({"workloads": {"a": {"host": "one", "image": "x", "replicas": 2},
                        "a-2": {"host": "one", "image": "x"}}}, "a copy of workload a is also named a-2"),
        ({"workloads": {"one": {"host": "one", "image": "x"}}}, "host one has the same name"),
        ({"workloads": {"a": {"host": "one", "image": "x", "env": {"DB_PASSWORD": "hunter2"}}}}, "under secrets"),
        ({"guests": {"g": {"type": "ct"}}}, "a container needs a template"),
    ],
)  # fmt: skip
async def test_faults_are_reported_with_their_path_and_nothing_is_done(tmp_path, changes, says):
    async with infra_lab(tmp_path) as lab:
        document = lab_document(lab, **changes)
        facts = await lab.quorate.facts("infra_validate", document=document, level="basic")
        assert not facts["valid"]
        assert any(says in error for error in facts["errors"]), facts["errors"]
        assert "The document cannot be used" in await lab.quorate.refusal("infra_apply", document=document)
        assert lab.engines["one"].changes == []


async def test_aliases_that_would_grow_without_end_are_refused(tmp_path):
    async with infra_lab(tmp_path) as lab:
        bomb = "a: &a [x, x]\nb: &b [*a, *a]\nname: [*b, *b]\n"
        assert "YAML aliases" in await lab.quorate.refusal("infra_validate", document=bomb)


async def test_differences_are_shown_field_by_field_and_replacing_counts_as_destroying(tmp_path):
    async with infra_lab(tmp_path) as lab:
        await lab.quorate.facts("infra_apply", document=lab_document(lab))
        document = lab_document(lab)
        document["workloads"]["web"] |= {"image": "nginx:1.28", "memory": "256M"}
        document["hosts"]["two"]["labels"] = ["loud"]
        plan = await lab.quorate.facts("infra_plan", document=document)
        changes = {change["what"]: change for change in plan["changes"]}
        assert changes["workload web"]["action"] == "update"
        assert {"field": "image", "now": "nginx:1.27", "wanted": "nginx:1.28"} in changes["workload web"]["changes"]
        assert changes["host two"]["changes"] == [{"field": "labels", "now": ["quiet"], "wanted": ["loud"]}]
        assert "workload db" in plan["as_wanted"]
        await lab.quorate.facts("infra_apply", document=document)
        assert lab.running("two") == {"web": "nginx:1.28"}
        assert lab.quorate.audit()[-1]["risk"] == "destroy"
        assert lab.quorate.audit()[-2]["risk"] == "change"


async def test_replacing_needs_the_access_level_that_destroying_needs(tmp_path):
    async with infra_lab(tmp_path, access=Access.OPERATE) as lab:
        await lab.quorate.facts("infra_apply", document=lab_document(lab))
        document = lab_document(lab)
        document["workloads"]["web"]["image"] = "nginx:1.28"
        assert "access" in await lab.quorate.refusal("infra_apply", document=document)
        assert lab.running("two") == {"web": "nginx:1.27"}


async def test_another_value_of_a_secret_is_noticed_although_nobody_can_read_it_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HOMELAB_DB", "first-secret")
    async with infra_lab(tmp_path) as lab:
        document = lab_document(lab)
        document["workloads"]["db"]["secrets"] = {"POSTGRES_PASSWORD": "env:HOMELAB_DB"}
        await lab.quorate.facts("infra_apply", document=document)
        assert "POSTGRES_PASSWORD=first-secret" in lab.engines["one"].bodies[0]["Env"]
        assert (await lab.quorate.facts("infra_plan", document=document))["result"] == {"none": 4}
        monkeypatch.setenv("HOMELAB_DB", "second-secret")
        plan = await lab.quorate.facts("infra_plan", document=document)
        assert plan["changes"][0]["changes"][0]["field"] == "env or command"
        everything = b"".join(file.read_bytes() for file in (tmp_path / "house").rglob("*") if file.is_file())
        assert b"first-secret" not in everything


@pytest.mark.thorough
async def test_what_is_wanted_no_more_is_left_unless_pruning_is_asked_for(tmp_path):
    async with infra_lab(tmp_path) as lab:
        await lab.quorate.facts("infra_apply", document=lab_document(lab))
        lab.engines["two"].add("stranger", "someone:1")
        less = lab_document(lab, workloads={"db": lab_document(lab)["workloads"]["db"]})
        plan = await lab.quorate.facts("infra_plan", document=less)
        assert plan["left_over"] == ["workload web on two"]
        assert (await lab.quorate.facts("infra_apply", document=less))["result"] == "nothing to do"
        done = await lab.quorate.facts("infra_apply", document=less, prune=True)
        assert done["result"] == "done"
        assert lab.running("two") == {"stranger": "someone:1"}
        assert "left_over" not in await lab.quorate.facts("infra_plan", document=less)


@pytest.mark.thorough
async def test_validation_measures_the_hosts(tmp_path):
    async with infra_lab(tmp_path) as lab:
        document = lab_document(lab)
        document["workloads"]["db"]["memory"] = "900T"
        document["hosts"]["away"] = {**lab.host("two"), "port": 1}
        facts = await lab.quorate.facts("infra_validate", document=document)
        assert any("memory free" in error for error in facts["errors"]), facts
        assert any(error.startswith("hosts.away") for error in facts["errors"]), facts
        fine = await lab.quorate.facts("infra_validate", document=lab_document(lab), level="simulation")
        assert fine["valid"], fine
        assert fine["order"] == ["host one", "host two", "workload db", "workload web"]
        assert lab.engines["one"].changes == []


@pytest.mark.thorough
async def test_copies_get_ports_one_after_the_other_and_fewer_of_them_remove_the_last(tmp_path):
    async with infra_lab(tmp_path) as lab:
        await lab.quorate.facts("infra_apply", document=lab_document(lab))
        await lab.quorate.facts("infra_scale", name="web", replicas=3)
        assert set(lab.running("two")) == {"web", "web-2", "web-3"}
        outside = [body["HostConfig"]["PortBindings"]["80/tcp"][0]["HostPort"] for body in lab.engines["two"].bodies]
        assert outside == ["8080", "8081", "8082"]
        done = await lab.quorate.facts("infra_scale", name="web", replicas=1)
        assert [step["step"] for step in done["steps"]] == [
            "Remove workload web-3 on two",
            "Remove workload web-2 on two",
        ]
        assert lab.running("two") == {"web": "nginx:1.27"}
        assert "No applied document" in await lab.quorate.refusal("infra_scale", name="wep", replicas=2)


@pytest.mark.thorough
async def test_a_step_that_outlasts_the_call_goes_on_and_the_rest_is_done_by_the_next(tmp_path):
    async with infra_lab(tmp_path, register=True) as lab:
        document = lab_document(lab, hosts={})
        lab.engines["one"].pulling.clear()
        facts = await lab.quorate.facts("infra_apply", document=document, wait=0.2)
        assert [step["state"] for step in facts["steps"]] == ["running", "not tried"]
        assert "infra_apply plan=lab-" in facts["next"]
        assert "still being deployed" in await lab.quorate.refusal("infra_apply", document=document)
        lab.engines["one"].pulling.set()
        while "db" not in lab.running("one"):
            await anyio.lowlevel.checkpoint()
        while (await lab.quorate.facts("infra_plan", document=document))["result"] != {"create": 1, "none": 1}:
            await anyio.lowlevel.checkpoint()
        assert (await lab.quorate.facts("infra_apply", document=document))["result"] == "done"
        left = await lab.quorate.facts("infra_plan", document={"name": "lab"})
        assert left["left_over"] == ["workload web on two", "workload db on one"]


def test_the_document_of_the_manual_is_right():
    text = (paths.DOCS / "homelab/infra.md").read_text()
    document, faults = examine_document(text.split("```yaml\n")[1].split("```")[0])
    assert faults == []
    assert [str(item) for item in document.order()] == [
        "host nas", "guest web01", "workload db", "workload app", "service pihole"
    ]  # fmt: skip
