"""Logging in to the console, and what ends a session."""

from __future__ import annotations

import pytest

from quorate.config.http import HttpSettings
from quorate.state.browser_sessions import IDLE_SECONDS, LONGEST_SECONDS
from quorate.surfaces.web.authentication import REFETCH_SECONDS, STALE_SECONDS
from quorate.surfaces.web.credentials import LocalLogin
from tests.rigs.console import browser, console, form_with, forms_of
from tests.rigs.oauth_issuer import issuing

pytestmark = pytest.mark.anyio


async def test_a_person_logs_in_with_a_token_and_lands_on_the_page_they_wanted(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        async with browser(quorate) as person:
            page = await person.get("/inventory?search=router")
            assert page.url.path == "/console/login"
            landed = await person.submit(form_with(page), token=token)
            assert str(landed.url).endswith("/console/inventory?search=router")
            assert "token alice" in landed.text


async def test_without_any_token_the_console_on_this_machine_is_open(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        page = await person.get("/inventory")
        assert page.status_code == 200
        assert "docker01" in page.text


async def test_asking_for_the_open_console_again_and_again_stores_nothing(tmp_path):
    async with console(tmp_path) as quorate:
        for _ in range(3):
            async with browser(quorate) as person:
                assert (await person.get("/login")).url.path == "/console"
        rows = await quorate.rig.app.store.fetch("SELECT id FROM quorate_browser_sessions")
        assert not rows


async def test_a_browser_at_the_root_is_led_to_the_console_and_a_program_finds_nothing_there(tmp_path):
    async with console(tmp_path) as quorate:
        await quorate.token("alice", "admin")
        async with browser(quorate) as person:
            assert (await person.http.get("/", headers={"Accept": "text/html,*/*;q=0.8"})).url.path == "/console/login"
            for accept in ("application/json, text/event-stream", "*/*"):
                answer = await person.http.get("/", headers={"Accept": accept})
                assert (answer.status_code, answer.url.path) == (404, "/")
            assert (await person.http.post("/", headers={"Accept": "text/html"})).status_code == 404
            foreign = await person.http.get("/", headers={"Accept": "text/html", "Host": "evil.example"})
            assert foreign.status_code == 421


async def test_a_session_of_the_open_console_ends_when_the_first_token_is_created(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        assert "docker01" in (await person.get("/inventory")).text
        await quorate.token("alice", "admin")
        await quorate.rig.clock.advance(5)
        assert (await person.get("/inventory")).url.path == "/console/login"


async def test_a_wrong_token_is_refused_and_counted(tmp_path):
    async with console(tmp_path) as quorate:
        await quorate.token("alice", "admin")
        async with browser(quorate) as person:
            page = await person.log_in("qrt_000000000000_" + "0" * 64)
            assert page.status_code == 403
            assert "unknown, expired or revoked" in page.text
            for _ in range(12):
                page = await person.log_in("qrt_000000000000_" + "0" * 64)
            assert page.status_code == 429
            assert (await person.log_in(quorate.made["alice"])).url.path == "/console"


async def test_a_session_whose_token_ended_leads_to_the_login_and_is_not_counted_as_a_guess(tmp_path):
    async with console(tmp_path, http=HttpSettings(failure_limit=1)) as quorate, browser(quorate) as person:
        await quorate.token("bob", "admin")
        await person.log_in(await quorate.token("alice", "admin"))
        await quorate.tokens.revoke("alice")
        await quorate.rig.clock.advance(5)
        for _ in range(4):
            assert (await person.get("/inventory")).url.path == "/console/login"
        assert (await person.log_in("qrt_000000000000_" + "0" * 64)).status_code == 403


async def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        async with browser(quorate) as person:
            page = await person.get("/login")
            form = form_with(page)
            answer = await person.http.post(
                form.action,
                data={**form.fields, "token": token},
                headers={"Origin": quorate.url},
                follow_redirects=False,
            )
            cookie = answer.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=lax" in cookie
            assert "Path=/console" in cookie
            assert token not in cookie
            assert token.encode() not in (tmp_path / "state.sqlite").read_bytes()


@pytest.mark.parametrize(
    "where", ["https://evil.example/", "//evil.example", "/mcp", "/console\\@evil.example", "/consoles"]
)
async def test_the_login_leads_to_the_console_only(tmp_path, where):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        async with browser(quorate) as person:
            landed = await person.log_in(token, where)
            assert landed.url.path == "/console"


async def test_logging_out_ends_the_session_for_every_copy_of_the_cookie(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        async with browser(quorate, token) as person, browser(quorate) as thief:
            stolen = {"Cookie": f"quorate_console={dict(person.http.cookies)['quorate_console']}"}
            page = await person.get("/freeze")
            assert (await thief.get("/freeze", **stolen)).url.path == "/console/freeze"
            await person.submit(next(form for form in forms_of(page) if form.action.endswith("/logout")))
            assert (await thief.get("/freeze", **stolen)).url.path == "/console/login"


async def test_a_revoked_token_ends_its_sessions(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        await quorate.token("bob", "admin")
        async with browser(quorate, token) as person:
            await quorate.tokens.revoke("alice")
            await quorate.rig.clock.advance(5)
            assert (await person.get("/inventory")).url.path == "/console/login"


@pytest.mark.parametrize("steps", [[IDLE_SECONDS + 1], [IDLE_SECONDS / 2] * int(2 * LONGEST_SECONDS / IDLE_SECONDS)])
async def test_a_session_ends_when_it_is_idle_or_old(tmp_path, steps):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        async with browser(quorate, token) as person:
            for seconds in steps:
                assert (await person.get("/freeze")).url.path == "/console/freeze"
                await quorate.rig.clock.advance(seconds)
            assert (await person.get("/freeze")).url.path == "/console/login"


async def test_a_forged_cookie_opens_nothing(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        async with browser(quorate, token) as person:
            good = dict(person.http.cookies)["quorate_console"]
        for forged in (good[:-1] + ("0" if good[-1] != "0" else "1"), "x", "", good.split(".")[0] + "." + "0" * 64):
            async with browser(quorate) as person:
                answer = await person.http.get("/console/freeze", headers={"Cookie": f"quorate_console={forged}"})
                assert answer.url.path == "/console/login"


def test_the_link_of_quorate_console_works_once():
    login = LocalLogin()
    ticket = login.ticket
    assert login.take("wrong") is None
    assert login.take(ticket) == login.bearer
    assert login.take(ticket) is None
    assert login.take("") is None


async def test_a_person_logs_in_at_the_issuer(tmp_path):
    async with issuing() as issuer:
        issuer.add_key("one", "ES256")
        issuer.grants = {"scope": "quorate:admin", "sub": "alice"}
        settings = issuer.settings(client_id="quorate-console")
        async with console(tmp_path, http=settings) as quorate, browser(quorate) as person:
            page = await person.get("/inventory")
            assert "Log in with your account" in page.text
            landed = await person.get("/issuer?next=/console/inventory")
            assert landed.url.path == "/console/inventory"
            assert f"alice of {issuer.url}" in landed.text
            assert "Timeline" in landed.text


async def test_only_the_way_back_from_the_issuer_may_come_from_another_site(tmp_path):
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    async with issuing() as issuer:
        issuer.add_key("one", "ES256")
        issuer.grants = {"scope": "quorate:admin", "sub": "alice"}
        settings = issuer.settings(client_id="quorate-console")
        async with console(tmp_path, http=settings) as quorate, browser(quorate) as person:
            assert (await person.get("/issuer", **link)).status_code == 403
            leaving = await person.http.get("/console/issuer", follow_redirects=False)
            back = await person.http.get(leaving.headers["location"], follow_redirects=False)
            hidden = {**link, "Sec-Fetch-Dest": "iframe"}
            assert (await person.http.get(back.headers["location"], headers=hidden)).status_code == 403
            landed = await person.http.get(back.headers["location"], headers=link)
            assert landed.url.path == "/console"
            assert f"alice of {issuer.url}" in landed.text


async def test_while_the_keys_of_the_issuer_cannot_be_read_a_page_says_so_and_the_session_stays(tmp_path):
    async with issuing() as issuer:
        issuer.add_key("one", "ES256")
        issuer.grants = {"scope": "quorate:admin", "sub": "alice"}
        settings = issuer.settings(client_id="quorate-console")
        async with console(tmp_path, http=settings) as quorate, browser(quorate) as person:
            assert (await person.get("/issuer?next=/console/inventory")).status_code == 200
            issuer.silent = True
            await quorate.rig.clock.advance(STALE_SECONDS + 1)
            page = await person.get("/inventory")
            assert page.status_code == 503
            assert "The keys of the issuer cannot be read" in page.text
            issuer.silent = False
            await quorate.rig.clock.advance(REFETCH_SECONDS)
            assert f"alice of {issuer.url}" in (await person.get("/inventory")).text


async def test_a_login_at_the_issuer_that_another_browser_began_is_refused(tmp_path):
    async with issuing() as issuer:
        issuer.add_key("one", "ES256")
        issuer.grants = {"scope": "quorate:admin"}
        settings = issuer.settings(client_id="quorate-console")
        async with (
            console(tmp_path, http=settings) as quorate,
            browser(quorate) as attacker,
            browser(quorate) as victim,
        ):
            begun = await attacker.http.get("/console/issuer", follow_redirects=False)
            back = await attacker.http.get(begun.headers["location"], follow_redirects=False)
            refused = await victim.http.get(back.headers["location"])
            assert refused.status_code == 403
            assert "was not started in this browser" in refused.text


async def test_an_account_without_our_scopes_is_refused(tmp_path):
    async with issuing() as issuer:
        issuer.add_key("one", "ES256")
        issuer.grants = {"scope": "openid"}
        settings = issuer.settings(client_id="quorate-console")
        async with console(tmp_path, http=settings) as quorate, browser(quorate) as person:
            refused = await person.get("/issuer")
            assert refused.status_code == 403
            assert "none of the scopes" in refused.text
