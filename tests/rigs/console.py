"""A person at the console, without a browser: fetches pages and submits their forms."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx2

from quorate.config import Access, Approval
from quorate.state.passphrase import Passphrase
from tests.rigs.web_server import Web, web

PASSPHRASE = "correct horse battery staple"


@dataclass
class Form:
    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(Form(attributes.get("action", ""), attributes.get("method", "get")))
        elif tag in ("input", "select", "textarea") and self.forms and "name" in attributes:
            self.forms[-1].fields[attributes["name"]] = attributes.get("value", "")


def forms_of(page: httpx2.Response) -> list[Form]:
    parser = _Forms()
    parser.feed(page.text)
    return parser.forms


def form_with(page: httpx2.Response, **fields: str) -> Form:
    """The form that has these fields with these values."""
    return next(form for form in forms_of(page) if fields.items() <= form.fields.items())


@dataclass
class Browser:
    """Keeps cookies and follows redirects, as a browser does."""

    http: httpx2.AsyncClient

    async def get(self, path: str = "", **headers: str) -> httpx2.Response:
        return await self.http.get(f"/console{path}", headers={"Accept": "text/html", **headers})

    async def submit(self, form: Form, page: str = "", **typed: str) -> httpx2.Response:
        origin = str(self.http.base_url).rstrip("/")
        headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
        return await self.http.post(form.action or f"/console{page}", data={**form.fields, **typed}, headers=headers)

    async def log_in(self, token: str, next: str = "/console") -> httpx2.Response:
        page = await self.get(f"/login?next={next}")
        return await self.submit(form_with(page), token=token)


@asynccontextmanager
async def browser(quorate: Web, token: str | None = None) -> AsyncIterator[Browser]:
    async with httpx2.AsyncClient(base_url=quorate.url, follow_redirects=True, timeout=30, verify=False) as http:
        person = Browser(http)
        if token is not None:
            assert (await person.log_in(token)).status_code == 200
        yield person


@asynccontextmanager
async def console(tmp_path: Path, *, access: Access = Access.ADMIN, **options: Any) -> AsyncIterator[Web]:
    """A server whose destructive calls wait for an operator with a passphrase."""
    options = {"approval": Approval.ASK, "toolsets": None, **options}
    async with web(tmp_path, access=access, **options) as quorate:
        await Passphrase(quorate.rig.app.store).set(PASSPHRASE)
        yield quorate


async def ask_to_delete(quorate: Web, token: str, guest: str = "test-vm") -> str:
    """Request a deletion as an assistant, without waiting; return the approval's id."""
    async with quorate.client(token) as client:
        answer = await client.call_tool("guest_delete", {"guest": guest, "wait": 0})
    text = "".join(getattr(block, "text", "") for block in answer.content)
    match = re.search(r"approval (\w{5}-\w{5})", text)
    assert match is not None, text
    return match[1]
