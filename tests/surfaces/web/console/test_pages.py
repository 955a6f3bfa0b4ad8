"""The other pages: timeline, inventory, map, policy, activity, freeze, and what each person may see."""

from __future__ import annotations

import json
import re

import pytest

from quorate.config import Approval
from quorate.config.policy import Policy, Rule
from quorate.state.limits import Freeze
from quorate.units import ago, moment, span
from quorate.watch.finding_store import Findings, NextCall, Observation
from tests.rigs.console import PASSPHRASE, ask_to_delete, browser, console, form_with, forms_of
from tests.rigs.homelab import house
from tests.rigs.several_clusters import several_clusters
from tests.rigs.web_server import served

pytestmark = pytest.mark.anyio


async def test_the_inventory_has_every_guest_node_and_storage_with_its_load(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        text = (await person.get("/inventory")).text
        for name in ("pve1", "docker01", "local-lvm", "nas"):
            assert name in text
        assert re.search(r'<rect class="fill" width="\d+"', text)
        page = (await person.get("/inventory?search=dock&status=running&sort=name")).text
        assert "docker01" in page
        assert "router" not in page


async def test_five_thousand_guests_are_shown_in_pages_of_a_bounded_size(tmp_path):
    async with console(tmp_path, nodes=8, guests=1000) as quorate, browser(quorate) as person:
        first = await person.get("/inventory")
        assert len(first.content) < 100_000
        more = re.search(r'href="(/console/inventory\?[^"]*offset=100)"', first.text)
        assert more is not None
        second = await person.get(more[1].removeprefix("/console"))
        assert set(re.findall(r"/console/guests/(\d+)", first.text)).isdisjoint(
            re.findall(r"/console/guests/(\d+)", second.text)
        )


async def test_a_guest_has_a_page_with_snapshots_backups_tasks_and_history(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        async with quorate.client(token) as client:
            await client.call_tool("guest_configure", {"guest": "docker01", "description": "changed for the test"})
        async with browser(quorate, token) as person:
            text = (await person.get("/guests/102")).text
            assert "before-upgrade" in text
            assert "pbs:backup/vm/102" in text
            history = text[text.index("<h2>History</h2>") :]
            assert "vm 102 docker01" in history


async def test_a_sparkline_and_the_points_of_a_chart_come_from_recorded_load(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        await person.get("/inventory")
        for path in ("/spark/node/pve1", "/spark/guest/102", "/spark/storage/nas"):
            drawn = await person.get(path)
            assert drawn.headers["content-type"] == "image/svg+xml"
            assert "<polyline" in drawn.text, path
        load = json.loads((await person.get("/series/guest/102?timeframe=day")).text)
        charts = {chart["title"].partition(" (")[0]: chart for chart in load["charts"]}
        assert [len(line["values"]) for line in charts["CPU"]["lines"]] == [len(load["times"])]
        assert len(load["times"]) > 10
        assert (charts["CPU"]["title"], charts["CPU"]["top"]) == ("CPU (%)", 100), "an idle guest must look idle"
        assert charts["Memory"]["top"] >= max(filter(None, charts["Memory"]["lines"][0]["values"]))
        assert [line["label"] for line in charts["Network"]["lines"]] == ["in", "out"]
        assert (await person.get("/series/secret/102")).status_code == 400


async def test_the_map_is_a_picture_and_a_table(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        assert '<a href="/console/guests/102">docker01</a>' in (await person.get("/map")).text
        assert (await person.get("/map.svg")).text.lstrip().startswith("<svg")


async def test_the_timeline_is_filtered_and_an_entry_opens_to_its_calls_tasks_and_approval(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        async with quorate.client(token) as client:
            await client.call_tool("guest_power", {"guest": "test-vm", "action": "start"})
            await client.call_tool("guest_configure", {"guest": "docker01", "description": "x"})
            await client.call_tool("guest_power", {"guest": "nobody", "action": "start"})
        async with browser(quorate, token) as person:
            everything = (await person.get("/timeline")).text
            assert everything.count("/console/timeline/") == 3
            assert ">guest_power nobody</a>" in everything
            by_guest = (await person.get("/timeline?target=test-vm")).text
            assert by_guest.count("/console/timeline/") == 1
            for query, count in (("tool=guest_power", 2), ("outcome=done", 2), ("caller=alice", 3), ("since=1m", 3)):
                assert (await person.get(f"/timeline?{query}")).text.count("/console/timeline/") == count, query
            assert 'role="alert"' in (await person.get("/timeline?since=yesterday-ish")).text
            opened = re.search(r'href="/console(/timeline/\d+)"', by_guest)
            assert opened is not None
            entry = (await person.get(opened[1])).text
            assert "POST /nodes/pve1/qemu/108/status/start" in entry
            assert "UPID:pve1:" in entry
            assert "approval" in entry
            assert "<dt>dry run</dt><dd>no</dd>" in entry
            assert (await person.get("/timeline/999999")).status_code == 404


async def test_the_timeline_shows_whether_the_chain_is_intact(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        await person.get("/timeline")
        await quorate.rig.call("guest_power", guest="test-vm", action="start")
        link = re.search(r'href="/console(/timeline[^"]+)"[^>]*>Verify', (await person.get("/timeline")).text)
        assert link is not None
        whole = (await person.get(link[1])).text
        assert "The chain is intact: 1 entry in " in whole
        assert "<main" in whole
        assert "The chain is intact" in (await person.get("/part/verification")).text
        lines = quorate.rig.audit_file.read_text().splitlines()
        quorate.rig.audit_file.write_text("\n".join([lines[0].replace("test-vm", "other"), *lines[1:]]) + "\n")
        assert "The chain is broken" in (await person.get("/part/verification")).text


async def test_policy_explains_a_call_and_lists_the_rules_in_effect(tmp_path):
    rule = Rule("keep-critical", False, "destroy", because="the house depends on it", tags=("critical",))
    async with console(tmp_path, more={"policy": Policy((rule,))}) as quorate, browser(quorate) as person:
        page = await person.get("/policy?tool=guest_delete&arguments=guest%3Dtest-vm")
        assert "verdict" in page.text
        assert "needed (ask)" in page.text
        assert "the house depends on it" in page.text
        refused = await person.get("/policy?tool=guest_delete&arguments=guest%3Drouter")
        assert "keep-critical" in refused.text.split("Rules in effect")[0]
        assert "There is no tool" in (await person.get("/policy?tool=guest_destroy")).text
        assert 108 in quorate.rig.sim.world.guests


async def test_freezing_takes_one_click_and_allowing_changes_again_the_passphrase(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        page = await person.get("/freeze")
        done = await person.submit(form_with(page, action="freeze"), reason="moving house")
        assert "moving house" in done.text
        assert "All changes are frozen" in (await person.get("/inventory")).text
        assert "frozen" in await quorate.rig.refusal("guest_power", guest="test-vm", action="start")
        refused = await person.submit(form_with(done, action="unfreeze"), passphrase="wrong wrong wrong")
        assert refused.status_code == 403
        assert "not the operator" in refused.text
        assert form_with(refused, action="unfreeze")
        assert await Freeze(quorate.rig.app.store).state() is not None
        lifted = await person.submit(form_with(done, action="unfreeze"), passphrase=PASSPHRASE)
        assert "Changes are allowed" in lifted.text


async def test_an_address_without_a_page_is_answered_by_a_page_with_the_way_back(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        for path in ("/nothing", "/guests/999", "/timeline/nothing"):
            page = await person.get(path)
            assert page.status_code == 404, path
            assert "Back to the console" in page.text, path


async def test_a_card_says_in_words_how_old_it_is_and_when_it_expires(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        async with quorate.client(token) as client:
            await client.call_tool("guest_delete", {"guest": "test-vm", "wait": 0})
        async with browser(quorate, token) as person:
            assert re.search(r"· just now · expires in 1[45]m ·", (await person.get("")).text)
    assert (span(59), span(120), ago(59), ago(61)) == ("less than 1m", "2m", "just now", "1m ago")


async def test_tasks_are_listed_and_open_to_their_log(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        await quorate.rig.call("guest_power", guest="test-vm", action="start")
        page = (await person.get("/activity")).text
        task = re.search(r'href="/console(/tasks/[^"]+)">VM 108 test-vm: start<', page)
        assert "CT 202 nextcloud: back up" in page
        assert task is not None
        assert "OK" in (await person.get(task[1])).text


async def test_a_token_with_access_read_sees_the_inventory_and_none_of_the_operators_pages(tmp_path):
    async with console(tmp_path) as quorate:
        await quorate.token("alice", "admin")
        reader = await quorate.token("bob", "read")
        async with browser(quorate, reader) as person:
            assert "docker01" in (await person.get("/inventory")).text
            for path in ("/timeline", "/policy", "/part/verification"):
                assert (await person.get(path)).status_code == 403
            assert "Freeze all changes" not in (await person.get("/freeze")).text


async def test_a_token_for_other_clusters_sees_nothing_of_this_one(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        elsewhere = await quorate.token("bob", "admin", clusters=["another"])
        async with quorate.client(token) as client:
            await client.call_tool("guest_delete", {"guest": "test-vm", "wait": 0})
        async with browser(quorate, elsewhere) as person:
            for path in ("", "/timeline", "/inventory", "/activity"):
                assert "test-vm" not in (await person.get(path)).text
            verification = (await person.get("/part/verification")).text
            assert "The chain is intact" in verification
            assert "test-vm" not in verification


async def test_a_run_shows_its_progress_and_can_be_paused_and_resumed(tmp_path):
    def form_of(page):
        return next(form for form in forms_of(page) if form.action.endswith(run))

    async with console(tmp_path, approval=Approval.NONE, toolsets=("all",)) as quorate, browser(quorate) as person:
        tomorrow = moment(quorate.rig.clock.now() + 86400)
        started = await quorate.rig.facts("run_evacuate", node="pve3", at=tomorrow)
        run = started["run"]
        page = await person.get("/activity")
        assert f'href="/console/runs/{run}"' in page.text
        page = await person.get(f"/runs/{run}")
        assert "Evacuate pve3" in page.text
        paused = await person.submit(form_of(page), action="pause")
        assert ">paused<" in paused.text
        resumed = await person.submit(form_of(paused), action="resume")
        assert ">paused<" not in resumed.text


async def test_a_finding_is_acknowledged_from_its_page(tmp_path):
    trouble = Observation(
        "node-down", "node pve1", "critical", "Node pve1 is offline", "view", next=NextCall("node_list")
    )
    async with console(tmp_path, toolsets=("all", "homelab")) as quorate, browser(quorate) as person:
        findings = Findings(quorate.rig.app.store)
        await findings.observe("demo", [trouble], lambda _: True)
        (finding,) = await findings.open()
        page = await person.get(f"/findings/{finding.id}")
        form = next(candidate for candidate in forms_of(page) if "note" in candidate.fields)
        answer = await person.submit(form, f"/findings/{finding.id}", note="being replaced")
        assert answer.status_code == 200
        assert (await findings.get(finding.id)).note == "being replaced"


# -- the overview ------------------------------------------------------------------------------------------------------


async def test_the_overview_names_every_reason_why_something_needs_a_person(tmp_path):
    trouble = Observation("disk-health", "node pve1", "critical", "Disk sda fails", "view", next=NextCall("node_list"))
    async with console(tmp_path, toolsets=("all", "homelab")) as quorate:
        token = await quorate.token("alice", "admin")
        async with browser(quorate, token) as person:
            assert "Nothing waits for you</h1>" in (await person.get()).text
            await Findings(quorate.rig.app.store).observe("demo", [trouble], lambda _: True)
            await ask_to_delete(quorate, token)
            assert "2 things need you</h1>" in (await person.get("/part/verdict")).text
            text = (await person.get()).text
            assert "2 things need you</h1>" in text
            assert "1 request waits for your answer" in text
            assert "1 critical finding" in text
            assert text.index("Waiting for you") < text.index("Disk sda fails") < text.index('aria-label="Node pve1"')


async def test_the_overview_shows_the_health_and_the_backups_of_a_cluster_in_a_part_of_its_own(tmp_path):
    async with console(tmp_path, toolsets=("all",)) as quorate, browser(quorate) as person:
        part = re.search(r'hx-get="/console(/part/health[^"]*)" hx-trigger="load"', (await person.get()).text)
        assert part is not None
        health = (await person.get(part[1])).text
        assert "guests have no backup" in health
        assert re.search(r"<b>\d+</b> have no backup", health)


async def test_the_overview_of_five_thousand_guests_is_small(tmp_path):
    async with console(tmp_path, nodes=30, guests=5000) as quorate, browser(quorate) as person:
        for number in range(12):
            await quorate.rig.call(
                "guest_configure", guest="docker01", description=f"{number} " * 2000, tags=[f"t{number}"]
            )
        page = await person.get()
        assert len(page.content) < 100_000
        assert "more nodes" in page.text
        for path in ("/inventory", "/timeline", "/search?q=pve", "/activity"):
            assert len((await person.get(path)).content) < 150_000, path
        assert 'hx-trigger="load"' not in page.text, "thousands of reads for everyone who opens it"


async def test_a_silent_cluster_is_shown_as_last_seen(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        assert "docker01" in (await person.get("/inventory")).text
        quorate.rig.sim.faults.add("latency:60:GET:/cluster/resources")
        await quorate.rig.clock.advance(180)
        overview, inventory = (await person.get()).text, (await person.get("/inventory")).text
        assert "demo does not answer" in overview
        assert "as of 3m ago" in overview
        assert 'aria-label="Node pve1"' in overview
        assert "docker01" in inventory
        assert "shown as of 3m ago" in inventory
        assert "docker01 was running on pve1, as of 3m ago" in (await person.get("/guests/102")).text


async def test_the_address_with_a_slash_leads_to_the_console_and_pages_that_are_off_are_not_linked(tmp_path):
    async with console(tmp_path, toolsets=("cluster",)) as quorate, browser(quorate) as person:
        page = await person.get("/")
        assert page.url.path == "/console"
        assert 'href="/console/map"' not in page.text
        assert 'href="/console/findings"' not in page.text


# -- buttons -----------------------------------------------------------------------------------------------------------


async def test_a_button_on_a_guests_page_shows_the_plan_and_then_carries_it_out(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        page = (await person.get("/guests/108")).text
        assert 'href="/console/guests/108/start"' in page
        assert 'href="/console/guests/108/shutdown"' not in page, "it is stopped"
        plan = await person.get("/guests/108/start")
        assert "Start vm 108 test-vm" in plan.text
        assert "POST /nodes/pve1/qemu/108/status/start" in plan.text
        assert quorate.rig.sim.world.guests[108].status == "stopped", "a plan changes nothing"
        done = await person.submit(_confirmation(plan), "/guests/108/start")
        assert done.url.path.startswith("/console/tasks/UPID:pve1:")
        entry = quorate.rig.audit()[-1]
        assert (entry["tool"], entry["arguments"]["guest"], entry["dry_run"]) == ("guest_power", "108", False)


async def test_a_button_waits_for_approval_where_changes_need_it(tmp_path):
    async with console(tmp_path, approve_changes=True) as quorate, browser(quorate) as person:
        plan = await person.get("/guests/108/snapshot")
        refused = await person.submit(_confirmation(plan), "/guests/108/snapshot")
        assert refused.status_code == 409
        assert "1 request waits for your answer" in (await person.get()).text
        before = set(quorate.rig.sim.world.guests[108].snapshots)
        request = re.search(r'href="/console(/approvals/[^"]+)">Answer', refused.text)
        assert request is not None
        await quorate.rig.clock.advance(5)
        approval = form_with(await person.get(request[1]), decision="approve")
        await person.submit(approval, word="test-vm", passphrase=PASSPHRASE)
        done = await person.submit(_confirmation(refused), "/guests/108/snapshot")
        assert done.url.path.startswith("/console/tasks/UPID:pve1:")
        [name] = set(quorate.rig.sim.world.guests[108].snapshots) - before
        assert name in plan.text


async def test_a_token_that_may_only_read_gets_no_buttons_and_no_action(tmp_path):
    async with console(tmp_path) as quorate:
        await quorate.token("alice", "admin")
        reader = await quorate.token("bob", "read")
        async with browser(quorate, reader) as person:
            page = await person.get("/guests/108")
            assert "/guests/108/start" not in page.text
            form = form_with(page)
            form.action = "/console/guests/108/start"
            assert (await person.submit(form)).status_code in (403, 404)
            assert quorate.rig.sim.world.guests[108].status == "stopped"


async def test_a_finding_offers_its_call_as_a_button_with_the_plan_first(tmp_path):
    stopped = Observation(
        "guest-down", "guest 108", "warning", "test-vm is stopped", "view",
        next=NextCall("guest_power", {"guest": 108, "action": "start"}),
    )  # fmt: skip
    async with console(tmp_path, toolsets=("all", "homelab")) as quorate, browser(quorate) as person:
        findings = Findings(quorate.rig.app.store)
        await findings.observe("demo", [stopped], lambda _: True)
        (finding,) = await findings.open()
        page = await person.get(f"/findings/{finding.id}")
        assert "See what would fix it" in page.text
        plan = await person.get(f"/findings/{finding.id}/next")
        assert "Start vm 108 test-vm" in plan.text
        await person.submit(_confirmation(plan), f"/findings/{finding.id}/next")
        assert [(entry["tool"], entry["dry_run"]) for entry in quorate.rig.audit()] == [
            ("guest_power", True), ("guest_power", False),
        ]  # fmt: skip


async def test_the_button_of_a_finding_acts_in_its_own_cluster_and_not_only_as_a_dry_run(tmp_path):
    fault = Observation(
        "guest-down", "guest 100", "warning", "playground is stopped", "view",
        next=NextCall("guest_power", {"guest": 100, "action": "reboot", "dry_run": True}),
    )  # fmt: skip
    both = several_clusters(tmp_path, "prod", "lab", more={"toolsets": ("all",)})
    async with both as inner, served(inner) as quorate, browser(quorate, await quorate.token("op", "admin")) as person:
        findings = Findings(inner.app.store)
        await findings.observe("lab", [fault], lambda _: True)
        (finding,) = await findings.open()
        plan = await person.get(f"/findings/{finding.id}/next")
        assert "playground" in plan.text
        await person.submit(_confirmation(plan), f"/findings/{finding.id}/next")
        assert [path for _, path in inner.writes_to("lab")] == ["/nodes/lab1/qemu/100/status/reboot"]
        assert not inner.writes_to("prod")


def _confirmation(page):
    """The form that carries the plan out."""
    return next(form for form in forms_of(page) if not form.action and "csrf" in form.fields)


# -- hosts and search --------------------------------------------------------------------------------------------------


async def test_hosts_have_a_page_and_what_takes_a_login_is_loaded_after_it(tmp_path):
    async with (
        house(tmp_path, toolsets=("all", "homelab", "hosts")) as home,
        served(home.quorate) as quorate,
        browser(quorate) as person,
    ):
        page = (await person.get("/hosts")).text
        assert 'href="/console/hosts/nas"' in page
        part = re.search(r'hx-get="/console(/part/hosts/status[^"]*)"', page)
        assert part is not None
        assert "nas" in (await person.get(part[1])).text
        one = (await person.get("/hosts/nas")).text
        assert "/part/hosts/status?host=nas" in one
        assert "/part/hosts/containers?host=nas" in one
        assert (await person.get("/hosts/nobody")).status_code == 404
        assert (await person.get("/part/hosts/secrets")).status_code == 404


async def test_the_search_finds_guests_hosts_storages_findings_and_pages(tmp_path):
    async with (
        house(tmp_path, toolsets=("all", "homelab", "hosts")) as home,
        served(home.quorate) as quorate,
        browser(quorate) as person,
    ):
        trouble = Observation("disk", "node pve1", "critical", "Disk nasty fails", "view", next=NextCall("node_list"))
        await Findings(quorate.rig.app.store).observe("demo", [trouble], lambda _: True)
        hits = (await person.get("/search?q=nas")).text
        for link in ("/console/hosts/nas", "/console/inventory#storages", "/console/findings/"):
            assert link in hits, link
        assert (await person.get("/search?q=docker01")).url.path == "/console/guests/102", "the only hit opens at once"
        assert (await person.get("/search?q=timel")).url.path == "/console/timeline"
        assert "Nothing matches" in (await person.get("/search?q=no-such-thing")).text


async def test_what_changed_between_a_page_and_its_stream_of_events_is_not_missed(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        page = await person.get("/inventory")
        address = re.search(r'sse-connect="(/console/events[^"]*)"', page.text)
        assert address is not None
        await person.submit(form_with(await person.get("/freeze"), action="freeze"))
        async with person.http.stream("GET", address[1].replace("&amp;", "&")) as stream:
            events = [line async for line in _first_event(stream)]
        assert events == ["event: freeze"]


async def _first_event(stream):
    async for line in stream.aiter_lines():
        if line.startswith("event: "):
            yield line
            return
