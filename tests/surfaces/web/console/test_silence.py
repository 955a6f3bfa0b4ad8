"""One of two clusters accepts connections and never answers: no page waits for it, and each says since when."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager

import pytest

from quorate.pve.connection import Limits
from tests.rigs.console import browser, forms_of
from tests.rigs.several_clusters import several_clusters
from tests.rigs.web_server import served

pytestmark = pytest.mark.anyio
BOUND = 10.0
"""Seconds for a page. One that waits for the silent cluster takes at least twice as long."""
SLOW = Limits(request_seconds=60, total_seconds=60)
PAGES = {
    "": 'aria-label="Node pve1"',
    "/activity": "CT 202 nextcloud: back up",
    "/findings": "Findings</h1>",
    "/timeline": "Start vm 108 test-vm",
    "/inventory": "docker01",
    "/inventory?cluster=lab": "lab does not answer",
    "/guests/102": "docker01",
    "/guests/102?cluster=prod": "docker01",
    "/guests/108/shutdown": "vm 108 test-vm",
    "/guests/203/restore-file": "Restore a file</h1>",
    "/hosts": "Hosts <small>",
    "/search?q=docker": "docker01",
    "/map": "Map</h1>",
    "/policy?tool=guest_delete&arguments=guest%3Dprod/test-vm": "verdict",
    "/freeze": "Freeze all changes",
}
"""And what they show although one cluster is silent."""


@asynccontextmanager
async def one_of_two_silent(tmp_path, limits=SLOW):
    async with (
        several_clusters(tmp_path, limits=limits, more={"toolsets": ("all", "homelab")}) as inner,
        served(inner) as quorate,
        browser(quorate) as person,
    ):
        await inner.call("guest_power", guest="prod/test-vm", action="start")
        assert "silent since" not in (await person.get()).text
        await inner.clock.advance(60)
        inner.sims["lab"].faults.add("latency:1000")
        yield quorate, person


async def test_every_page_shows_the_other_cluster_in_time_and_since_when_one_is_silent(tmp_path):
    async with one_of_two_silent(tmp_path) as (quorate, person):
        for path, expected in PAGES.items():
            async with asyncio.timeout(BOUND):
                page = await person.get(path)
            assert expected in page.text, path
            assert re.search(r"<b>lab</b> silent since <time>2026-01-15 08:01:\d\dZ</time>", page.text), path
            await quorate.rig.clock.advance(3)


async def test_pages_about_a_silent_cluster_say_so_at_once(tmp_path):
    async with one_of_two_silent(tmp_path) as (_, person):
        for path in (
            "/guests/102?cluster=lab", "/guests/102/start?cluster=lab", "/guests/102/restore-file?cluster=lab",
            "/tasks/UPID:pve1:00000519:14997064:69689E81:qmstart:108:root@pam!simulator:?cluster=lab",
        ):  # fmt: skip
            async with asyncio.timeout(BOUND):
                page = await person.get(path)
            assert page.status_code == 503, path
            assert "lab does not answer" in page.text, path
        async with asyncio.timeout(BOUND):
            part = await person.get("/part/health?cluster=lab")
            assert part.status_code == 200  # a browser does not show the part of a page that failed
            assert "lab does not answer" in part.text
            assert "<polyline" not in (await person.get("/spark/node/pve1?cluster=lab")).text
            assert "guests have no backup" in (await person.get("/part/health?cluster=prod")).text


async def test_a_silent_cluster_that_answers_again_is_no_longer_called_silent(tmp_path):
    async with one_of_two_silent(tmp_path, Limits(request_seconds=3, total_seconds=3)) as (quorate, person):
        assert "silent since" in (await person.get()).text
        quorate.rig.sims["lab"].faults.clear()
        async with asyncio.timeout(BOUND):  # the request that is under way still waits for its own limit
            while "silent since" in (await person.get("/timeline")).text:
                await quorate.rig.clock.advance(10)


async def test_a_guest_is_found_without_naming_its_cluster_and_a_button_keeps_the_cluster(tmp_path):
    async with several_clusters(tmp_path) as inner, served(inner) as quorate, browser(quorate) as person:
        page = await person.get("/guests/108")
        assert str(page.url).endswith("/console/guests/108?cluster=prod")
        plan = await person.get("/guests/108/start?cluster=prod")
        form = next(form for form in forms_of(plan) if not form.action and "csrf" in form.fields)
        done = await person.submit(form, "/guests/108/start?cluster=prod")
        assert str(done.url).endswith("?cluster=prod")
        assert done.url.path.startswith("/console/tasks/UPID:")
        activity = (await person.get("/activity")).text
        assert re.search(r'href="/console/tasks/[^"]+\?cluster=prod">VM 108 test-vm: start<', activity)
        assert "prod/pve1" in activity
