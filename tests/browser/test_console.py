"""The console as a person uses it."""

from __future__ import annotations

import pytest
from aiohttp import web as other_site

from tests.browser.conftest import PHONE, TABLET, WIDE, surfing
from tests.rigs.console import PASSPHRASE, ask_to_delete, console

pytestmark = pytest.mark.anyio
PAGES = {
    "overview": "",
    "activity": "/activity",
    "findings": "/findings",
    "timeline": "/timeline",
    "inventory": "/inventory",
    "guest": "/guests/102",
    "action": "/guests/108/start",
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
        async with surfing(quorate, token) as operator:
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


@pytest.mark.parametrize("viewport", [None, PHONE], ids=["desktop", "phone"])
async def test_every_page_fits_the_screen_and_has_nothing_serious_for_axe(tmp_path, axe, viewport):
    async with console(tmp_path, toolsets=("all", "homelab")) as quorate:
        token = await quorate.token("alice", "admin")
        await ask_to_delete(quorate, token)
        async with quorate.client(token) as client:
            await client.call_tool("guest_power", {"guest": "win11", "action": "start"})
        for scheme in ("light", "dark"):
            options = {"color_scheme": scheme, **({"viewport": viewport} if viewport else {})}
            async with surfing(quorate, token, bypass_csp=True, **options) as operator:  # so that axe can be added
                for name, path in PAGES.items():
                    await operator.go(path)
                    await operator.page.wait_for_load_state("load")
                    if name == "guest":
                        await operator.page.wait_for_selector("#charts canvas")
                        assert max(await operator.page.evaluate(CHARTS)) <= 0, "a chart covers its neighbor"
                    await operator.picture(f"{name}-{scheme}" + ("-phone" if viewport else ""))
                    wide = await operator.page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    assert wide <= 0, f"{name} is {wide} pixels too wide"
                    await operator.page.evaluate(axe)
                    violations = await operator.page.evaluate("axe.run().then(found => found.violations)")
                    severe = [violation for violation in violations if violation["impact"] in ("serious", "critical")]
                    serious = [(violation["id"], violation["nodes"][0]["html"]) for violation in severe]
                    assert not serious, (name, scheme, serious)
                assert not operator.complaints


@pytest.mark.parametrize("viewport", [TABLET, WIDE], ids=["tablet", "wide"])
async def test_every_page_fits_other_screens_with_thousands_of_guests(tmp_path, viewport):
    async with console(tmp_path, toolsets=("all", "homelab"), nodes=30, guests=5000) as quorate:
        token = await quorate.token("alice", "admin")
        async with surfing(quorate, token, viewport=viewport) as operator:
            for name, path in PAGES.items():
                await operator.go(path)
                await operator.page.wait_for_load_state("load")
                wide = await operator.page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{name} is {wide} pixels too wide"
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
