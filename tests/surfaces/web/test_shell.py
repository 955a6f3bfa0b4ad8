"""The terminal page: a real browser's protocol on one side, a real SSH server with a real terminal on the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest

from quorate.config import Approval
from quorate.config.http import HttpSettings
from quorate.homelab.shells import INVITED_SECONDS, MAX_INVITATIONS, MAX_OPEN
from quorate.state.approvals import State
from quorate.state.limits import Freeze
from quorate.state.passphrase import Passphrase
from quorate.surfaces.web import listener, shell
from tests.rigs.homelab import house, house_with
from tests.rigs.own_system import own_system
from tests.rigs.web_server import Web, served

pytestmark = pytest.mark.anyio
WAITS = "trap 'touch /home/hung-up; exit' HUP; echo waits; while :; do sleep 0.1; done"
PASSPHRASE = "a long enough passphrase"


@dataclass
class Place:
    web: Web
    http: aiohttp.ClientSession

    async def link(self, **arguments: Any) -> str:
        facts = await self.web.rig.facts("host_shell_open", host="box", **arguments)
        link: str = facts["link"]
        assert link.startswith(f"{self.web.url}/shell#")
        return link.partition("#")[2]

    @asynccontextmanager
    async def page(self, token: str, **headers: str) -> AsyncIterator[Page]:
        all_headers = {"Origin": self.web.url, **headers}
        async with self.http.ws_connect(f"{self.web.url}/shell/ws", headers=all_headers) as socket:
            page = Page(socket)
            await page.tell(token=token)
            yield page

    def terminals(self) -> list[dict[str, Any]]:
        return [entry for entry in self.web.rig.audit() if entry["outcome"].startswith("terminal")]


class Page:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def tell(self, **facts: Any) -> None:
        await self.socket.send_str(json.dumps(facts))

    async def told(self, name: str) -> Any:
        """Wait for a word of the server, past whatever the screen shows."""
        while True:
            message = await self.socket.receive(timeout=20)
            assert message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY), message
            if message.type is aiohttp.WSMsgType.TEXT and name in (facts := json.loads(message.data)):
                return facts[name]

    async def type(self, text: str) -> None:
        await self.socket.send_bytes(text.encode())

    async def shows(self, text: str) -> str:
        seen = b""
        while text.encode() not in seen:
            message = await self.socket.receive(timeout=20)
            assert message.type is aiohttp.WSMsgType.BINARY, (message, seen)
            seen += message.data
        return seen.decode(errors="replace")


@asynccontextmanager
async def place(tmp_path, *, http: HttpSettings | None = None, **options: Any) -> AsyncIterator[Place]:
    async with (
        own_system(tmp_path / "box") as box,
        house_with(box, tmp_path, **options) as built,
        served(built.quorate, http) as web,
        aiohttp.ClientSession() as session,
    ):
        yield Place(web, session)


async def test_a_person_types_into_a_real_terminal_and_the_audit_knows_only_that(tmp_path):
    async with place(tmp_path) as here:
        async with here.page(await here.link()) as page:
            assert await page.told("machine") == "host box"
            assert await page.told("open")
            await page.tell(columns=101, rows=33)
            await page.type("tty; stty size; printf 'gr\\303\\274n-%s\\n' s3cret; exit\n")
            seen = await page.shows("grün-s3cret")
            assert "/dev/pts/" in seen
            assert "33 101" in seen
            assert await page.told("ended") == "The shell has ended."
        opened, closed = here.terminals()
        assert (opened["outcome"], closed["outcome"]) == ("terminal opened", "terminal closed")
        assert closed["bytes_shown"] > closed["bytes_typed"] > 0
        assert opened["arguments"] == closed["arguments"]
        assert "s3cret" not in (tmp_path / "audit.jsonl").read_text()


async def test_a_link_works_once(tmp_path):
    async with place(tmp_path) as here:
        token = await here.link()
        async with here.page(token) as page:
            await page.told("open")
            async with here.page(token) as other:
                assert "already been used" in await other.told("ended")
        assert len(here.terminals()) >= 1


async def test_a_link_expires_and_a_guess_opens_nothing(tmp_path):
    async with place(tmp_path) as here:
        token = await here.link()
        await here.web.rig.clock.advance(INVITED_SECONDS + 1)
        for wrong in (token, "", "x" * 32):
            async with here.page(wrong) as page:
                assert "expired" in await page.told("ended")
        assert here.terminals() == []


async def test_who_guesses_too_often_is_refused_but_a_valid_link_still_opens(tmp_path):
    async with place(tmp_path, http=HttpSettings(failure_limit=2)) as here:
        for words in ("expired", "expired", "Too many failed attempts", "Too many failed attempts"):
            async with here.page("wrong") as page:
                assert words in await page.told("ended")
        async with here.page(await here.link()) as page:
            assert await page.told("open")


async def test_pages_of_other_sites_and_rebound_names_get_no_socket(tmp_path):
    async with place(tmp_path) as here:
        token = await here.link()
        for headers, status in (
            ({"Origin": "https://evil.example.com"}, 403),
            ({"Origin": ""}, 403),
            ({"Origin": "http://evil.example.com", "Host": "evil.example.com"}, 421),
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with here.page(token, **headers):
                    pass
            assert refused.value.status == status
        async with here.page(token) as page:
            assert await page.told("open")


async def test_only_the_operator_gets_in_where_approvals_are_on(tmp_path):
    async with place(tmp_path, approval=Approval.ASK) as here:
        assert "passphrase is set" in await here.web.rig.refusal("host_shell_open", host="box")
        await Passphrase(here.web.rig.app.store).set(PASSPHRASE)
        async with here.page(await here.link()) as page:
            assert await page.told("passphrase")
            await page.tell(passphrase="guess")
            assert "not the operator's" in await page.told("error")
            await page.tell(passphrase=PASSPHRASE)
            assert await page.told("open")
            await page.type("echo in-$((40 + 2))\n")
            await page.shows("in-42")
        assert PASSPHRASE not in (tmp_path / "audit.jsonl").read_text()


async def test_a_freeze_while_the_passphrase_is_typed_opens_nothing(tmp_path):
    async with place(tmp_path, approval=Approval.ASK) as here:
        app = here.web.rig.app
        await Passphrase(app.store).set(PASSPHRASE)
        token = await here.link()
        async with here.page(token) as page:
            assert await page.told("passphrase")
            await Freeze(app.store).set("the operator", "moving house", app.pipeline.journal.trail)
            await page.tell(passphrase=PASSPHRASE)
            assert "All changes are frozen" in await page.told("ended")
        assert here.terminals() == []
        await Freeze(app.store).lift("the operator", app.pipeline.journal.trail)
        async with here.page(token) as page:  # the link was not used up
            assert await page.told("passphrase")


async def test_a_closed_page_hangs_up_and_is_recorded(tmp_path):
    async with place(tmp_path) as here:
        async with here.page(await here.link(command=["sh", "-c", WAITS])) as page:
            await page.told("open")
            await page.shows("waits")
        while len(here.terminals()) < 2:
            await asyncio.sleep(0.02)
        while not (tmp_path / "box/home/hung-up").exists():
            await asyncio.sleep(0.02)


async def test_a_terminal_outlasts_the_patience_for_a_request(tmp_path, monkeypatch):
    monkeypatch.setattr(listener, "HEADER_SECONDS", 0.3)
    async with place(tmp_path) as here, here.page(await here.link()) as page:
        await page.told("open")
        await page.type("sleep 1; echo still-$((1 + 1))\n")
        await page.shows("still-2")


async def test_who_shows_no_token_does_not_keep_a_place(tmp_path, monkeypatch):
    monkeypatch.setattr(shell, "TOKEN_SECONDS", 0.2)
    async with place(tmp_path) as here:
        address = f"{here.web.url}/shell/ws"
        async with here.http.ws_connect(address, headers={"Origin": here.web.url}) as socket:
            assert "too long" in await Page(socket).told("ended")


@pytest.mark.parametrize("first", [b"\0", "{", '{"token": 1}', '{"surprise": true}'])
async def test_what_our_page_would_not_say_ends_it(tmp_path, first):
    async with place(tmp_path) as here:
        address = f"{here.web.url}/shell/ws"
        async with here.http.ws_connect(address, headers={"Origin": here.web.url}) as socket:
            await (socket.send_bytes(first) if isinstance(first, bytes) else socket.send_str(first))
            assert "not a message of our page" in await Page(socket).told("ended")
        async with here.page(await here.link()) as page:
            await page.told("open")
            await page.socket.send_str("{")
            assert "not a message of our page" in await page.told("ended")


async def test_a_terminal_at_which_nobody_types_is_closed(tmp_path):
    async with place(tmp_path) as here:
        shells = here.web.rig.app.shells
        assert shells is not None
        shells.idle_seconds = 0.2
        async with here.page(await here.link()) as page:
            assert "Nothing was typed" in await page.told("ended")


async def test_links_and_terminals_are_bounded(tmp_path):
    async with place(tmp_path) as here:
        tokens = [await here.link() for _ in range(MAX_INVITATIONS)]
        assert "wait to be opened" in await here.web.rig.refusal("host_shell_open", host="box")
        shells = here.web.rig.app.shells
        assert shells is not None
        for token in tokens[:MAX_OPEN]:
            assert shells.redeem(token)
        async with here.page(tokens[-1]) as page:
            assert "already open" in await page.told("ended")


async def test_the_page_runs_nothing_but_our_own_files(tmp_path):
    async with place(tmp_path) as here:
        page = await here.web.get("/shell")
        assert "script-src 'self';" in page.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        for name in ("shell.mjs", "shell.css", "xterm.mjs", "xterm.css", "addon-fit.mjs"):
            assert (await here.web.get(f"/shell/{name}")).status_code == 200
            assert name in page.text + (await here.web.get("/shell/shell.mjs")).text
        for name in ("LICENSE.txt", "..%2fshell.py", "shell.html"):
            assert (await here.web.get(f"/shell/{name}")).status_code == 404


async def test_without_http_there_is_no_link_and_a_dry_run_makes_none(tmp_path):
    async with house(tmp_path) as built:
        assert "quorate serve --http" in await built.quorate.refusal("host_shell_open", host="nas")
    async with place(tmp_path / "served") as here:
        assert "link" not in await here.web.rig.facts("host_shell_open", host="box", dry_run=True)


async def test_an_approved_change_is_asked_for_first(tmp_path):
    async with place(tmp_path, approval=Approval.ASK) as here:
        await Passphrase(here.web.rig.app.store).set(PASSPHRASE)
        here.web.rig.app.settings = replace(here.web.rig.app.settings, approve_changes=True)
        assert "approval" in await here.web.rig.refusal("host_shell_open", host="box", wait=0)
        approvals = here.web.rig.app.pipeline.approver.approvals
        (waiting,) = await approvals.list((State.PENDING,))
        await approvals.answer(waiting.id, True, "the operator")
        async with here.page(await here.link(wait=0)) as page:
            assert await page.told("passphrase")
