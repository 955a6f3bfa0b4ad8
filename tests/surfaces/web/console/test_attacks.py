"""Attempts to act through someone else's console, or to see it."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest

from quorate.config import Approval
from quorate.state.limits import Freeze
from quorate.surfaces.web.credentials import LocalLogin
from tests.pipeline.test_safety_table import tries
from tests.rigs.console import PASSPHRASE, ask_to_delete, browser, console, form_with
from tests.rigs.mcp_session import rig
from tests.rigs.web_server import served

pytestmark = pytest.mark.anyio
EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>"
PAGES = (
    "", "/activity", "/findings", "/timeline", "/inventory", "/map", "/policy", "/freeze", "/guests/102", "/events",
    "/part/waiting", "/series/guest/102", "/map.svg", "/approvals/aaaaa-bbbbb", "/timeline/1", "/part/map",
    "/guests/203/restore-file", "/guests/203/restore-file?backup=x&path=/etc/hosts",
)  # fmt: skip


async def test_no_page_is_served_without_a_login(tmp_path):
    async with console(tmp_path) as quorate:
        await quorate.token("alice", "admin")
        async with browser(quorate) as person:
            for path in PAGES:
                answer = await person.http.get(f"/console{path}", follow_redirects=False)
                assert answer.status_code == 303, path
                assert answer.headers["location"].startswith("/console/login?next=")


async def test_events_are_not_streamed_without_a_login(tmp_path):
    async with console(tmp_path) as quorate:
        await quorate.token("alice", "admin")
        async with browser(quorate) as person:
            answer = await person.get("/events", Accept="text/event-stream")
            assert answer.status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_form_of_another_site_does_nothing_even_with_the_right_secret(tmp_path, headers):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        form = form_with(await person.get("/freeze"), action="freeze")
        sent = {**form.fields, "passphrase": PASSPHRASE}
        answer = await person.http.post(form.action, data=sent, headers=headers)
        assert answer.status_code == 403
        assert await Freeze(quorate.rig.app.store).state() is None


@pytest.mark.parametrize("wrong", ["origin", "secret"])
async def test_a_form_of_another_site_restores_no_file(tmp_path, wrong):
    page = "/guests/203/restore-file?backup=pbs:backup/ct/203/2026-01-14T01:00:05Z&path=/etc/hosts"
    async with console(tmp_path, approval=Approval.NONE, ssh=True) as quorate, browser(quorate) as person:
        secret = form_with(await person.get("/freeze"), action="freeze").fields["csrf"]
        sent = {"csrf": secret if wrong == "origin" else "0" * 64}
        origin = "https://evil.example" if wrong == "origin" else str(person.http.base_url).rstrip("/")
        answer = await person.http.post(f"/console{page}", data=sent, headers={"Origin": origin})
        assert answer.status_code == 403
        assert not [row for row in quorate.rig.audit() if row["tool"] == "backup_file_restore"]


async def test_notes_of_a_backup_and_paths_that_contain_markup_are_shown_as_text(tmp_path):
    async with console(tmp_path, approval=Approval.NONE, ssh=True) as quorate, browser(quorate) as person:
        done = await quorate.rig.facts("backup_create", guest=203, storage="pbs", notes=EVIL)
        backup = str(done["backups"]["203"]).partition(" (")[0]
        for page in (
            await person.get("/guests/203/restore-file"),
            await person.get(f"/guests/203/restore-file?{urlencode({'backup': backup, 'path': EVIL, 'to': EVIL})}"),
            await person.get("/guests/203"),
        ):
            assert "&lt;script&gt;" in page.text
            assert "<script>alert" not in page.text
            assert "<img src=x" not in page.text


OTHER_PAGE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@tries("a web page, or a program at the same address, locks out valid tokens by failing")
async def test_a_page_of_another_site_cannot_lock_out_the_tokens_of_an_address(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        async with browser(quorate) as person:
            for number in range(300):
                headers = (OTHER_PAGE, LINK)[number % 2]
                answer = await person.http.get("/console/enter/x", headers=headers, follow_redirects=False)
                assert answer.status_code in (303, 403)
            assert (await quorate.get("/approvals", token)).status_code == 200
            assert (await person.log_in(token)).url.path == "/console"
        assert not any("auth_failures" in name and count for name, count in (await quorate.numbers(token)).items())


@pytest.mark.parametrize("headers", [OTHER_PAGE, LINK, {**LINK, "Sec-Fetch-Site": "same-site"}])
async def test_the_link_of_the_local_console_is_not_followed_for_a_page_of_another_site(tmp_path, headers):
    login = LocalLogin()
    async with rig(tmp_path) as inner, served(inner, login=login) as quorate, browser(quorate) as person:
        for ticket in ("x", login.ticket):
            for _ in range(20):
                answer = await person.http.get(f"/console/enter/{ticket}", headers=headers)
                assert answer.status_code == 403
        assert "has already been used" in (await person.get("/enter/x")).text  # the first failure that counts
        landed = await person.get(f"/enter/{login.ticket}", **{"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"})
        assert landed.url.path == "/console"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_link_in_a_message_opens_a_page_and_other_sites_get_nothing_else(tmp_path, site):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        approval = await ask_to_delete(quorate, token)
        async with browser(quorate, token) as person:
            page = await person.get(f"/approvals/{approval}", **{**LINK, "Sec-Fetch-Site": site})
            assert page.status_code == 200
            assert "test-vm" in page.text
            for changed in (
                {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
                {"Sec-Fetch-Dest": "iframe"},
                {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
            ):
                for path in (
                    "/console",
                    "/console/login",
                    "/console/events",
                    "/approvals",
                    "/mcp",
                    "/metrics",
                    "/shell",
                ):
                    headers = {**LINK, "Sec-Fetch-Site": site, **changed}
                    answer = await person.http.get(path, headers=headers, follow_redirects=False)
                    assert answer.status_code == 403, (path, changed)
            for path in (
                "/console/login",
                "/console/logout",
                f"/console/approvals/{approval}",
                f"/approvals/{approval}",
                "/freeze",
            ):
                answer = await person.http.post(path, headers={**LINK, "Sec-Fetch-Site": site})
                assert answer.status_code == 403, path
        async with browser(quorate) as person:  # who is not logged in is led through the login, still by that link
            page = await person.get(f"/approvals/{approval}", **{**LINK, "Sec-Fetch-Site": site})
            assert page.url.path == "/console/login"
            assert page.status_code == 200


@pytest.mark.parametrize("csrf", ["", "0" * 64, None])
async def test_a_form_without_the_secret_of_the_session_does_nothing(tmp_path, csrf):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        form = form_with(await person.get("/freeze"), action="freeze")
        form.fields.pop("csrf")
        typed = {"passphrase": PASSPHRASE, **({} if csrf is None else {"csrf": csrf})}
        assert (await person.submit(form, **typed)).status_code == 403
        assert await Freeze(quorate.rig.app.store).state() is None


async def test_the_secret_of_one_session_does_not_serve_another(tmp_path):
    async with console(tmp_path) as quorate:
        token = await quorate.token("alice", "admin")
        async with browser(quorate, token) as first_person, browser(quorate, token) as other:
            form = form_with(await first_person.get("/freeze"), action="freeze")
            assert (await other.submit(form, passphrase=PASSPHRASE)).status_code == 403


async def test_every_page_forbids_frames_foreign_scripts_and_inline_scripts(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        for path in ("", "/login", "/inventory", "/guests/102", "/timeline", "/policy", "/freeze", "/guests/none"):
            answer = await person.get(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["cache-control"] == "no-store"
            assert not re.search(r"<script(?![^>]*\ssrc=)", answer.text), path
            assert not re.search(r"\son\w+=|\sstyle=|javascript:", answer.text), path
            assert not re.search(r'(?:src|href|action)="(?:https?:)?//', answer.text), path


async def test_names_notes_tags_and_logs_that_contain_markup_are_shown_as_text(tmp_path):
    async with console(tmp_path, approve_changes=True) as quorate:
        token = await quorate.token("alice", "admin")
        guest = quorate.rig.sim.world.guests[102]
        guest.config["description"] = EVIL
        guest.config["name"] = EVIL
        guest.config["tags"] = EVIL
        await quorate.rig.clock.advance(15)
        async with quorate.client(token) as client:
            await client.call_tool("guest_configure", {"guest": 102, "description": EVIL + "2", "wait": 0})
        await ask_to_delete(quorate, token)
        async with browser(quorate, token) as person:
            pages = [
                await person.get(path) for path in ("", "/inventory", "/guests/102", "/timeline", "/activity", "/map")
            ]
            pages.append(await person.get(f"/policy?tool={EVIL}&arguments={EVIL}"))
            pages.append(await person.get(f"/timeline?target={EVIL}&since={EVIL}"))
            pages.append(await person.get(f"/login?next={EVIL}"))
            assert any("&lt;script&gt;" in page.text for page in pages)
            for page in pages:
                assert "<script>alert" not in page.text, page.url
                assert "<img src=x" not in page.text, page.url


async def test_a_form_that_is_too_large_is_refused(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        form = form_with(await person.get("/freeze"), action="freeze")
        answer = await person.submit(form, reason="x" * 100_000, passphrase=PASSPHRASE)
        assert answer.status_code == 413


async def test_guessing_the_passphrase_locks_it(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        frozen = await person.submit(form_with(await person.get("/freeze"), action="freeze"))
        form = form_with(frozen, action="unfreeze")
        for _ in range(5):
            assert (await person.submit(form, passphrase="a wrong passphrase")).status_code == 403
        assert (await person.submit(form, passphrase=PASSPHRASE)).status_code == 429
        assert await Freeze(quorate.rig.app.store).state() is not None


async def test_only_the_consoles_own_files_are_served(tmp_path):
    async with console(tmp_path) as quorate, browser(quorate) as person:
        for name in ("LICENSE.txt", "../templates/base.html", "..%2f..%2fapproval.py", "console.py"):
            assert (await person.http.get(f"/console/static/{name}")).status_code in (303, 404, 200)
            assert "quorate.surfaces" not in (await person.http.get(f"/console/static/{name}")).text


async def test_an_endless_number_in_an_address_is_no_defect(tmp_path):
    nines = "9" * 5000
    async with console(tmp_path) as quorate, browser(quorate) as person:
        for path in (
            f"/timeline/{nines}", f"/timeline?before={nines}", f"/timeline?since={nines}d",
            f"/inventory?offset={nines}", f"/guests/{nines}", f"/tasks/{nines}", f"/runs/{nines}",
            f"/findings/{nines}", f"/series/guest/{nines}",
        ):  # fmt: skip
            answer = await person.get(path)
            assert answer.status_code < 500, path[:40]
            assert "failed inside Quorate" not in answer.text, path[:40]
