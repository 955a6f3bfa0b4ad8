"""The console as a person uses it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aiohttp import web as other_site

from quorate.pve.connection import Limits
from quorate.watch.finding_store import Findings, NextCall, Observation
from tests.browser.conftest import DESKTOP, PHONE, TABLET, WIDE, surfing
from tests.rigs.console import PASSPHRASE, ask_to_delete, browser, console
from tests.rigs.several_clusters import several_clusters
from tests.rigs.web_server import served

pytestmark = pytest.mark.anyio
PAGES = {
    "overview": "",
    "activity": "/activity",
    "findings": "/findings",
    "timeline": "/timeline",
    "inventory": "/inventory",
    "guest": "/guests/102",
    "action": "/guests/108/start",
    "restore": "/guests/203/restore-file",
    "hosts": "/hosts",
    "search": "/search?q=pve",
    "map": "/map",
    "policy": "/policy?tool=guest_delete&arguments=guest%3Dtest-vm",
    "freeze": "/freeze",
}
CHARTS = "[...document.querySelectorAll('#charts > div')].map(one => one.scrollWidth - one.clientWidth)"


async def test_from_the_link_in_a_notification_to_done_takes_three_clicks(tmp_path):
    """Log in, approve; the third is the link. Well under half a minute for a person who knows the passphrase."""
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        approval = await ask_to_delete(quorate, token)
        async with surfing(quorate, viewport=PHONE) as phone:
            await phone.go(f"/approvals/{approval}")  # click 1: the link
            await phone.log_in(token)  # click 2
            await phone.picture("approval-phone")
            await phone.page.get_by_label("Type test-vm to approve").fill("test-vm")
            await phone.page.get_by_label("Operator's passphrase").first.fill(PASSPHRASE)
            await phone.page.get_by_role("button", name="Approve").click()  # click 3
            await phone.page.wait_for_selector("text=Not carried out yet")
            assert not phone.complaints
        async with quorate.client(token) as client:
            assert not (await client.call_tool("guest_delete", {"guest": "test-vm"})).is_error
        assert 108 not in quorate.rig.sim.world.guests


async def test_a_new_request_appears_without_reloading(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        async with surfing(quorate, token, viewport={"width": 1280, "height": 1120}) as operator:
            await operator.page.wait_for_selector("text=No pending requests")
            await ask_to_delete(quorate, token)
            await operator.page.wait_for_selector("text=Delete vm 108 test-vm")
            await operator.page.get_by_label("1 waiting").wait_for()
            await operator.picture("waiting")
            assert not operator.complaints


async def test_what_a_person_types_survives_a_new_request(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        approval = await ask_to_delete(quorate, token)
        async with surfing(quorate, token) as operator:
            card = operator.page.locator(f"#card-{approval}")
            await card.get_by_label("Type test-vm to approve").fill("test-")
            await card.get_by_label("Operator's passphrase").first.fill(PASSPHRASE)
            await ask_to_delete(quorate, token, "win11")
            await operator.page.wait_for_selector("text=Delete vm 107 win11")
            await operator.page.wait_for_function("document.title.startsWith('(2) ')")
            assert await card.get_by_label("Type test-vm to approve").input_value() == "test-"
            assert await card.get_by_label("Operator's passphrase").first.input_value() == PASSPHRASE
            assert await operator.page.evaluate("document.activeElement.type") == "password"
            assert not operator.complaints


async def test_the_search_is_one_key_away(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        async with surfing(quorate, token) as operator:
            await operator.go("/inventory")
            await operator.page.keyboard.press("/")
            await operator.page.keyboard.type("docker01")
            await operator.page.keyboard.press("Enter")
            await operator.page.wait_for_url("**/console/guests/102")
            assert not operator.complaints


async def test_a_wrong_passphrase_is_said_on_the_card(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        approval = await ask_to_delete(quorate, token)
        async with surfing(quorate, token) as operator:
            await operator.go(f"/approvals/{approval}")
            await operator.page.get_by_label("Type test-vm to approve").fill("test-vm")
            await operator.page.get_by_label("Operator's passphrase").first.fill("wrong wrong wrong")
            await operator.page.get_by_role("button", name="Approve").click()
            await operator.page.wait_for_selector("text=That is not the operator's passphrase")
            assert await operator.page.get_by_label("Type test-vm to approve").input_value() == "test-vm"


async def test_the_chain_is_verified_on_the_page_of_the_timeline(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        async with surfing(quorate, token) as operator:
            await operator.go("/timeline")
            await operator.page.get_by_text("Verify the hash chain").click()
            await operator.page.wait_for_selector("text=The chain is intact")
            assert await operator.page.get_by_role("heading", name="Timeline").is_visible()
            assert operator.page.url.endswith("/console/timeline")
            assert not operator.complaints


async def test_of_two_operators_one_answers_and_the_other_sees_it(tmp_path):
    async with console(tmp_path) as quorate:
        token, second = await quorate.token("alice", "admin"), await quorate.token("bob", "admin")
        await ask_to_delete(quorate, token)
        async with surfing(quorate, token) as alice, surfing(quorate, second) as bob:
            await bob.page.wait_for_selector("text=Delete vm 108 test-vm")
            await alice.page.get_by_label("Reason, shown to the caller").fill("not today")
            await alice.page.get_by_label("Operator's passphrase").last.fill(PASSPHRASE)
            await alice.page.get_by_role("button", name="Deny").click()
            await alice.page.wait_for_selector("text=Denied by the operator over HTTP, token alice")
            await bob.page.wait_for_selector("text=No pending requests")
            assert not bob.complaints


async def test_a_revoked_token_sends_the_page_to_the_login(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        await quorate.token("bob", "admin")
        async with surfing(quorate, token) as operator:
            await quorate.tokens.revoke("alice")
            await quorate.rig.clock.advance(5)
            await operator.page.wait_for_url("**/console/login**")


async def test_freezing_shows_on_every_open_page(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        async with surfing(quorate, token) as freezing, surfing(quorate, token) as other:
            await other.go("/inventory")
            await freezing.go("/freeze")
            await freezing.page.get_by_label("Reason").fill("moving house")
            await freezing.page.get_by_role("button", name="Freeze all changes").click()
            await other.page.wait_for_selector("text=All changes are frozen")
            assert not freezing.complaints + other.complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, TABLET, DESKTOP, WIDE], ids=["390", "768", "1280", "1920"])
async def test_every_page_fits_the_screen_and_has_nothing_serious_for_axe(tmp_path, axe, viewport, scheme):
    async def check(name, path):
        await operator.go(path)
        await operator.page.wait_for_load_state("load")
        if name == "guest":
            await operator.page.wait_for_selector("#charts canvas")
            assert max(await operator.page.evaluate(CHARTS)) <= 0, "a chart covers its neighbor"
        if name == "overview":
            await operator.page.wait_for_selector("text=have no backup")
        await operator.picture(f"{name}-{scheme}-{viewport['width']}")
        assert await too_wide(operator) <= 0, f"{name} is too wide"
        assert not await serious(operator, axe), name

    async with console(tmp_path, toolsets=("all", "homelab")) as quorate:
        token = await quorate.token("alice", "admin")
        await look_busy(quorate, token)
        pages = {**PAGES, "entry": await entry_of(quorate, token)}
        options: dict[str, Any] = {
            "color_scheme": scheme,
            "viewport": viewport,
            "bypass_csp": True,
        }  # so that axe can be added
        async with surfing(quorate, token, **options) as operator:
            for name, path in pages.items():
                await check(name, path)
            approval = await ask_to_delete(quorate, token)
            await check("overview with a request", "")
            await check("approval", f"/approvals/{approval}")
            assert not operator.complaints


async def test_the_login_fits_every_screen_and_has_nothing_serious_for_axe(tmp_path, axe):
    async with console(tmp_path) as quorate:
        await quorate.token("alice", "admin")
        for viewport in (PHONE, TABLET, DESKTOP, WIDE):
            for scheme in ("light", "dark"):
                options: dict[str, Any] = {"color_scheme": scheme, "viewport": viewport, "bypass_csp": True}
                async with surfing(quorate, **options) as visitor:
                    await visitor.go()
                    assert await too_wide(visitor) <= 0
                    assert not await serious(visitor, axe), scheme


async def too_wide(surfer):
    """Pixels by which the page is wider than the screen."""
    return await surfer.page.evaluate("document.documentElement.scrollWidth - innerWidth")


async def serious(surfer, axe):
    """What axe finds that keeps someone from using the page."""
    await surfer.page.evaluate(axe)
    violations = await surfer.page.evaluate("axe.run().then(found => found.violations)")
    severe = [violation for violation in violations if violation["impact"] in ("serious", "critical")]
    return [(violation["id"], violation["nodes"][0]["html"]) for violation in severe]


async def look_busy(quorate, token):
    """Changes and findings, so that the pages have something to show."""
    trouble = [
        Observation("disk-health", "node pve2", "critical", "Disk nvme0n1 of pve2 has 41 bad sectors", "view",
                    next=NextCall("node_list")),
        Observation("guest-down", "guest 108", "warning", "test-vm is stopped, although it starts at boot", "view",
                    next=NextCall("guest_power", {"guest": 108, "action": "start"})),
    ]  # fmt: skip
    await Findings(quorate.rig.app.store).observe("demo", trouble, lambda _: True)
    async with quorate.client(token) as client:
        for tool, arguments in (
            ("guest_power", {"guest": "win11", "action": "start"}),
            ("guest_configure", {"guest": "docker01", "cores": 6, "memory": "12 GiB", "tags": ["docker", "prod"]}),
            ("guest_exec", {"guest": "docker01", "command": "df -h /"}),
            ("snapshot_create", {"guest": "docker01", "snapshot": "before-update"}),
            ("guest_configure", {"guest": "docker01", "description": "Compose stacks live in /srv, backups at 03:00."}),
            ("guest_power", {"guest": "nobody", "action": "start"}),
        ):
            await client.call_tool(tool, arguments)


async def entry_of(quorate, token):
    """The page of the first change of settings."""
    async with browser(quorate, token) as person:
        page = (await person.get("/timeline?tool=guest_configure")).text
    return re.findall(r'href="/console(/timeline/\d+)"', page)[-1]


@pytest.mark.parametrize("viewport", [PHONE, TABLET, DESKTOP, WIDE], ids=["390", "768", "1280", "1920"])
async def test_every_page_fits_every_screen_with_thousands_of_guests(tmp_path, viewport):
    async with console(tmp_path, toolsets=("all", "homelab"), nodes=30, guests=5000) as quorate:
        token = await quorate.token("alice", "admin")
        async with surfing(quorate, token, viewport=viewport) as operator:
            for name, path in PAGES.items():
                await operator.go(path)
                await operator.page.wait_for_load_state("load")
                assert await too_wide(operator) <= 0, f"{name} is too wide"
            assert not operator.complaints


@pytest.mark.parametrize("viewport", [PHONE, TABLET, DESKTOP, WIDE], ids=["390", "768", "1280", "1920"])
async def test_every_page_shows_the_other_cluster_while_one_never_answers(tmp_path, viewport, axe):
    limits = Limits(request_seconds=60, total_seconds=60)
    async with (
        several_clusters(tmp_path, limits=limits, more={"toolsets": ("all", "homelab")}) as inner,
        served(inner) as quorate,
        surfing(quorate, viewport=viewport, bypass_csp=True) as operator,
    ):
        await operator.go()
        await inner.clock.advance(60)
        inner.sims["lab"].faults.add("latency:1000")
        for name, path in PAGES.items():
            path = path.replace("guest%3Dtest-vm", "guest%3Dprod/test-vm")
            await operator.go(path)
            await operator.page.wait_for_selector("text=lab silent since 2026-01-15 08:01")
            assert await too_wide(operator) <= 0, f"{name} is too wide"
            if name in ("overview", "activity", "inventory", "guest", "action"):
                assert not await serious(operator, axe), name
            await operator.picture(f"{name}-silent-{viewport['width']}")
        assert not operator.complaints


async def test_the_keyboard_alone_is_enough_to_deny(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        approval = await ask_to_delete(quorate, token)
        async with surfing(quorate, token) as operator:
            await operator.go(f"/approvals/{approval}")
            for _ in range(60):
                await operator.page.keyboard.press("Tab")
                if await operator.page.evaluate("document.activeElement.type === 'password'"):
                    await operator.page.keyboard.type(PASSPHRASE)
                if await operator.page.evaluate("document.activeElement.textContent.trim() === 'Deny'"):
                    break
            await operator.page.keyboard.press("Enter")
            await operator.page.wait_for_selector("text=Denied by")


async def test_pages_work_without_scripts(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        approval = await ask_to_delete(quorate, token)
        async with surfing(quorate, token, java_script_enabled=False) as operator:
            for path in PAGES.values():
                await operator.go(path)
            await operator.go(f"/approvals/{approval}")
            await operator.page.get_by_label("Operator's passphrase").last.fill(PASSPHRASE)
            await operator.page.get_by_role("button", name="Deny").click()
            assert "Denied by" in await operator.text()


async def test_markup_in_names_and_notes_runs_nothing(tmp_path):
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        config = quorate.rig.sim.world.guests[102].config
        config["description"], config["name"], config["tags"] = evil, evil, evil
        await quorate.rig.clock.advance(15)
        async with surfing(quorate, token) as operator:
            for path in PAGES.values():
                await operator.go(path)
                await operator.page.wait_for_load_state("load")
            assert not [complaint for complaint in operator.complaints if complaint.startswith(("dialog", "request"))]


async def test_another_site_can_neither_frame_the_console_nor_send_its_forms(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        approval = await ask_to_delete(quorate, token)
        page = f"""<iframe src="{quorate.url}/console"></iframe>
            <form id="f" method="post" action="{quorate.url}/console/approvals/{approval}" target="_top">
            <input name="decision" value="deny"></form>"""
        async with OtherSite(page) as address, surfing(quorate, token) as operator:
            await operator.page.goto(address)
            frame = operator.page.frames[-1]
            assert "Waiting" not in await frame.inner_text("body")
            await operator.page.evaluate("document.getElementById('f').submit()")
            await operator.page.wait_for_load_state("load")
            assert "other pages" in await operator.text() or "not allowed" in await operator.text()
            await operator.go(f"/approvals/{approval}")
            assert await operator.page.get_by_role("button", name="Approve").is_visible()


class OtherSite:
    """A page on another origin."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def __aenter__(self) -> str:
        app = other_site.Application()
        app.router.add_get("/", self._answer)
        self._runner = other_site.AppRunner(app)
        await self._runner.setup()
        site = other_site.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        return f"http://localhost:{port}/"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, _: other_site.Request) -> other_site.Response:
        return other_site.Response(text=self._text, content_type="text/html")
