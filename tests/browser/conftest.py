"""One browser for all tests, a new context for each; without Playwright, Chromium or npm the tests are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.web_server import Web

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
TABLET, WIDE = {"width": 768, "height": 1024}, {"width": 1920, "height": 1080}
SCREENSHOTS = os.environ.get("QUORATE_SCREENSHOTS", "")
"""A folder for the pictures of the documentation; none are kept otherwise."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = _missing()
    for item in items:
        if missing and "tests/browser" in str(item.path):
            item.add_marker(pytest.mark.skip(reason=missing))


def _missing() -> str:
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "needs Playwright: make browser installs it"
    return "" if CHROMIUM else "needs Chromium"


class Surfer:
    """A person's page, and everything that must not happen on it."""

    def __init__(self, page: Any, origin: str) -> None:
        self.page = page
        self.origin = origin
        self.complaints: list[str] = []
        page.on("console", lambda message: self._note(message.type == "error", f"console: {message.text}"))
        page.on("pageerror", lambda error: self._note(True, f"script: {error}"))
        page.on("dialog", lambda dialog: self._note(True, f"dialog: {dialog.message}"))
        page.on("request", lambda request: self._note(self._foreign(request.url), f"request: {request.url}"))

    def _note(self, wrong: bool, what: str) -> None:
        if wrong:
            self.complaints.append(what)

    def _foreign(self, url: str) -> bool:
        return not url.startswith((self.origin, "data:", "blob:", "about:"))

    async def go(self, path: str = "") -> None:
        await self.page.goto(f"{self.origin}/console{path}")

    async def log_in(self, token: str) -> None:
        await self.page.get_by_label("Token").fill(token)
        await self.page.get_by_role("button", name="Log in").click()
        await self.page.wait_for_selector("text=Log out")

    async def text(self) -> str:
        return str(await self.page.inner_text("body"))

    async def picture(self, name: str) -> None:
        if SCREENSHOTS:
            await self.page.wait_for_function(
                "[...document.images].every(one => one.complete || one.getBoundingClientRect().top > innerHeight)"
            )
            await self.page.screenshot(path=str(Path(SCREENSHOTS) / f"{name}.png"), animations="disabled")


@asynccontextmanager
async def surfing(quorate: Web, token: str | None = None, **options: Any) -> AsyncIterator[Surfer]:
    """A browser context with one page; `options` are Playwright's, such as the viewport."""
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        context = await browser.new_context(**{"viewport": DESKTOP, **options})
        context.set_default_timeout(20_000)
        surfer = Surfer(await context.new_page(), quorate.url)
        try:
            if token is not None:
                await surfer.go()
                await surfer.log_in(token)
            yield surfer
        finally:
            await browser.close()


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of axe-core, from the npm registry."""
    if not shutil.which("npm"):
        pytest.skip("needs npm for axe-core")
    folder = tmp_path_factory.mktemp("axe")
    packed = subprocess.run(
        ["npm", "pack", "--silent", "axe-core@4"], cwd=folder, capture_output=True, text=True, check=False
    )
    if packed.returncode:
        pytest.skip(f"axe-core cannot be had: {packed.stderr[-200:]}")
    subprocess.run(["tar", "-xzf", packed.stdout.split()[-1], "package/axe.min.js"], cwd=folder, check=True)
    return (folder / "package" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
