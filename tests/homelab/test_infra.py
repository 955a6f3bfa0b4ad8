"""Infrastructure documents: checked, compared with what is there, applied, gone on with after a failure."""

from __future__ import annotations

import pytest

from tests.homelab.infra_lab import InfraLab, infra_lab

pytestmark = pytest.mark.anyio


def wanted(lab: InfraLab, **changes):
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
        plan = await lab.quorate.facts("infra_plan", document=wanted(lab))
        assert [(one["what"], one["action"]) for one in plan["changes"]] == [
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
        again = await lab.quorate.facts("infra_apply", document=wanted(lab))
        assert again["result"] == "nothing to do"
        assert [len(engine.changes) for engine in lab.engines.values()] == before
        told = await lab.quorate.facts("infra_plan", plan="lab")
        assert told["result"] == {"none": 4}
        assert {one["state"] for one in told["last_run"]} == {"done"}
