"""Infrastructure documents with services of the catalog."""

from __future__ import annotations

import pytest

from tests.rigs.compose_host import ComposeHost
from tests.rigs.homelab import house

pytestmark = pytest.mark.anyio


async def test_a_service_is_installed_changed_mended_and_taken_away_by_its_document(tmp_path):
    host = ComposeHost(tmp_path / "box-machine")
    async with host.page() as port, house(tmp_path, {"box": host.options}, homelab=host.settings) as built:
        quorate = built.quorate

        def document(**settings):
            return {"name": "lab", "services": {"page": {"host": "box", "settings": {"web_port": port, **settings}}}}

        await quorate.facts("infra_apply", document=document())
        assert (await quorate.facts("infra_plan", document=document()))["result"] == {"none": 1}
        plan = await quorate.facts("infra_plan", document=document(colour="blue"))
        assert plan["changes"][0]["changes"] == [{"field": "settings.colour", "now": "red", "wanted": "blue"}]
        await quorate.facts("infra_apply", document=document(colour="blue"))
        folder = tmp_path / "box-machine"
        [compose] = folder.rglob("compose.yaml")
        compose.write_text("services: {}\n")
        drift = await quorate.facts("infra_plan", document=document(colour="blue"))
        assert drift["changes"][0]["changes"][0]["now"] == "compose.yaml was changed"
        await quorate.facts("infra_apply", document=document(colour="blue"))
        assert (await quorate.facts("infra_plan", document=document(colour="blue")))["result"] == {"none": 1}
        assert "the service page is installed there" in await quorate.refusal("device_decommission", device="box")
        gone = await quorate.facts("infra_apply", document={"name": "lab"}, prune=True)
        assert gone["result"] == "done"
        assert "changes" not in await quorate.facts("infra_plan", document={"name": "lab"}, prune=True)


async def test_validation_reports_a_service_that_is_not_in_the_catalog(tmp_path):
    async with house(tmp_path, {}) as built:
        document = {"name": "lab", "services": {"pihol": {"host": "box"}}}
        facts = await built.quorate.facts("infra_validate", document=document, level="basic")
        assert any("Did you mean 'pihole'" in error for error in facts["errors"])
