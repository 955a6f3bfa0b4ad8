"""The watch within the HTTP server: its metrics, and what packaging offers for them."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from quorate.config.watch import WatchSettings
from quorate.runs.store import Run, RunState, RunStore
from quorate.state.limits import Freeze
from tests import paths
from tests.rigs.console import ask_to_delete, browser, console, form_with
from tests.rigs.mcp_session import text_of
from tests.rigs.receivers import http_receiver
from tests.rigs.several_clusters import several_clusters
from tests.rigs.web_server import served, web
from tests.watch.test_channels import channel

pytestmark = pytest.mark.anyio

PACKAGING = paths.ROOT / "packaging"


async def test_findings_are_metrics_once_something_is_watched(tmp_path):
    async with web(tmp_path, more={"watch": WatchSettings()}) as quorate:
        token = await quorate.token("prometheus")
        before = await quorate.numbers(token)
        assert not [name for name in before if name.startswith("quorate_findings")]
        watch = quorate.rig.app.watch
        assert watch is not None
        await watch.step()
        numbers = await quorate.numbers(token)
        missing = 'quorate_findings{cluster="demo",kind="backup-missing",severity="warning",state="open"}'
        assert numbers[missing] == 1
        assert numbers['quorate_watch_cycle_requests{cluster="demo"}'] <= 48
        assert numbers['quorate_watch_last_cycle_timestamp_seconds{cluster="demo"}'] > 1e9


async def test_a_token_for_one_cluster_learns_nothing_of_another_from_the_watch(tmp_path):
    both = several_clusters(tmp_path, "prod", "edge", more={"watch": WatchSettings(), "toolsets": ("all",)})
    async with both as inner, served(inner) as quorate:
        assert inner.app.watch is not None
        await inner.app.watch.step()
        everything, limited = await quorate.token("all"), await quorate.token("prod-only", clusters=["prod", "homelab"])
        assert [name for name in await quorate.numbers(everything) if 'cluster="edge"' in name]
        seen = await quorate.numbers(limited)
        assert [name for name in seen if 'cluster="prod"' in name]
        assert not [name for name in seen if "edge" in name]
        await inner.clock.advance(3600)  # the watch has stopped
        for token, named in ((everything, "edge, homelab, prod"), (limited, "homelab, prod")):
            async with quorate.client(token) as client:
                answer = await client.call_tool("finding_list", {})
            assert f"The watch of {named} has stopped" in text_of(answer)


async def test_rules_and_dashboard_use_metrics_that_exist(tmp_path):
    async with web(tmp_path, more={"watch": WatchSettings()}) as quorate:
        token = await quorate.token("prometheus")
        assert quorate.rig.app.watch is not None
        await quorate.rig.app.watch.step()
        answer = await quorate.get("/metrics", token)
        offered = set(re.findall(r"^# TYPE (\S+)", answer.text, re.M))
    rules = yaml.safe_load((PACKAGING / "prometheus/quorate-alerts.yaml").read_text())
    board = json.loads((PACKAGING / "grafana/quorate-watch.json").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    expressions += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = {name for text in expressions for name in re.findall(r"quorate_\w+", text)}
    assert len(used) > 5
    assert used <= offered


async def test_a_person_acknowledges_a_finding_on_the_page_that_its_message_links_to(tmp_path):
    async with console(tmp_path, more={"watch": WatchSettings()}) as quorate:
        watch = quorate.rig.app.watch
        assert watch is not None
        await watch.step()
        finding = next(finding for finding in await watch.findings() if finding.kind == "backup-missing")
        async with browser(quorate, await quorate.token("carol", "admin")) as person:
            page = await person.get(f"/findings/{finding.id}")
            assert "These guests cannot be restored at all." in page.text
            answered = await person.submit(form_with(page, note=""), f"/findings/{finding.id}", note="tomorrow")
            assert answered.status_code == 200, answered.text
        (now,) = [candidate for candidate in await watch.findings() if candidate.id == finding.id]
        assert (now.state, now.note) == ("acknowledged", "tomorrow")


async def test_every_link_in_a_message_leads_through_the_login_to_its_page(tmp_path):
    async with http_receiver() as receiver:
        settings = WatchSettings(channels=(channel("phone", "ntfy", receiver),), public_url="https://quorate.home.lan")
        async with console(tmp_path, toolsets=("all",), more={"watch": settings}) as quorate:
            watch = quorate.rig.app.watch
            assert watch is not None
            token = await quorate.token("carol", "admin")
            await ask_to_delete(quorate, token)
            run = Run(
                id="aaaaaa", title="Evacuate pve3", state=RunState.PAUSED, kind="evacuate", cluster="demo",
                tool="run_evacuate", created=quorate.rig.clock.now(), caller={},
            )  # fmt: skip
            await RunStore(quorate.rig.app.store).add(run)
            await Freeze(quorate.rig.app.store).set("carol", "storm", quorate.rig.app.audit)
            await watch.step()
            texts = " ".join(message.body.decode() for message in receiver.messages)
            links = set(re.findall(r"https://quorate\.home\.lan/console([\w/-]*)", texts))
            assert {link.split("/")[1] for link in links} == {"approvals", "runs", "freeze", "findings"}
            for link in sorted(links):
                async with browser(quorate) as person:
                    page = await person.get(link, **{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate",
                                                     "Sec-Fetch-Dest": "document"})  # fmt: skip
                    assert page.url.path == "/console/login"
                    landed = await person.submit(form_with(page), token=token)
                    assert (landed.status_code, landed.url.path) == (200, f"/console{link}")
