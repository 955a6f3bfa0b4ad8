"""The server that is held against the scenarios: Quorate on a simulated cluster, with the tools that scenarios call.

Those tools are one more surface: their text, pictures, progress, errors and questions go the way of all others.

    python -m tests.conformance.server http|stdio
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import Any

from mcp.types import CallToolResult, TextContent, Tool

from quorate import log
from quorate.app import App, build, demo_settings
from quorate.config import Access, Settings
from quorate.config.http import HttpSettings
from quorate.hints import Naming
from quorate.pipeline.caller import Caller, Exchange, Question
from quorate.problems import Problem
from quorate.surfaces.native import image
from quorate.surfaces.server import Server
from quorate.surfaces.web.server import serve

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)
QUESTIONS = {
    "test_elicitation": "information",
    "test_streaming_elicitation": "information",
    "test_input_required_result_elicitation": "user_name",
    "test_input_required_result_request_state": "confirm",
    "test_input_required_result_tampered_state": "confirm",
}
NAMES = (
    "test_simple_text",
    "test_image_content",
    "test_error_handling",
    "test_tool_with_progress",
    "test_logging_tool",
)


class ScenarioTools:
    """What the scenarios call, as far as Quorate has such a thing."""

    def tools(self, _: Caller) -> list[Tool]:
        anything = {"type": "object", "properties": {}}
        return [Tool(name=name, description=f"Scenario {name}", input_schema=anything) for name in self._names()]

    def knows(self, name: str) -> bool:
        return name in self._names()

    def instructions(self) -> str:
        return ""

    def naming(self, _: Caller) -> Naming:
        return lambda _: None

    async def call(self, name: str, _: dict[str, Any], exchange: Exchange) -> CallToolResult:
        if name == "test_error_handling":
            raise Problem("This tool always fails")
        if name == "test_image_content":
            return CallToolResult(content=[image(PIXEL)])
        if name == "test_tool_with_progress" and exchange.report:
            for done in (0, 50, 100):
                await exchange.report(done, 100, "going on")
        if name in QUESTIONS:
            return _text(await self._asked(QUESTIONS[name], exchange))
        return _text("This is a simple text")

    async def _asked(self, question: str, exchange: Exchange) -> str:
        if exchange.ask is None:
            raise Problem("This client cannot ask anybody")
        reply = await exchange.ask(Question(question, "Who are you?", "a name"))
        return f"state-ok, the answer is {reply.typed!r}"

    def _names(self) -> tuple[str, ...]:
        return (*NAMES, *QUESTIONS)


def _text(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)])


async def main(transport: str) -> None:
    async with demo_settings(Settings(access=Access.ADMIN, toolsets=("default",))) as settings:
        log.set_up(settings.log_format, settings.log_level)
        app = build(settings)

        def server(**options: Any) -> Server:
            return Server(app.pipeline, [*app.surfaces(), ScenarioTools()], **options)

        try:
            await (_over_http(app, server) if transport == "http" else server().run_stdio_async())
        finally:
            await app.close()


async def _over_http(app: App, server: Any) -> None:
    await serve(replace(app.core(HttpSettings(port=0)), server=server))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
